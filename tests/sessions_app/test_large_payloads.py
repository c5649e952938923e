"""Payloads over 64 KB lie in the store and come back equal wherever they are read."""

import pytest
from django.db import connection, transaction

from agentstate import codec
from sessions_app.artifacts.blobs import remove_strays
from sessions_app.models import Blob, Event, StrayObject
from sessions_app.projection import differences_of
from tests.artifacts.calls import objects, stored
from tests.artifacts.conftest import bucket, in_bucket, s3_server
from tests.factories import (
    SessionApi,
    answers,
    calls,
    error_of,
    fetch,
    key_header,
    make_session,
    says,
)
from tests.people import browse, make_user

__all__ = ["browse", "bucket", "in_bucket", "make_user", "s3_server"]

# What JSON text is often not kept equal in: numbers, U+0000, order, escapes.
ODD = {"b": 1, "a": 12345678901234567890123, "n": 1.10, "z": "\0 \u20ac </script>"}
LARGE = {"content": "The needle. " + "x" * 70_000, "odd": ODD}
EVENT = {"type": "message.user", "payload": LARGE}
AT_THE_LIMIT = {"content": "y" * (64 * 1024 - len('{"content":""}'))}


@pytest.fixture
def large(session):
    """The session with one large event between two small ones."""
    answer = session.append("first", EVENT, "last")
    assert answer.status_code == 201, answer
    return session


@pytest.fixture(autouse=True)
def replay_holds(session, project):
    yield
    found = [str(d) for d in differences_of(project.id, session.id)]
    assert found == []


def rows(session):
    return fetch(
        "SELECT seq, octet_length(payload::text), payload_bytes, blob_id IS NOT NULL"
        " FROM agent_events WHERE session_id = %s AND seq > 0 ORDER BY seq",
        session.id,
    )


def same(found):
    """Equal, digit for digit and key for key."""
    return codec.dumps(found) == codec.dumps(LARGE)


def test_the_row_holds_a_stub(large, project):
    size = len(codec.dumps(LARGE).encode())
    assert [row[3] for row in rows(large)] == [False, True, False]
    assert rows(large)[1][1] < 2000 and rows(large)[1][2] == size
    assert len(objects(project)) == 1
    weighed = sum(row[2] for row in rows(large))
    assert large.get()["log_bytes"] == weighed
    assert not StrayObject.objects.filter(project_id=project.id).exists()


def test_the_limit_is_64_kb(session):
    over = {"content": AT_THE_LIMIT["content"] + "y"}
    for payload in (AT_THE_LIMIT, over):
        session.append({"type": "message.user", "payload": payload})
    assert [row[3] for row in rows(session)] == [False, True]
    assert session.payloads() == [AT_THE_LIMIT, over]


def test_it_comes_back_the_same_everywhere(api, large, project):
    assert same(large.payloads()[1])
    assert same(large.payloads(order="desc")[1])
    assert same(large.payloads(last=2)[0])
    assert same(large.get("/replay", at_seq=2)["conversation"][1]["payload"])
    fork = large.fork(at_seq=2)
    assert same(fork.payloads()[1])
    feed = api.get("/api/v1/events", params={"session": large.id}).json["items"]
    assert same([e for e in feed if e["seq"] == 2][0]["payload"])
    shown = large.get("/context", budget_tokens=100_000, format="neutral")
    assert LARGE["content"] in codec.dumps(shown)
    from sessions_app.exporting import export_session
    from sessions_app.models import Session

    row = Session.objects.get(id=large.id)
    lines = [codec.loads(line) for line in export_session(row, "jsonl")]
    assert same(lines[2]["payload"])
    assert LARGE["content"] in "".join(export_session(row, "openai"))
    assert list(differences_of(project.id, fork.id)) == []


def test_streams_and_sockets_tell_it_whole(server, large, project):
    import httpx

    from tests.fixtures import issue_key

    headers = {"Authorization": f"Bearer {issue_key(project)}", "Last-Event-ID": "1"}
    url = f"{server.base_url}{large.url}/events/stream"
    with httpx.stream("GET", url, headers=headers, timeout=30) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:") and '"seq":2' in line:
                assert same(codec.loads(line.removeprefix("data:"))["payload"])
                break


