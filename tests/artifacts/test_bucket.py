"""Artifacts in a bucket: the same, and what happens when the bucket fails."""

import httpx
import pytest

from sessions_app.artifacts.blobs import remove_strays
from sessions_app.errors import StorageUnavailable
from sessions_app.models import StrayObject
from sessions_app.projection import differences_of
from tests.artifacts.calls import (
    ARTIFACTS,
    content,
    delete,
    listed,
    stored,
    upload,
)
from tests.artifacts.conftest import use_bucket
from tests.factories import error_of, key_header
from tests.fixtures import issue_key

SMALL = b"some bytes" * 100
LARGE = bytes(range(256)) * (20 * 4096)  # 20 MB: three parts of an upload


@pytest.fixture(autouse=True)
def replay_holds(session, project):
    yield
    assert list(differences_of(project.id, session.id)) == []


def unavailable(answer):
    assert (answer.status_code, answer.json["code"]) == (503, "storage_unavailable")
    assert answer.headers["Retry-After"]
    return True


@pytest.mark.parametrize("data", [b"", SMALL, LARGE], ids=["none", "small", "large"])
def test_what_goes_up_comes_down(api, session, project, in_bucket, data):
    artifact = stored(session, data, "report.html", media_type="text/html")
    twin = stored(session, data, "twin.html", media_type="text/html")
    [key] = in_bucket.keys()
    assert key.startswith(f"{project.id}/") and "report" not in key
    head = in_bucket.direct.head_object(Bucket=in_bucket.name, Key=key)
    assert head["ContentType"] == "application/octet-stream"
    assert content(api, artifact).content == data
    if data:
        part = content(api, artifact, Range="bytes=-7")
        assert (part.status_code, part.content) == (206, data[-7:])
    assert delete(api, artifact).status_code == 204
    assert content(api, twin).content == data
    assert delete(api, twin).status_code == 204
    assert in_bucket.keys() == []


def test_a_link_leads_to_the_bucket_itself(api, session, in_bucket):
    artifact = stored(session, SMALL, "page one.html", media_type="text/html")
    asked = api.get(f"{ARTIFACTS}/{artifact['id']}/link", params={"expires_s": 60})
    assert asked.json["direct"] is True
    down = httpx.get(asked.json["url"], timeout=60)
    assert down.content == SMALL
    assert down.headers["Content-Disposition"].startswith("attachment")
    assert "page%20one.html" in down.headers["Content-Disposition"] or (
        "page one.html" in down.headers["Content-Disposition"]
    )
    assert down.headers["Content-Type"] == "application/octet-stream"
    part = httpx.get(asked.json["url"], headers={"Range": "bytes=0-3"}, timeout=60)
    assert part.content == SMALL[:4]


def test_links_of_our_own_where_the_bucket_is_hidden(
    api, session, in_bucket, settings, anonymous
):
    settings.STORAGE_LINKS = False
    artifact = stored(session, SMALL)
    asked = api.get(f"{ARTIFACTS}/{artifact['id']}/link").json
    assert asked["direct"] is False
    path = asked["url"].removeprefix("http://testserver")
    assert anonymous.get(path).content == SMALL


def test_a_bucket_that_is_away_refuses_and_changes_nothing(
    api, session, project, in_bucket
):
    artifact = stored(session, SMALL)
    key = key_header()
    in_bucket.die()
    assert unavailable(upload(session, b"other", headers=key))
    assert unavailable(upload(session, SMALL))  # nor is it said to be there already
    assert unavailable(content(api, artifact))
    assert listed(session) == [artifact]
    assert api.get(f"{ARTIFACTS}/{artifact['id']}").json == artifact
    session.append("the log goes on")
    in_bucket.live()
    assert content(api, artifact).content == SMALL
    assert upload(session, b"other", headers=key).status_code == 201
    remove_strays()
    assert len(in_bucket.keys()) == 2
    assert not StrayObject.objects.filter(project_id=project.id).exists()


def test_a_bucket_that_dies_in_the_middle_of_an_upload(
    api, session, project, in_bucket
):
    # The upload begins, and with the answer to its first part the bucket is gone.
    in_bucket.proxy.cut_after = [700, *[0] * 10_000]
    assert unavailable(upload(session, LARGE))
    assert listed(session) == [] and session.get()["last_seq"] == 0
    assert StrayObject.objects.filter(project_id=project.id).exists()
    with pytest.raises(StorageUnavailable):
        remove_strays()
    in_bucket.live()
    remove_strays()
    assert (in_bucket.keys(), in_bucket.unfinished()) == ([], 0)
    assert not StrayObject.objects.filter(project_id=project.id).exists()
    artifact = stored(session, LARGE)
    assert content(api, artifact).content == LARGE


def test_a_bucket_that_dies_in_the_middle_of_a_download(
    session, project, bucket, server_factory, api
):
    server = server_factory(**bucket.environment)
    headers = {"Authorization": f"Bearer {issue_key(project)}"}
    with httpx.Client(base_url=server.base_url, headers=headers, timeout=60) as client:
        up = client.post(
            f"{session.url}/artifacts", params={"name": "large"}, content=LARGE
        )
        assert up.status_code == 201, up.text
        url = f"{ARTIFACTS}/{up.json()['id']}/content"
        assert client.get(url).content == LARGE
        bucket.proxy.cut_all()
        bucket.proxy.cut_after = [1_000_000, *[0] * 100]
        with pytest.raises(httpx.RemoteProtocolError), client.stream("GET", url) as cut:
            got = sum(len(part) for part in cut.iter_bytes())
            assert got == len(LARGE)
        refused = client.get(url)
        assert (refused.status_code, refused.json()["code"]) == (
            503,
            "storage_unavailable",
        )
        bucket.live()
        assert client.get(url).content == LARGE
        deleted = client.delete(url.removesuffix("/content"))
        assert deleted.status_code == 204
    assert bucket.keys() == []


def test_a_deletion_holds_though_the_bucket_is_away(api, session, in_bucket):
    artifact = stored(session, SMALL)
    in_bucket.die()
    assert delete(api, artifact).status_code == 204
    assert content(api, artifact).status_code == 404
    in_bucket.live()
    assert len(in_bucket.keys()) == 1
    assert remove_strays() == 1
    assert in_bucket.keys() == []


def test_a_bucket_that_refuses(api, session, in_bucket, settings, s3_server):
    artifact = stored(session, SMALL)
    auth = f"{s3_server}/moto-api/reset-auth"
    httpx.post(auth, content=b"0", timeout=60)  # from now on unknown keys are refused
    try:
        assert unavailable(upload(session, b"other"))
        assert unavailable(content(api, artifact))
    finally:
        httpx.post(auth, content=b"inf", timeout=60)
    use_bucket(settings, in_bucket.options(bucket_name="no-such-bucket"))
    assert unavailable(upload(session, b"other"))
    assert unavailable(upload(session, SMALL))
    assert unavailable(content(api, artifact))
    use_bucket(settings, in_bucket.options())
    assert content(api, artifact).content == SMALL
    assert [a["id"] for a in listed(session)] == [artifact["id"]]
    remove_strays()
    assert error_of(upload(session, b"x", "a/b"))[0] == 422


def test_a_prefix_keeps_to_itself(api, session, in_bucket, settings):
    use_bucket(settings, in_bucket.options(location="agentstate/files"))
    artifact = stored(session, SMALL)
    assert in_bucket.keys()[0].startswith("agentstate/files/")
    assert content(api, artifact).content == SMALL
    assert delete(api, artifact).status_code == 204
    assert in_bucket.keys() == []
