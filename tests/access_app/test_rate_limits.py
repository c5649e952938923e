"""How many calls a key may make a minute, with Redis and without."""

import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from redis.exceptions import RedisError

from access_app import rate_limits
from access_app.callers import identify
from access_app.models import ApiKey
from agentstate.processes import wait_until
from tests.fixtures import Api

URL = "/api/v1/whoami"


@pytest.fixture
def redis_at(settings):
    """redis_at(url) makes this process look for Redis there, until the test ends."""

    def move(url):
        settings.REDIS_URL = url
        rate_limits.connect.cache_clear()

    yield move
    rate_limits.connect.cache_clear()
    rate_limits.breaker.close()


@pytest.fixture
def silent_server(settings):
    """A port that accepts every connection and never says a word."""
    settings.REDIS_TIMEOUT = 0.25
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


REFUSING = "redis://127.0.0.1:1/0"


def window_of(key):
    """The name under which Redis counts the calls of a key."""
    stored = ApiKey.objects.get(prefix=key.split("_")[1])
    return f"agentstate:rate:{stored.project_id}:{stored.id}"


def call(key, times):
    api = Api(key)
    return [api.get(URL) for _ in range(times)]


def test_every_answer_says_what_is_left(make_key):
    answers = call(make_key(rate_limit_per_minute=3), 2)
    assert [a.headers["RateLimit-Limit"] for a in answers] == ["3", "3"]
    assert [a.headers["RateLimit-Remaining"] for a in answers] == ["2", "1"]
    assert 0 < int(answers[0].headers["RateLimit-Reset"]) <= 60


def test_a_call_too_many_is_429_and_says_when_to_come_back(make_key):
    last = call(make_key(rate_limit_per_minute=2), 3)[-1]
    assert (last.status_code, last.json["code"]) == (429, "rate_limited")
    assert 0 < int(last.headers["Retry-After"]) <= 60
    assert last.headers["RateLimit-Remaining"] == "0"
    assert last.json["limit"] == 2


def test_refused_calls_count_too(make_key):
    api = Api(make_key(["sessions:read"], rate_limit_per_minute=2))
    codes = [api.get("/api/v1/keys").json["code"] for _ in range(3)]
    assert codes == ["missing_scope", "missing_scope", "rate_limited"]


def test_keys_are_counted_apart(make_key):
    call(make_key(rate_limit_per_minute=1), 2)
    assert call(make_key(rate_limit_per_minute=1), 1)[0].status_code == 200


def test_the_next_window_begins_when_the_minute_is_over(make_key, redis):
    key = make_key(rate_limit_per_minute=1)
    assert [a.status_code for a in call(key, 2)] == [200, 429]
    name = window_of(key)
    assert 0 < redis.pttl(name) <= 60_000
    redis.pexpire(name, 1)
    assert wait_until(lambda: not redis.exists(name), 60)
    assert call(key, 1)[0].status_code == 200


def test_limit_0_is_no_limit_and_asks_nobody(make_key, redis):
    key = make_key(rate_limit_per_minute=0)
    answers = call(key, 5)
    assert all(a.status_code == 200 for a in answers)
    assert "RateLimit-Limit" not in answers[0].headers
    stored = ApiKey.objects.get(prefix=key.split("_")[1])
    assert redis.keys(f"*{stored.id}*") == []


def test_a_key_without_a_limit_has_the_servers(make_key, settings):
    settings.RATE_LIMIT_PER_MINUTE = 7
    assert call(make_key(), 1)[0].headers["RateLimit-Limit"] == "7"


def test_au_04_parallel_calls_are_all_counted(server_factory, make_key, redis):
    """300 calls at once over four processes: exactly 60 pass."""
    key, other = make_key(rate_limit_per_minute=60), make_key(rate_limit_per_minute=60)
    servers = [server_factory() for _ in range(4)]
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(headers=headers, timeout=120) as client:

        def call(number):
            return client.get(servers[number % 4].base_url + URL)

        answers = [call(0)]
        assert redis.pexpire(window_of(key), 600_000)  # a minute might be too short
        with ThreadPoolExecutor(60) as pool:
            answers += pool.map(call, range(1, 300))
        unaffected = client.get(
            servers[0].base_url + URL, headers={"Authorization": f"Bearer {other}"}
        )
    assert Counter(a.status_code for a in answers) == {200: 60, 429: 240}
    assert all("Retry-After" in a.headers for a in answers if a.status_code == 429)
    assert unaffected.status_code == 200


