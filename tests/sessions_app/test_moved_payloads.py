"""Large payloads that lie in their rows move to the store, and read as before."""

import httpx
import pytest

from agentstate import codec
from sessions_app import moving
from sessions_app.artifacts.blobs import remove_strays
from sessions_app.exporting import export_session
from sessions_app.jobs import move_payloads
from sessions_app.models import Blob, Event, Session, StrayObject
from sessions_app.moving import move_large_payloads
from sessions_app.past import past_of
from sessions_app.projection import differences_of
from tests.artifacts.calls import objects
from tests.artifacts.conftest import bucket, in_bucket, s3_server
from tests.factories import MISSING, error_of, fetch, make_session
from tests.fixtures import issue_key
from tests.sessions_app.transcripts import run_export, run_import, write_lines

__all__ = ["bucket", "in_bucket", "s3_server"]

ODD = {"n": 1.10, "big": 12345678901234567890123, "z": "\0 € </script>"}
SUBJECT = "u-moved"


@pytest.fixture
def session(api):
    return make_session(api, subject=SUBJECT)


@pytest.fixture
def stateful(session):
    """Versions 1 to 4; 2 to 4 are told by their patches alone, 2 and 3 large ones."""
    state = {}
    for version, (key, value) in enumerate(
        [
            ("base", "b" * 600_000),
            ("x", {"text": "x" * 200_000, "odd": ODD}),
            ("y", "y" * 200_000),
            ("small", 1),
        ]
    ):
        state = state | {key: value}
        assert session.put_state(state, version).status_code == 200
    session.append("and on")
    return session


@pytest.fixture(autouse=True)
def replay_holds(session, project):
    yield
    found = [str(d) for d in differences_of(project.id, session.id)]
    assert found == []


def stubs(session):
    """The seqs whose payload lies in the store."""
    found = fetch(
        "SELECT seq FROM agent_events WHERE session_id = %s AND blob_id IS NOT NULL"
        " AND octet_length(payload::text) < 3000 ORDER BY seq",
        session.id,
    )
    return [seq for (seq,) in found]


def told(session):
    """All that is told of a session, as text: digit for digit, key for key."""
    row = Session.objects.get(id=session.id)
    seqs = range(row.last_seq + 1)
    feed = session.api.get("/api/v1/events", params={"session": session.id}).json
    return codec.dumps(
        {
            "session": session.get(),
            "states": [session.get("/state", at_seq=seq) for seq in seqs],
            "replays": [session.get("/replay", at_seq=seq) for seq in seqs],
            "asc": session.events(),
            "desc": session.events(order="desc"),
            "found": session.events(q="xxxx"),
            "feed": feed["items"],
            "export": list(export_session(row, "jsonl")),
            "changes": [repr(past_of(row, seq)) for seq in seqs],
            "conflict": session.put_state({}, 1).json,
            "log": [row.log_bytes, row.patch_bytes, row.snapshot_version],
        }
    )


def test_states_read_as_before(stateful, project):
    before = told(stateful)
    assert objects(project) == [] and stubs(stateful) == []
    assert move_large_payloads(project_id=project.id) == 3
    assert stubs(stateful) == [1, 2, 3]
    assert len(objects(project)) == 3
    assert not StrayObject.objects.filter(project_id=project.id).exists()
    assert told(stateful) == before
    assert move_large_payloads(project_id=project.id) == 0
    stub = Event.objects.get(session_id=stateful.id, seq=2).payload
    assert stub["version"] == 2 and len(stub["$stored"]["head"]) == 1000


def test_the_setting_and_the_limit_are_kept(stateful, project, settings):
    settings.PAYLOAD_INLINE_BYTES = 300_000
    assert move_large_payloads(project_id=project.id) == 1
    assert stubs(stateful) == [1]
    settings.PAYLOAD_INLINE_BYTES = 4096
    stateful.put_state({"z": "z" * 30_000}, 4)  # below 64 KB: not moved
    assert move_large_payloads(1, project_id=project.id) == 1
    assert move_large_payloads(project_id=project.id) == 1
    assert stubs(stateful) == [1, 2, 3]


