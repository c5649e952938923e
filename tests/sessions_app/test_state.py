"""GET, PUT and PATCH of /sessions/{id}/state: compare-and-set."""

import logging
import threading
from uuid import uuid4

import pytest
from django.db import connection

from agentstate import codec, metrics
from sessions_app.models import Snapshot
from tests.concurrency.racing import at_once
from tests.factories import error_of, fetch, make_session
from tests.fixtures import Api
from tests.queries import CallQueries

MERGE = "application/merge-patch+json"
PATCH = "application/json-patch+json"


def put(session, state, if_match):
    return session.api.put(
        f"{session.url}/state", {"state": state}, headers={"If-Match": if_match}
    )


class TestCompareAndSet:
    def test_a_write_with_the_right_version_makes_the_next(self, session):
        first = put(session, {"a": 1}, '"0"')
        assert (first.status_code, first.json) == (
            200,
            {"state": {"a": 1}, "version": 1},
        )
        assert first.headers["ETag"] == '"1"'
        second = session.put_state({"a": 2}, 1)
        assert second.headers["ETag"] == '"2"'
        read = session.api.get(f"{session.url}/state")
        assert read.json == {"state": {"a": 2}, "version": 2}
        assert read.headers["ETag"] == '"2"'
        assert session.get()["version"] == 2

    def test_the_loser_by_if_match_gets_412(self, session):
        session.put_state({"a": 1, "b": {"c": 1}}, 0)
        session.put_state({"a": 2, "b": {"c": 1}}, 1)
        session.put_state({"a": 2, "b": {"c": 2}}, 2)
        answer = put(session, {"a": 9}, '"1"')
        assert (answer.status_code, answer.json["code"]) == (412, "version_conflict")
        assert answer.json["current_version"] == 3
        assert sorted(answer.json["changed_paths"]) == ["/a", "/b/c"]
        assert session.get("/state")["state"] == {"a": 2, "b": {"c": 2}}

    def test_the_loser_by_expected_version_gets_409(self, session):
        session.put_state({"a": 1}, 0)
        answer = session.put_state({"a": 2}, 0)
        assert (answer.status_code, answer.json["code"]) == (409, "version_conflict")
        assert answer.json["current_version"] == 1
        assert answer.json["changed_paths"] == ["/a"]
        assert session.patch_state(0, merge={"b": 1}).status_code == 409

    def test_a_version_of_the_future_is_a_conflict_too(self, session):
        answer = session.put_state({}, 5)
        assert (answer.status_code, answer.json["current_version"]) == (409, 0)
        assert answer.json["changed_paths"] == []

    def test_without_a_version_it_is_428(self, session):
        for answer in (
            session.put_state({"a": 1}, None),
            session.patch_state(merge={"a": 1}),
        ):
            assert (answer.status_code, answer.json["code"]) == (
                428,
                "precondition_required",
            )
        assert session.get("/state") == {"state": {}, "version": 0}

    def test_a_star_takes_whatever_version_there_is(self, session):
        session.put_state({"a": 1}, 0)
        assert put(session, {"b": 2}, "*").json == {"state": {"b": 2}, "version": 2}

    def test_a_star_never_loses_a_race(self, session):
        def change(n):
            return session.api.patch(
                f"{session.url}/state",
                {f"k{n}": n},
                headers={"If-Match": "*"},
                content_type="application/merge-patch+json",
            )

        answers = at_once(*[lambda n=n: change(n) for n in range(8)])
        assert [a.status_code for a in answers] == [200] * 8, answers
        now = session.get("/state")
        assert now == {"state": {f"k{n}": n for n in range(8)}, "version": 8}

    @pytest.mark.parametrize(
        "tag", ["x", '"1", "2"', "", '"-1"', '"99999999999999999999"']
    )
    def test_what_is_no_version_is_422(self, session, tag):
        assert error_of(put(session, {}, tag)) == (422, "invalid", "If-Match")

    def test_two_different_versions_are_422(self, session):
        answer = session.put_state({}, 0, headers={"If-Match": '"1"'})
        assert error_of(answer) == (422, "invalid", "expected_version")
        assert session.put_state({}, 0, headers={"If-Match": '"0"'}).status_code == 200

    @pytest.mark.parametrize(
        ("body", "path"),
        [
            ([], "$"),
            ({}, "state"),
            ({"state": [1]}, "state"),
            ({"state": None}, "state"),
            ({"state": {}, "version": 1}, "version"),
            ({"state": {}, "expected_version": "0"}, "expected_version"),
            ({"state": {}, "expected_version": -1}, "expected_version"),
            ({"state": {}, "expected_version": None}, "expected_version"),
        ],
    )
    def test_a_wrong_body_is_422_with_its_path(self, session, body, path):
        answer = session.api.put(f"{session.url}/state", body)
        assert error_of(answer) == (422, "invalid", path)

    def test_a_state_over_the_limit_is_413(self, session, settings):
        settings.STATE_MAX_BYTES = 1000
        answer = session.put_state({"a": "x" * 1000}, 0)
        assert (answer.status_code, answer.json["code"]) == (413, "state_too_large")
        assert session.get()["last_seq"] == 0

    def test_a_retried_write_is_no_conflict(self, session):
        headers = {"Idempotency-Key": "w-1"}
        first = session.put_state({"a": 1}, 0, headers=headers)
        again = session.put_state({"a": 1}, 0, headers=headers)
        assert (again.status_code, again.json) == (200, first.json)
        assert again.headers["ETag"] == '"1"'
        assert session.get()["version"] == 1

    def test_each_write_is_an_event_with_the_patch_and_the_version(self, session):
        session.put_state({"a": 1}, 0)
        session.patch_state(1, merge={"a": None, "b": [1]})
        assert session.payloads(types="state.changed") == [
            {"version": 1, "patch": [{"op": "add", "path": "/a", "value": 1}]},
            {
                "version": 2,
                "patch": [
                    {"op": "remove", "path": "/a"},
                    {"op": "add", "path": "/b", "value": [1]},
                ],
            },
        ]

    def test_cc_01_the_version_is_a_number_not_a_time(self, session, clock):
        for version in range(7):
            session.put_state({"n": version}, version)
        clock.advance(seconds=-3600)
        assert session.patch_state(7, merge={"cart": "open"}).json["version"] == 8
        assert session.patch_state(8, merge={"cart": "paid"}).json["version"] == 9

    def test_cc_05_a_late_write_of_an_old_version_is_refused(self, session):
        for version in range(5):
            session.put_state({"queue_position": version}, version)
        assert session.patch_state(5, merge={"queue_position": 9}).json["version"] == 6
        assert session.patch_state(5, merge={"queue_position": 12}).status_code == 409
        assert session.get("/state") == {"state": {"queue_position": 9}, "version": 6}
        delta = {
            "type": "state.changed",
            "payload": {"version": 7, "patch": [{"op": "remove", "path": ""}]},
        }
        assert session.append(delta).status_code == 422

    def test_cc_04_fifty_writers_lose_nothing(self, session):
        session.put_state({"seen_docs": []}, 0)
        failures = []

        def add(worker):
            try:
                for _ in range(200):
                    now = session.get("/state")
                    docs = [*now["state"]["seen_docs"], f"doc-{worker:02}"]
                    answer = put(session, {"seen_docs": docs}, f'"{now["version"]}"')
                    if answer.status_code == 200:
                        return
                    assert answer.status_code == 412, answer
                failures.append(worker)
            except BaseException as exc:
                failures.append(exc)
            finally:
                connection.close()

        threads = [threading.Thread(target=add, args=(n,)) for n in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        end = session.get("/state")
        assert sorted(end["state"]["seen_docs"]) == [f"doc-{n:02}" for n in range(50)]
        assert end["version"] == 51

    def test_of_100_writers_of_one_version_one_wins(self, session):
        """Acceptance 16, on the state: each loser is told the current version."""
        answers, barrier = [], threading.Barrier(20)

        def write(worker):
            barrier.wait(30)
            for n in range(5):
                answers.append(session.put_state({"by": [worker, n]}, 0))
            connection.close()

        threads = [threading.Thread(target=write, args=(n,)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        won = [answer for answer in answers if answer.status_code == 200]
        lost = [answer for answer in answers if answer.status_code == 409]
        assert (len(won), len(lost)) == (1, 99)
        assert {answer.json["current_version"] for answer in lost} == {1}
        assert session.get("/state")["state"] == won[0].json["state"]


class TestPatch:
    def patch(self, session, body, media_type, version=1):
        return session.api.patch(
            f"{session.url}/state",
            body,
            headers={"If-Match": f'"{version}"'},
            content_type=media_type,
        )

    def test_a_merge_patch_as_its_own_media_type(self, session):
        session.put_state({"a": 1, "b": {"c": 1}}, 0)
        answer = self.patch(session, {"a": None, "b": {"d": 2}}, MERGE)
        assert answer.json == {"state": {"b": {"c": 1, "d": 2}}, "version": 2}

    def test_a_json_patch_as_its_own_media_type(self, session):
        session.put_state({"a": [1]}, 0)
        answer = self.patch(
            session,
            [{"op": "add", "path": "/a/-", "value": 2}],
            f"{PATCH}; charset=utf-8",
        )
        assert answer.json == {"state": {"a": [1, 2]}, "version": 2}

    @pytest.mark.parametrize(
        ("body", "media_type"),
        [
            ([1], MERGE),
            ("x", MERGE),
            (5, MERGE),
            ([{"op": "replace", "path": "", "value": 5}], PATCH),
        ],
    )
    def test_a_state_stays_an_object(self, session, body, media_type):
        session.put_state({"a": 1}, 0)
        answer = self.patch(session, body, media_type)
        assert error_of(answer) == (422, "invalid", "state")
        assert session.get("/state") == {"state": {"a": 1}, "version": 1}

    def test_a_patch_that_does_not_fit_is_409_and_changes_nothing(self, session):
        session.put_state({"a": 1}, 0)
        body = [
            {"op": "replace", "path": "/a", "value": 2},
            {"op": "test", "path": "/a", "value": 1},
        ]
        answer = self.patch(session, body, PATCH)
        assert (answer.status_code, answer.json["code"]) == (409, "patch_failed")
        assert answer.json["operation"] == 1
        assert session.get("/state") == {"state": {"a": 1}, "version": 1}

    @pytest.mark.parametrize(
        ("body", "path"),
        [
            ({"op": "add"}, "$"),
            ([{"op": "add", "path": "x", "value": 1}], "patch[0].path"),
            ([{"op": "plus", "path": "/x"}], "patch[0].op"),
            ([5], "patch[0]"),
            ([{"op": "test", "path": "", "value": {}}] * 10_001, "patch"),
        ],
    )
    def test_a_malformed_patch_is_422_with_its_path(self, session, body, path):
        answer = self.patch(session, body, PATCH, version=0)
        assert error_of(answer) == (422, "invalid", path)

    @pytest.mark.parametrize(
        "body", [{}, {"merge": {}, "patch": []}, {"merge": []}, {"patch": {}}]
    )
    def test_one_kind_of_patch_is_sent(self, session, body):
        assert session.patch_state(0, **body).status_code == 422

    def test_another_media_type_is_415(self, session):
        answer = self.patch(session, {}, "text/plain", version=0)
        assert (answer.status_code, answer.json["code"]) == (
            415,
            "unsupported_media_type",
        )

    def test_cc_07_reserved_names_are_keys_like_any_other(self, session):
        session.put_state({"user": {}}, 0)
        user = {"__proto__": {"polluted": "yes"}, "constructor": "x", "ok": 1}
        assert session.patch_state(1, merge={"user": user}).status_code == 200
        assert session.get("/state")["state"] == {"user": user}


class TestOldStates:
    def test_the_state_at_any_seq_is_what_it_was_then(self, session):
        expected = {0: ({}, 0)}
        version = 0
        for n in range(1, 30):
            if n % 3:
                session.append(f"event {n}")
            else:
                state = {"n": n, "list": list(range(n))}
                version = session.put_state(state, version).json["version"]
            expected[n] = (state, version) if n % 3 == 0 else expected[n - 1]
        for seq, (state, version) in expected.items():
            read = session.get("/state", at_seq=seq)
            assert (read["state"], read["version"]) == (state, version)

    @pytest.mark.parametrize("at_seq", [1, 2**63 - 1])
    def test_a_seq_of_the_future_is_404(self, session, at_seq):
        answer = session.api.get(f"{session.url}/state", params={"at_seq": at_seq})
        assert (answer.status_code, answer.json["code"]) == (404, "seq_not_found")
        assert answer.json["last_seq"] == 0

    def test_rp_08_live_and_rebuilt_are_byte_for_byte_one(self, session):
        session.put_state({"basket": []}, 0)
        session.patch_state(
            1,
            patch=[
                {"op": "add", "path": "/basket/-", "value": "pear"},
                {"op": "replace", "path": "/basket", "value": ["egg", "rice"]},
                {"op": "add", "path": "/basket/-", "value": "salt"},
                {"op": "add", "path": "/basket/-", "value": "oil"},
            ],
        )
        live = session.api.get(f"{session.url}/state").content
        rebuilt = session.api.get(f"{session.url}/state", params={"at_seq": 2}).content
        assert live == rebuilt
        assert codec.loads(live) == {
            "state": {"basket": ["egg", "rice", "salt", "oil"]},
            "version": 2,
        }

    def test_snapshots_are_taken_and_used(self, session):
        """A replay folds what came since the last snapshot, not the whole log."""
        version = 0
        for n in range(450):
            version = session.patch_state(version, merge={"n": n}).json["version"]
        snapshots = list(Snapshot.objects.filter(session_id=session.id).order_by("seq"))
        assert 2 <= len(snapshots) <= 20
        assert snapshots[-1].state == {"n": snapshots[-1].seq - 1}
        with CallQueries() as queries:
            assert session.get("/state", at_seq=449)["state"] == {"n": 448}
        assert len(queries) <= 4
        # Wrong on purpose, in a copy of the world that is thrown away: it is used.
        from django.db import transaction

        from sessions_app.models import Session
        from sessions_app.replay import state_at

        with transaction.atomic():
            Snapshot.objects.filter(pk=snapshots[-1].pk).update(state={"from": "it"})
            stored = Session.objects.get(pk=session.id)
            assert state_at(stored, snapshots[-1].seq).state == {"from": "it"}
            transaction.set_rollback(True)

    def test_a_thousand_small_changes_of_a_large_state_stay_small(self, session):
        state = {"big": ["x" * 1000] * 100, "n": 0}
        session.put_state(state, 0)
        before = stored_bytes(session)
        for n in range(1, 1001):
            answer = session.patch_state(n, merge={"n": n})
            assert answer.status_code == 200
        grown = stored_bytes(session) - before
        # Written whole each time it would be 100 MB.
        assert grown < 1_000_000
        assert session.get("/state", at_seq=501)["state"] == state | {"n": 500}


def stored_bytes(session):
    [(events,)] = fetch(
        "SELECT coalesce(sum(payload_bytes), 0) FROM agent_events"
        " WHERE session_id = %s",
        session.id,
    )
    [(snapshots,)] = fetch(
        "SELECT coalesce(sum(octet_length(state::text)), 0) FROM agent_snapshots"
        " WHERE session_id = %s",
        session.id,
    )
    return int(events + snapshots)


def test_cc_11_many_conflicts_are_counted_not_logged_as_errors(session, caplog):
    caplog.set_level(logging.INFO)
    session.put_state({"a": 1}, 0)
    before = conflicts_counted()
    for _ in range(150):
        assert session.put_state({"a": 2}, 0).status_code == 409
        assert put(session, {"a": 2}, '"0"').status_code == 412
    assert conflicts_counted() - before == 300
    shown = b'agentstate_conflicts_total{code="version_conflict"}'
    assert shown in Api().get("/metrics").content
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []
    assert not any(record.exc_info for record in caplog.records)


def conflicts_counted():
    """This process's own count: /metrics adds up those of all test processes."""
    return metrics.CONFLICTS.labels("version_conflict")._value.get()


def test_a_write_costs_two_queries(session):
    """One reads the state, one writes it."""
    session.put_state({"a": 1}, 0)
    with CallQueries() as queries:
        session.put_state({"a": 2}, 1)
    assert len(queries) == 2


def test_a_state_of_a_new_session_is_version_0(api):
    assert make_session(api).get("/state") == {"state": {}, "version": 0}
    assert make_session(api, state={}).get("/state")["version"] in (0, 1)
    assert make_session(api, state={"a": str(uuid4())}).get("/state")["version"] == 1