def test_op_01_without_redis_calls_work_and_are_limited_locally(make_key, redis_at):
    redis_at(REFUSING)
    answers = call(make_key(rate_limit_per_minute=5), 8)
    assert [a.status_code for a in answers] == [200] * 5 + [429] * 3
    assert answers[0].headers["RateLimit-Remaining"] == "4"


def test_op_01_when_redis_is_back_it_counts_again(make_key, redis_at, settings, redis):
    address = settings.REDIS_URL
    key = make_key(rate_limit_per_minute=100)
    redis_at(REFUSING)
    call(key, 3)
    redis_at(address)
    name = f"*{ApiKey.objects.get(prefix=key.split('_')[1]).id}*"

    def is_counted_in_redis():
        call(key, 1)
        return redis.keys(name) != []

    assert wait_until(is_counted_in_redis, 60)


def test_op_02_a_silent_redis_holds_up_nobody(make_key, redis_at, silent_server):
    """500 calls while Redis does not answer: limited, and none hangs."""
    redis_at(silent_server)
    key = make_key(rate_limit_per_minute=50)
    caller = identify(key)
    waits = []

    def timed(_):
        began = time.perf_counter()
        usage = rate_limits.count_call(caller)
        waits.append(time.perf_counter() - began)
        return usage.used <= usage.limit

    with ThreadPoolExecutor(20) as pool:
        passed = list(pool.map(timed, range(500)))
    assert sum(passed) == 50
    assert max(waits) < 10  # a quarter of a second, and what a busy machine adds


def test_op_02_one_call_a_second_waits_for_a_silent_redis(monkeypatch):
    breaker = rate_limits.Breaker()
    assert breaker.lets_through()
    monkeypatch.setattr(rate_limits, "PAUSE", 600)
    breaker.open()
    together = threading.Barrier(10)

    def ask(_):
        together.wait()
        return breaker.lets_through()

    with ThreadPoolExecutor(10) as pool:
        assert not any(pool.map(ask, range(10)))
        monkeypatch.setattr(rate_limits, "PAUSE", 0.01)
        breaker.open()
        monkeypatch.setattr(rate_limits, "PAUSE", 600)
        assert wait_until(breaker.lets_through, 60)  # that one tries
        assert not any(pool.map(ask, range(10)))  # while the others stay away
    breaker.close()
    assert breaker.lets_through()


def test_op_02_the_window_is_not_empty_when_redis_goes_away(make_key, redis_at):
    """What was counted while Redis was there counts on without it."""
    key = make_key(rate_limit_per_minute=5)
    call(key, 4)
    redis_at(REFUSING)
    assert [a.status_code for a in call(key, 2)] == [200, 429]


def test_the_script_is_one_round_trip(make_key, redis):
    key = make_key(rate_limit_per_minute=100)
    call(key, 1)  # connected, and the script is loaded
    before = redis.info("commandstats")
    call(key, 10)
    after = redis.info("commandstats")

    def calls(stats, name):
        return stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]

    assert calls(after, "evalsha") - calls(before, "evalsha") == 10
    assert calls(after, "eval") == calls(before, "eval")


def test_a_high_limit_is_counted_in_steps(make_key, redis):
    """A step is a hundred calls or a thousandth of the limit: 3 of 3,000."""
    key = make_key(rate_limit_per_minute=3000)
    name = window_of(key)
    left = [a.headers["RateLimit-Remaining"] for a in call(key, 4)]
    assert left == ["2999", "2998", "2997", "2996"]
    assert int(redis.get(name)) == 6


def test_a_high_limit_is_not_exceeded(make_key, redis):
    key = make_key(rate_limit_per_minute=3000)
    name = window_of(key)
    redis.set(name, 2995, ex=60)
    statuses = [a.status_code for a in call(key, 8)]
    assert statuses == [200] * 5 + [429] * 3


def test_redis_errors_other_than_absence_fall_back_too(make_key, redis):
    key = make_key(rate_limit_per_minute=2)
    name = window_of(key)
    redis.lpush(name, "not a number")
    with pytest.raises(RedisError):
        redis.incr(name)
    try:
        assert [a.status_code for a in call(key, 3)] == [200, 200, 429]
    finally:
        rate_limits.breaker.close()