def test_it_is_searched(large, api):
    assert [e["seq"] for e in large.events(q="the NEEDLE")] == [2]
    assert [e["seq"] for e in large.events(q="first")] == [1]
    assert large.events(q="not in there") == []
    assert [e["seq"] for e in large.events(q="needle", order="desc")] == [2]
    for number in range(5):
        large.append(says(f"{number} " + "z" * 70_000))
    large.append("a needle at the end")
    page = api.get(f"{large.url}/events", params={"q": "needle", "limit": 1}).json
    found = [e["seq"] for e in page["items"]]
    while page["next"]:
        params = {"q": "needle", "limit": 1, "cursor": page["next"]}
        page = api.get(f"{large.url}/events", params=params).json
        found += [e["seq"] for e in page["items"]]
    assert found == [2, 9]


def test_pages_show_its_beginning_and_find_it(large, browse, project):
    client = browse("viewer")
    base = f"/p/{project.slug}"
    page = client.get(f"{base}/sessions/{large.id}/").content.decode()
    assert "The needle. xxx" in page and "$stored" not in page
    event = client.get(f"{base}/sessions/{large.id}/events/2/").content.decode()
    assert "x" * 1000 in event and "$stored" not in event
    down = client.get(f"{base}/sessions/{large.id}/events/2/payload.json")
    assert same(codec.loads(down.content))
    for q, shown in (("needle", True), ("nothing of it", False)):
        for path in ("search/", f"sessions/{large.id}/"):
            found = client.get(f"{base}/{path}", {"q": q}).content.decode()
            assert ("The needle. xxx" in found) is shown, (path, q)
    assert "The needle" not in client.get(f"{base}/sessions/").content.decode()
    large.append(EVENT)
    assert "The needle" in client.get(f"{base}/sessions/").content.decode()


def test_an_append_can_be_retried(session, project):
    key = key_header()
    first = session.append(EVENT, headers=key)
    again = session.append(EVENT, headers=key)
    assert again.json == first.json
    assert again.headers["Idempotency-Replayed"] == "true"
    assert error_of(session.append(EVENT, "more", headers=key))[0] == 422
    assert len(session.events()) == len(objects(project)) == 1
    assert Blob.objects.get(project_id=project.id).refs == 1


def test_an_id_of_its_own_is_stored_once(session, project):
    mine = EVENT | {"id": "0199b2a0-9c3e-7a51-8a0e-2b6f4d1c9e77"}
    assert session.append(mine).json["last_seq"] == 1
    assert session.append(mine, "more").json["last_seq"] == 2
    # The same value, spelt otherwise.
    text = codec.dumps({"events": [mine]}).replace('{"content"', '{ "content"')
    spelt = session.api.request(
        "POST", f"{session.url}/events", data=text.replace("1.1,", "1.10,").encode()
    )
    assert spelt.json["events"][0]["seq"] == 1, spelt
    turned = mine | {"payload": dict(reversed(list(LARGE.items())))}
    assert session.append(turned).json["events"][0]["seq"] == 1
    other = mine | {"payload": {"content": "z" * 80_000}}
    assert error_of(session.append(other))[:2] == (422, "event_id_reused")
    small = mine | {"payload": {"content": "z"}}
    assert error_of(session.append(small))[:2] == (422, "event_id_reused")
    assert Blob.objects.get(project_id=project.id).refs == 1
    assert len(objects(project)) == 1


def test_refused_it_leaves_nothing(api, session, other_api, project):
    missing = SessionApi(api, "0199b2a0-0000-7000-8000-000000000000")
    assert missing.append(EVENT).status_code == 404
    assert SessionApi(other_api, session.id).append(EVENT).status_code == 404
    assert error_of(session.append(EVENT, expected_seq=7))[0] == 409
    api.post(f"{session.url}/close", {})
    assert error_of(session.append(EVENT))[0] == 409
    assert objects(project) == []
    assert not Blob.objects.filter(project_id=project.id).exists()
    assert not StrayObject.objects.filter(project_id=project.id).exists()


def test_the_same_payload_is_kept_once(api, large, project):
    other = make_session(api)
    assert other.append(EVENT, EVENT).status_code == 201
    assert len(objects(project)) == 1
    assert Blob.objects.get(project_id=project.id).refs == 3
    assert api.request("DELETE", large.url).status_code == 204
    assert all(map(same, other.payloads()))
    assert api.request("DELETE", other.url).status_code == 204
    assert objects(project) == []