def test_the_sweep_reads_an_index(stateful):
    events = Event.objects.to_be_moved(70_000).values_list("id", "project_id")[:500]
    fetch("SET enable_seqscan = off")
    try:
        assert "event_large_payload" in str(events.explain())
    finally:
        fetch("RESET enable_seqscan")


def test_a_stream_tells_it_whole(server, stateful, project):
    before = stateful.events()[1]
    move_large_payloads(project_id=project.id)
    headers = {"Authorization": f"Bearer {issue_key(project)}", "Last-Event-ID": "1"}
    url = f"{server.base_url}{stateful.url}/events/stream"
    with httpx.stream("GET", url, headers=headers, timeout=30) as stream:
        line = next(each for each in stream.iter_lines() if each.startswith("data:"))
    assert codec.loads(line.removeprefix("data:"))["payload"] == before["payload"]


def test_forks_and_their_heir_read_it(stateful, project):
    before = [stateful.get("/state", at_seq=seq)["state"] for seq in range(4)]
    old = stateful.fork(at_seq=3)
    move_large_payloads(project_id=project.id)
    forks = old, stateful.fork(at_seq=3)
    assert stateful.api.request("DELETE", stateful.url).status_code == 204
    for fork in forks:
        assert fork.get("/state")["state"] == before[3]
        found = [fork.get("/state", at_seq=seq)["state"] for seq in range(4)]
        assert found == before
        assert list(differences_of(project.id, fork.id)) == []
    assert len(objects(project)) == 3
    for fork in forks:
        assert fork.api.request("DELETE", fork.url).status_code == 204
    assert objects(project) == []


def test_erasing_and_forgetting_take_it_along(api, stateful, project):
    other = make_session(api)
    other.put_state({"kept": "k" * 100_000}, 0)
    move_large_payloads(project_id=project.id)
    assert len(objects(project)) == 4
    forgotten = api.post(f"/api/v1/subjects/{SUBJECT}/forget", {})
    assert forgotten.status_code == 200, forgotten
    assert stubs(stateful) == [] and len(objects(project)) == 1
    assert "xxx" not in codec.dumps(stateful.events())
    assert api.request("DELETE", other.url).status_code == 204
    assert objects(project) == []


def test_equal_ones_are_kept_once_and_beside_a_client_s(session, project, import_lines):
    large = {"content": "same " * 20_000}
    session.append({"type": "message.user", "payload": large})
    # An import writes within a transaction of its own.
    lines = [codec.loads(line) for line in export_session(_row(session), "jsonl")]
    [line] = [each for each in lines if each["seq"] == 1]
    imported = [{**line, "session": "imported-one"}]
    assert import_lines(imported).ok
    made = Session.objects.get(project_id=project.id, key__endswith="imported-one")
    assert move_large_payloads(project_id=project.id) == 1
    assert Blob.objects.get(project_id=project.id).refs == 2
    assert list(differences_of(project.id, made.pk)) == []
    found = session.api.get(f"/api/v1/sessions/{made.pk}/events").json["items"]
    assert found[-1]["payload"] == large
    # Again: it is known by its digest, though the store should be away.
    [path] = objects(project)
    hidden = path.rename(path.with_suffix(".away"))
    try:
        again = import_lines(imported)
        assert again.ok and "0 events added" in again.out
    finally:
        hidden.rename(path)


def test_an_import_with_states_is_moved_and_comes_back(stateful, project, import_lines):
    move_large_payloads(project_id=project.id)
    exported = run_export(project, "jsonl")
    lines = [{**line, "session": "copy"} for line in exported]
    assert import_lines(lines).ok
    copy = Session.objects.get(project_id=project.id, key__endswith="copy")
    assert move_large_payloads(project_id=project.id) == 3
    assert len(objects(project)) == 3  # the same bytes
    assert "0 events added" in import_lines(lines).out
    assert list(differences_of(project.id, copy.pk)) == []


