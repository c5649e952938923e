"""What programs call never answers a page of HTML: refusals are problem+json."""

import re
import socket

import httpx
import pytest
from django.test import Client
from django.urls import get_resolver
from django.urls.resolvers import URLPattern

from agentstate.api.errors import MACHINE_PATH
from tests.factories import make_session

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO"]
SAMPLES = {
    "uuid": "0199b2a0-9d01-7c66-8f5a-3b4c5d6e7f80",
    "int": "1",
    "slug": "x",
    "str": "x",
}
PAGES = {"/api/v1/docs"}  # for people, where it answers well
# Reports, also of what is wrong; a load balancer reads the status alone.
REPORTS = {"/readyz"}


def addresses(patterns=None, prefix="/"):
    for each in get_resolver().url_patterns if patterns is None else patterns:
        path = prefix + str(each.pattern)
        if not isinstance(each, URLPattern):
            yield from addresses(each.url_patterns, path)
        else:
            kind = r"<(?:(\w+):)?\w+>"
            filled = re.sub(kind, lambda m: SAMPLES.get(m[1] or "str", "x"), path)
            if MACHINE_PATH.match(filled):
                yield filled


ADDRESSES = sorted(set(addresses()))
UNKNOWN = ["/api", "/api/", "/api/v2/x", "/api/v1/nothing", "/api/v1/runs/no-uuid"]
UNKNOWN += ["/artifacts/", "/artifacts/a/b", "/healthz/", "/metrics/x", "/ws/"]


def check(answer, path):
    if answer.status_code < 400 or path in REPORTS and answer.status_code == 503:
        assert path in PAGES or "html" not in answer.headers.get("Content-Type", "")
        return
    assert answer.headers["Content-Type"] == "application/problem+json", path
    if answer.request["REQUEST_METHOD"] != "HEAD":
        body = answer.json()
        assert body["status"] == answer.status_code and body["code"], path
    if answer.status_code == 405:
        assert answer.headers["Allow"]


def test_the_addresses_are_found():
    assert len(ADDRESSES) > 90
    assert {"/healthz", "/artifacts/x", "/api/v1/steps/claim"} <= set(ADDRESSES)


@pytest.mark.parametrize("method", METHODS)
def test_every_address_refuses_in_problem_json(method, browse, make_key):
    """As a browser's form would call it, signed in or not, and by a key."""
    person = browse("owner")
    person.handler.enforce_csrf_checks = True
    clients = [
        (Client(enforce_csrf_checks=True, raise_request_exception=False), {}),
        (person, {}),
        (Client(), {"Authorization": f"Bearer {make_key()}"}),
    ]
    for path in [*ADDRESSES, *UNKNOWN]:
        for client, headers in clients:
            sent = {"Accept": "text/html,*/*;q=0.1"} | headers
            answer = client.generic(
                method, path, b"a=1", "application/x-www-form-urlencoded", headers=sent
            )
            check(answer, path)
            assert answer.status_code != 500, path


@pytest.mark.parametrize("path", ["/artifacts/x", "/healthz", "/readyz", "/metrics"])
def test_a_wrong_method_is_told_so(path):
    for method in ("POST", "PUT", "DELETE"):
        answer = Client(enforce_csrf_checks=True).generic(method, path)
        assert (answer.status_code, answer.json()["code"]) == (
            405,
            "method_not_allowed",
        )
        assert answer.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/api/v1/runs", "/artifacts/x", "/api/nothing"])
def test_an_unknown_host_is_told_in_problem_json(path):
    answer = Client().get(path, headers={"Host": "elsewhere.example"})
    assert answer.status_code == 400
    check(answer, path)


@pytest.mark.parametrize("path", ["/api/v1/project", "/artifacts/x", "/metrics"])
def test_a_fault_of_ours_is_told_in_problem_json(path, monkeypatch, make_key):
    def fault(*args, **kwargs):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("access_app.api.project.ProjectView.get", fault)
    monkeypatch.setattr("sessions_app.artifact_views.artifact_of", fault)
    monkeypatch.setattr("agentstate.views.exposition", fault)
    client = Client(raise_request_exception=False)
    answer = client.get(path, headers={"Authorization": f"Bearer {make_key()}"})
    assert answer.status_code == 500
    check(answer, path)
    assert "fault of ours" not in answer.content.decode()


def test_the_served_application_does_so_too(server, api):
    session = make_session(api)
    made = api.post(f"{session.url}/artifacts", data=b"a", params={"name": "a"}).json
    link = api.get(f"/api/v1/artifacts/{made['id']}/link").json["url"]
    path = link[link.index("/artifacts/") :]
    url = server.base_url + path
    assert httpx.get(url).content == b"a"
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = httpx.request(method, url, content=b"x")
        assert answer.status_code == 405
        assert answer.headers["content-type"] == "application/problem+json"
    for wrong in ("/artifacts/x", "/api/v1/runs", "/healthz"):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            head = f"POST {wrong} HTTP/1.1\r\nHost: localhost\r\n"
            client.sendall(f"{head}Content-Length: {10**12}\r\n\r\n".encode())
            told = client.recv(4096).decode()
        assert told.startswith("HTTP/1.1 413") and "application/problem+json" in told


def test_pages_keep_their_pages(browse, project):
    person = browse("owner")
    person.handler.enforce_csrf_checks = True
    answer = person.post(f"/p/{project.slug}/settings/", {})
    assert answer.status_code == 403
    assert "html" in answer.headers["Content-Type"]