def test_it_counts_together_with_an_artifact(api, large, project):
    artifact = stored(large, codec.dumps(LARGE).encode(), "same.json")
    assert len(objects(project)) == 1
    assert list(differences_of(project.id, large.id)) == []
    assert api.delete(f"/api/v1/artifacts/{artifact['id']}").status_code == 204
    assert same(large.payloads()[1])


def test_a_fork_keeps_it_when_the_parent_is_erased(api, large, project):
    fork = large.fork(at_seq=2)
    own = large.append(says("q" * 70_000))
    assert own.status_code == 201 and len(objects(project)) == 2
    assert api.request("DELETE", large.url).status_code == 204
    assert same(fork.payloads()[1])
    assert len(objects(project)) == 1
    assert list(differences_of(project.id, fork.id)) == []
    assert api.request("DELETE", fork.url).status_code == 204
    assert objects(project) == []


def test_a_tool_result_closes_its_call(session):
    result = answers("c", {"rows": "r" * 90_000})
    assert session.append(calls("c"), result).status_code == 201
    assert session.open_calls() == []
    assert session.payloads()[1]["content"] == {"rows": "r" * 90_000}


@pytest.mark.parametrize("scope", ["subject", "everywhere"])
def test_what_is_forgotten_is_gone_from_the_store(api, project, scope):
    from tests.memory_app.calls import forget, places_with, remember

    word = "ZQ5512345678"
    session = make_session(api, subject="u-100")
    session.append(says(f"My number is {word}. " + "x" * 70_000), "more")
    source = {"session": session.id, "seqs": [1]}
    fact = remember(api, f"The number is {word}", source=source)
    assert any(place.startswith("file:") for place in places_with(word))
    if scope == "subject":
        assert api.post("/api/v1/subjects/u-100/forget", {}).status_code == 200
    else:
        session.append(says(f"Again, {word}. " + "y" * 70_000))
        forget(api, fact["id"], scope="everywhere")
        assert session.payloads()[2]["content"].startswith("Again, [forgotten]. yyy")
    assert places_with(word) == []
    assert objects(project) == []
    assert list(differences_of(project.id, session.id)) == []
    session.append("the log goes on")


def test_a_store_that_is_away_refuses_large_ones_alone(
    api, session, project, in_bucket
):
    assert session.append("small", EVENT).status_code == 201
    in_bucket.die()
    key = key_header()
    refused = session.append("beside it", says("z" * 80_000), headers=key)
    assert error_of(refused)[:2] == (503, "storage_unavailable")
    assert refused.headers["Retry-After"]
    assert session.append("small ones go on").json["last_seq"] == 3
    assert session.payloads(after_seq=2) == [{"content": "small ones go on"}]
    unread = api.get(f"{session.url}/events")
    assert (unread.status_code, unread.json["code"]) == (503, "storage_unavailable")
    in_bucket.live()
    assert same(session.payloads()[1])
    again = session.append("beside it", says("z" * 80_000), headers=key)
    assert again.json["last_seq"] == 5
    remove_strays()
    assert len(in_bucket.keys()) == 2
    assert not StrayObject.objects.filter(project_id=project.id).exists()
    assert list(differences_of(project.id, session.id)) == []
    # The bucket goes with the test, and nothing may be left that lies in it.
    assert api.request("DELETE", session.url).status_code == 204
    assert in_bucket.keys() == []


def test_the_log_stays_append_only(large):
    with (
        pytest.raises(Exception, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(
            "UPDATE agent_events SET blob_id = NULL WHERE session_id = %s", [large.id]
        )
    # Nor does the function that may do so touch what was appended before.
    event = Event.objects.get(session_id=large.id, seq=1)
    fetch(
        "SELECT agentstate_store_payloads(%s, %s, '{1}', %s::uuid[], '{5}')",
        event.project_id,
        event.session_id,
        [event.session_id],
    )
    assert rows(large)[0][3] is False


def test_verify_replay_tells_of_a_lost_payload(large, project):
    [path] = objects(project)
    kept = path.read_bytes()
    path.unlink()
    try:
        assert any(d.path == "events" for d in differences_of(project.id, large.id))
    finally:
        path.write_bytes(kept)