@pytest.fixture
def import_lines(project, tmp_path):
    def imported(lines):
        path = tmp_path / "lines.jsonl"
        write_lines(path, lines)
        return run_import(path, project, "jsonl")

    return imported


def _row(session):
    return Session.objects.get(id=session.id)


@pytest.fixture
def meanwhile(monkeypatch):
    """Have something happen between placing a payload and changing its row."""
    place = moving.place

    def during(act):
        def placed(project_id, content):
            found = place(project_id, content)
            monkeypatch.setattr(moving, "place", place)
            act()
            return found

        monkeypatch.setattr(moving, "place", placed)

    return during


def test_raced_by_forgetting_it_leaves_what_is_forgotten_alone(
    api, stateful, project, meanwhile
):
    meanwhile(lambda: api.post(f"/api/v1/subjects/{SUBJECT}/forget", {}))
    assert move_large_payloads(project_id=project.id) == 0
    assert stubs(stateful) == [] and objects(project) == []
    assert not Blob.objects.filter(project_id=project.id).exists()
    assert "xxx" not in codec.dumps(stateful.events())


def test_raced_by_erasing_it_leaves_nothing(api, stateful, project, meanwhile):
    meanwhile(lambda: api.request("DELETE", stateful.url))
    assert move_large_payloads(project_id=project.id) == 0
    assert objects(project) == []
    assert not Blob.objects.filter(project_id=project.id).exists()
    assert not StrayObject.objects.filter(project_id=project.id).exists()


def test_passed_on_meanwhile_it_moves_with_the_next_sweep(
    api, stateful, project, meanwhile
):
    fork = stateful.fork(at_seq=4)
    before = told(fork)
    meanwhile(lambda: api.request("DELETE", stateful.url))
    assert move_large_payloads(project_id=project.id) == 0
    assert objects(project) == []
    assert move_large_payloads(project_id=project.id) == 3
    assert stubs(fork) == [1, 2, 3]
    after = codec.loads(told(fork))
    assert after["states"] == codec.loads(before)["states"]
    assert list(differences_of(project.id, fork.id)) == []


def test_moved_by_two_at_once_it_is_held_once(stateful, project, meanwhile):
    meanwhile(lambda: move_large_payloads(project_id=project.id))
    assert move_large_payloads(project_id=project.id) == 0
    assert stubs(stateful) == [1, 2, 3] and len(objects(project)) == 3
    refs = Blob.objects.filter(project_id=project.id).values_list("refs", flat=True)
    assert list(refs) == [1, 1, 1]


def test_a_store_that_is_away_ends_the_sweep(api, stateful, project, in_bucket):
    before = told(stateful)
    in_bucket.die()
    assert move_large_payloads(project_id=project.id) == 0
    assert stubs(stateful) == [] and told(stateful) == before
    in_bucket.live()
    assert move_large_payloads(project_id=project.id) == 3
    assert told(stateful) == before
    in_bucket.die()
    assert stateful.get("/state")["version"] == 4  # that is in the session's row
    assert stateful.put_state({"base": "new"}, 4).status_code == 200
    unread = api.get(f"{stateful.url}/state", params={"at_seq": 3})
    assert error_of(unread)[:2] == (503, "storage_unavailable")
    in_bucket.live()
    # The bucket goes with the test, and nothing may be left that lies in it.
    assert api.request("DELETE", stateful.url).status_code == 204
    remove_strays()
    assert in_bucket.keys() == []


def test_the_job_sweeps_all_projects(stateful):
    move_payloads(0)
    assert stubs(stateful) == [1, 2, 3]


def test_the_log_stays_append_only(stateful, project):
    """Only the very text that was placed gives way to a stub."""
    event = Event.objects.get(session_id=stateful.id, seq=5)
    [(moved,)] = fetch(
        "SELECT agentstate_move_payload(%s, %s, %s, 'ab', '{}', %s)",
        project.id,
        stateful.id,
        event.pk,
        MISSING,
    )
    assert moved is False and stubs(stateful) == []
