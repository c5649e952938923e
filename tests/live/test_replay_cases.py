"""The cases of the area replay that people and sockets see, each named by its id."""

import pytest

from tests.event_source import EventSource
from tests.factories import answers, calls, make_session
from tests.people import SECONDS

STEPS = "/api/v1/steps"


@pytest.fixture
def session(api):
    return make_session(api)


def follow(listen, session, after_seq):
    socket = listen()
    socket.send(action="subscribe", id="s", session=session.id, after_seq=after_seq)
    return socket


def test_rp_11_a_replay_opens_no_question_again(session, api, listen, browse, project):
    session.append(
        calls("cf_1", "confirm", awaiting="human"), answers("cf_1", "approved")
    )
    body = {"session": session.id, "steps": [{"tool": "t", "requires_approval": True}]}
    run = api.post("/api/v1/runs", body).json
    api.post(f"{STEPS}/{run['steps'][0]['id']}/approve", {})
    claim = {"worker": "w", "run": run["id"]}
    [step] = api.post(f"{STEPS}/claim", claim).json["steps"]
    done = {"step": step["step"], "lease_token": step["lease_token"], "result": 1}
    api.post(f"{STEPS}/complete", {"items": [done]})
    last = session.get()["last_seq"]

    def nothing_is_open():
        assert api.get("/api/v1/approvals").json["items"] == []
        assert session.open_calls() == []
        assert api.post(f"{STEPS}/claim", claim).json["steps"] == []
        assert session.get()["last_seq"] == last

    people = browse("operator")
    for page in (f"sessions/{session.id}/", f"runs/{run['id']}/", "inbox/"):
        assert people.get(f"/p/{project.slug}/{page}").status_code == 200
        nothing_is_open()
    push = follow(listen, session, 0).next("events")
    assert (push["first_seq"], push["replayed_to"]) == (1, last)
    nothing_is_open()
    assert len(session.events(limit=1000)) == last
    nothing_is_open()


def test_rp_11_what_is_new_is_not_marked_as_replayed(session, listen):
    session.append("old")
    socket = follow(listen, session, 0)
    assert socket.next("events")["replayed_to"] == 1
    session.append("new")
    assert "replayed_to" not in socket.next("events")


def test_rp_12_several_runs_and_one_failed(
    session, api, server, browse, project, listen
):
    runs = []
    for ending in ("fail", "complete", None):
        body = {"session": session.id, "steps": [{"tool": "t"}]}
        runs.append(api.post("/api/v1/runs", body).json["id"])
        session.append("a message", run_message(ending))
        claim = {"worker": "w", "run": runs[-1]}
        [step] = api.post(f"{STEPS}/claim", claim).json["steps"]
        item = {"step": step["step"], "lease_token": step["lease_token"]}
        if ending == "fail":
            item |= {"error": {"code": "timeout"}, "retryable": False}
        if ending:
            api.post(f"{STEPS}/{ending}", {"items": [item]})
    states = [api.get(f"/api/v1/runs/{run}").json["state"] for run in runs]
    assert states == ["failed", "succeeded", "running"]
    last = session.get()["last_seq"]
    whole = [event["seq"] for event in session.events(limit=1000)]
    assert whole == list(range(1, last + 1))
    for seq in range(last):
        assert session.get("/context", at_seq=seq)["manifest"]["at_seq"] == seq
        assert session.get("/replay", at_seq=seq)
    url = f"{server.base_url}{session.url}/events/stream"
    for seq in (0, 1, last // 2, last - 1):
        source = EventSource(url, api.key, after_seq=seq).read(last - seq, SECONDS)
        assert source.ids == [str(n) for n in whole[seq:]]
        assert follow(listen, session, seq).seqs(last) == whole[seq:]
    people = browse("viewer")
    for page in (f"sessions/{session.id}/", *(f"runs/{run}/" for run in runs)):
        assert people.get(f"/p/{project.slug}/{page}").status_code == 200


def run_message(ending):
    return {"type": "message.assistant", "payload": {"content": f"then {ending}"}}
