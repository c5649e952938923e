"""GET /api/v1/whoami, and with it how every call is authenticated."""

import pytest

URL = "/api/v1/whoami"


def test_it_says_what_the_key_is(api, project):
    answer = api.get(URL)
    assert answer.status_code == 200
    assert answer.json["project_id"] == str(project.id)
    assert answer.json["scopes"] == ["all"]
    assert answer.json["actor"].startswith("key:")


def test_head_is_get_without_a_body(api):
    answer = api.request("HEAD", URL)
    assert (answer.status_code, answer.content) == (200, b"")


def test_no_key_is_401_with_a_challenge(anonymous):
    answer = anonymous.get(URL)
    assert answer.status_code == 401
    assert answer.json["code"] == "unauthenticated"
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_x_api_key_is_as_good(anonymous, make_key):
    answer = anonymous.get(URL, headers={"X-API-Key": make_key()})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "header",
    ["Basic YTpi", "Bearer", "Bearer nonsense", "Bearer as_0123456789ab_" + "0" * 64],
)
def test_what_is_no_key_is_401(anonymous, header):
    answer = anonymous.get(URL, headers={"Authorization": header})
    assert answer.status_code == 401
    assert answer.json["code"] == "unauthenticated"


def test_a_right_prefix_with_a_wrong_secret_is_401(anonymous, make_key):
    prefix = make_key().rsplit("_", 1)[0]
    answer = anonymous.get(URL, headers={"X-API-Key": f"{prefix}_{'0' * 64}"})
    assert answer.status_code == 401


def test_another_method_is_405_with_allow(api):
    answer = api.post(URL, {})
    assert answer.status_code == 405
    assert answer.json["code"] == "method_not_allowed"
    assert "GET" in answer.headers["Allow"]


def test_an_unknown_parameter_is_422(api):
    answer = api.get(URL, params={"verbose": "1"})
    assert answer.status_code == 422
    assert answer.json["code"] == "unknown_parameter"
    assert answer.json["errors"][0]["path"] == "verbose"
