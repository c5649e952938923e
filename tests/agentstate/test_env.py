import pytest
from django.core.exceptions import ImproperlyConfigured

from agentstate.env import env_bool, env_int, env_list, env_str


@pytest.fixture
def env(monkeypatch):
    return lambda value: monkeypatch.setenv("AGENTSTATE_X", value)


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("yes", True), ("0", False), ("", False)]
)
def test_a_switch(env, text, value):
    env(text)
    assert env_bool("AGENTSTATE_X") is value


def test_a_switch_that_is_neither_fails_with_its_name(env):
    env("maybe")
    with pytest.raises(ImproperlyConfigured, match="AGENTSTATE_X"):
        env_bool("AGENTSTATE_X")


def test_a_number(env):
    env("42")
    assert env_int("AGENTSTATE_X", 1) == 42
    env("")
    assert env_int("AGENTSTATE_X", 7) == 7


@pytest.mark.parametrize("text", ["x", "-1", "11", "1.5"])
def test_a_number_out_of_its_range_fails_with_its_name(env, text):
    env(text)
    with pytest.raises(ImproperlyConfigured, match="AGENTSTATE_X"):
        env_int("AGENTSTATE_X", 1, low=0, high=10)


def test_a_secret_may_come_from_a_file(env, monkeypatch, tmp_path):
    (tmp_path / "secret").write_text("hidden\n")
    monkeypatch.setenv("AGENTSTATE_X_FILE", str(tmp_path / "secret"))
    assert env_str("AGENTSTATE_X") == "hidden"


def test_a_secret_file_that_is_not_there_fails_with_its_name(monkeypatch, tmp_path):
    monkeypatch.setenv("AGENTSTATE_X_FILE", str(tmp_path / "none"))
    with pytest.raises(ImproperlyConfigured, match="AGENTSTATE_X_FILE"):
        env_str("AGENTSTATE_X")


def test_a_list(env):
    env("a, b,,c")
    assert env_list("AGENTSTATE_X") == ["a", "b", "c"]
