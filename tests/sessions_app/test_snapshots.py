"""Snapshots make looking back cheap, and nothing depends on them."""

import pytest

from sessions_app.models import Session, Snapshot
from sessions_app.projection import differences_of
from tests.factories import SessionApi, make_session

VERSIONS = 500


@pytest.mark.parametrize("kept", [1, 10])
def test_op_09_old_snapshots_can_go_and_nothing_is_lost(api, project, kept):
    """No version is ever refused or wrong: each is in the log, which is not pruned.

    An approval that waits since version 120 and a fork taken at 300 read as before.
    """
    session = make_session(api)
    for version in range(VERSIONS):
        session.put_state({"n": version + 1, "filler": "x" * (version % 7)}, version)
        if version + 1 == 120:
            run = api.post(
                "/api/v1/runs",
                {
                    "session": session.id,
                    "steps": [{"tool": "pay", "requires_approval": True}],
                },
            ).json
        elif version + 1 == 300:
            at_seq = session.get()["last_seq"]
            made = api.post(f"{session.url}/fork", {"at_seq": at_seq}).json
            fork = SessionApi(api, made["id"])
    before = seen(api, session, fork, run)
    for each in (session, fork):
        snapshots = Snapshot.objects.filter(project=project, session_id=each.id)
        assert each is fork or snapshots.count() >= 2
        newest = snapshots.order_by("-seq").values_list("seq", flat=True)[:kept]
        snapshots.exclude(seq__in=list(newest)).delete()
    assert seen(api, session, fork, run) == before
    assert before["versions"][-1] == {"n": VERSIONS, "filler": "x" * 2}
    assert before["fork"]["state"] == {"n": 300, "filler": "x" * 5}
    assert before["run"]["steps"][0]["state"] == "waiting"
    for stored in Session.objects.filter(project=project):
        assert list(differences_of(project.id, stored.pk)) == []


def seen(api, session, fork, run):
    return {
        "state": session.get("/state"),
        "versions": [
            session.get("/state", at_seq=seq)["state"]
            for seq in (1, 119, 121, 300, 301, session.get()["last_seq"])
        ],
        "fork": fork.get("/state"),
        "fork_before": fork.get("/state", at_seq=100),
        "run": api.get(f"/api/v1/runs/{run['id']}").json,
        "plan": session.get("/replay", at_seq=200)["plan"],
    }
