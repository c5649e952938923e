"""Files larger than memory should be: streamed both ways by a real server."""

import hashlib
import http.client
import json
import socket

import httpx
import psutil
import pytest

from tests.artifacts.calls import ARTIFACTS, listed, objects
from tests.factories import MISSING
from tests.fixtures import issue_key

MB = 1024 * 1024
BLOCK = bytes(range(256)) * 4096  # 1 MB


def sent(megabytes, digest):
    for number in range(megabytes):
        part = number.to_bytes(8) + BLOCK[8:]
        digest.update(part)
        yield part


def peak(server):
    """The most memory that the server process has had, in bytes."""
    with open(f"/proc/{server.process.pid}/status") as status:
        [line] = [line for line in status if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def there_and_back(server, session, project, megabytes):
    """Upload and download; the memory that the server has needed beyond the start's."""
    headers = {"Authorization": f"Bearer {issue_key(project)}"}
    with httpx.Client(base_url=server.base_url, headers=headers, timeout=600) as client:
        client.get(session.url)
        before = psutil.Process(server.process.pid).memory_info().rss
        up_digest, down_digest = hashlib.sha256(), hashlib.sha256()
        answer = client.post(
            f"{session.url}/artifacts",
            params={"name": "large.bin"},
            headers={"Content-Length": str(megabytes * MB)},
            content=sent(megabytes, up_digest),
        )
        assert answer.status_code == 201, answer.text
        artifact = answer.json()
        assert artifact["size"] == megabytes * MB
        assert artifact["sha256"] == up_digest.hexdigest()
        with client.stream("GET", f"{ARTIFACTS}/{artifact['id']}/content") as down:
            for part in down.iter_bytes():
                down_digest.update(part)
        assert down_digest.hexdigest() == artifact["sha256"]
        assert client.delete(f"{ARTIFACTS}/{artifact['id']}").status_code == 204
    return peak(server), peak(server) - before


def test_a_large_file_is_not_held_in_memory(server_factory, session, project):
    server = server_factory()
    _, grown = there_and_back(server, session, project, 45)
    assert grown < 30 * MB


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("store", ["folder", "bucket"])
def test_two_gigabytes_in_less_than_200_mb(
    server_factory, session, project, request, store
):
    environment = {}
    if store == "bucket":
        environment = request.getfixturevalue("bucket").environment
        # The test's store puts the parts together in one go, for longer than others.
        environment["AGENTSTATE_STORAGE_TIMEOUT"] = "600"
    server = server_factory(**environment)
    whole, grown = there_and_back(server, session, project, 2048)
    print(f"{store}: {whole / MB:.0f} MB at most, {grown / MB:.0f} MB of it for this")
    assert whole < 200 * MB


def test_who_may_not_upload_is_told_before_the_body_is_read(
    server, api, session, project
):
    def asked(key, url=session.url, size=1024 * MB):
        """The answer to an upload whose body never comes."""
        head = (
            f"POST {url}/artifacts?name=large.bin HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {key}\r\nContent-Length: {size}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
            connection.sendall(head.encode())
            response = http.client.HTTPResponse(connection)
            response.begin()
            return response.status, json.loads(response.read())["code"]

    key = issue_key(project)
    assert asked("as_nonsense") == (401, "unauthenticated")
    reader = issue_key(project, ["sessions:read"])
    assert asked(reader) == (403, "missing_scope")
    elsewhere = f"/api/v1/sessions/{MISSING}"
    assert asked(key, elsewhere) == (404, "session_not_found")
    assert asked(key, size=10 * 1024**3) == (413, "artifact_too_large")
    api.post(f"{session.url}/close", {})
    assert asked(key) == (409, "session_closed")


def test_a_body_cut_short_is_no_artifact(server, session, project):
    headers = {"Authorization": f"Bearer {issue_key(project)}"}

    def half():
        yield BLOCK
        raise OSError("the client died")

    with pytest.raises(OSError, match="the client died"):
        httpx.post(
            f"{server.base_url}{session.url}/artifacts",
            params={"name": "half.bin"},
            headers=headers | {"Content-Length": str(60 * MB)},
            content=half(),
        )
    assert listed(session) == [] and objects(project) == []


def test_a_body_of_unknown_length(server, session, project):
    headers = {"Authorization": f"Bearer {issue_key(project)}"}
    digest = hashlib.sha256()
    answer = httpx.post(
        f"{server.base_url}{session.url}/artifacts",
        params={"name": "chunked.bin"},
        headers=headers,
        content=sent(3, digest),
        timeout=60,
    )
    assert answer.status_code == 201, answer.text
    assert answer.json()["sha256"] == digest.hexdigest()
