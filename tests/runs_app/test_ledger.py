"""The ledger: has this been sent already?"""

import pytest


@pytest.fixture
def step(runs, work):
    runs.create([{"tool": "mail", "effect": "none"}])
    return work.claim_one()


def begin(api, step, key="mail-1", **more):
    return api.post(f"/api/v1/effects/{key}/begin", {"step": step["step"]} | more)


def test_an_effect_is_begun_once_and_done_once(api, runs, step):
    first = begin(api, step, request={"to": "u-1"}).json
    assert (first["outcome"], first["token"]) == ("new", 1)
    assert begin(api, step).json["outcome"] == "in_doubt"
    assert api.get("/api/v1/effects/mail-1").json["outcome"] == "in_doubt"
    body = {"token": 1, "result": {"id": "m-1"}}
    assert api.post("/api/v1/effects/mail-1/complete", body).json["outcome"] == "done"
    again = begin(api, step).json
    assert (again["outcome"], again["result"]) == ("done", {"id": "m-1"})
    types = [e["type"] for e in runs.events(step["run"])]
    assert types[-2:] == ["step.effect_begun", "step.effect_done"]


def test_completing_again_is_the_same_answer_or_refused(api, step):
    begin(api, step)
    path = "/api/v1/effects/mail-1/complete"
    assert api.post(path, {"token": 1, "result": 1}).status_code == 200
    assert api.post(path, {"token": 1, "result": 1}).status_code == 200
    answer = api.post(path, {"token": 1, "result": 2})
    assert (answer.status_code, answer.json["code"]) == (409, "already_finished")


def test_a_downstream_that_honours_the_key_lets_it_be_repeated(api, step):
    begin(api, step)
    again = begin(api, step, repeat=True).json
    assert (again["outcome"], again["token"]) == ("new", 2)
    answer = api.post("/api/v1/effects/mail-1/complete", {"token": 1, "result": 1})
    assert (answer.status_code, answer.json["code"]) == (409, "effect_lost")


def test_nothing_was_begun(api):
    answer = api.get("/api/v1/effects/mail-1")
    assert (answer.status_code, answer.json["code"]) == (404, "effect_not_found")


def test_another_project_has_its_own_ledger(api, other_api, step):
    begin(api, step)
    assert other_api.get("/api/v1/effects/mail-1").status_code == 404
    assert begin(other_api, step).status_code == 404


def test_a_long_key_is_refused(api, step):
    assert begin(api, step, key="k" * 501).status_code == 422
