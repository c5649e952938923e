"""Working memory of a session: expiry, compare-and-set, exact keys, Redis away."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from urllib.parse import quote
from uuid import UUID

import httpx
import pytest
from django.db import connection, transaction
from django_redis import get_redis_connection
from procrastinate.contrib.django.models import ProcrastinateJob
from redis.exceptions import NoPermissionError

from access_app import rate_limits
from agentstate import codec
from agentstate.processes import wait_until
from sessions_app import working_memory
from sessions_app.jobs import end_working_memory
from sessions_app.services import erase_session
from tests.fixtures import Api, issue_key


def new_session(api, **fields):
    return api.post("/api/v1/sessions", fields).json["id"]


@pytest.fixture
def session(api):
    return new_session(api)


class Memory:
    """The working memory of one session over the API, and its keys in Redis."""

    def __init__(self, api, session, project, redis):
        self.api = api
        self.session = session
        self.base = f"/api/v1/sessions/{session}/working-memory"
        self.prefix = f"agentstate:wm:{{{project.id}:{session}}}:own"
        self.redis = redis

    def path(self, key):
        return f"{self.base}/{quote(key, safe='')}"

    def put(self, key, value, headers=None, **fields):
        return self.api.put(self.path(key), {"value": value, **fields}, headers=headers)

    def get(self, key):
        return self.api.get(self.path(key))

    def value(self, key):
        return self.get(key).json["value"]

    def delete(self, key, **options):
        return self.api.delete(self.path(key), **options)

    def increment(self, key, headers=None, **fields):
        return self.api.post(f"{self.path(key)}/increment", fields, headers=headers)

    def append(self, key, item, headers=None, **fields):
        body = {"item": item, **fields}
        return self.api.post(f"{self.path(key)}/append", body, headers=headers)

    def touch(self, key, **fields):
        return self.api.post(f"{self.path(key)}/touch", fields)

    def list(self, **params):
        return self.api.get(self.base, params=params).json

    def raw(self, key):
        return f"{self.prefix}:entry:{key}".encode()

    def pttl(self, key):
        return self.redis.pttl(self.raw(key))

    def set_left(self, key, milliseconds):
        assert self.redis.pexpire(self.raw(key), milliseconds)

    def expire(self, key):
        """Let an entry run out now, as its time would."""
        self.set_left(key, 1)
        assert wait_until(lambda: not self.redis.exists(self.raw(key)), 60)

    def stored(self):
        return list(self.redis.scan_iter(match=f"*{self.session}*", count=1000))

    def immortal(self):
        return [key for key in self.stored() if self.redis.ttl(key) == -1]


@pytest.fixture
def memory(api, session, project, redis):
    found = Memory(api, session, project, redis)
    yield found
    assert found.immortal() == []


def code(answer):
    return answer.status_code, answer.json["code"]


@pytest.fixture
def redis_at():
    """redis_at(port=…): a context in which this process reaches Redis so."""
    pool = get_redis_connection("default").connection_pool
    address = dict(pool.connection_kwargs)

    @contextmanager
    def at(**changed):
        pool.disconnect()
        pool.connection_kwargs = address | changed
        pool.reset()
        try:
            yield
        finally:
            pool.disconnect()
            pool.connection_kwargs = address
            pool.reset()
            rate_limits.breaker.close()

    return at


@pytest.fixture
def redis_away(redis_at):
    """A context in which nothing listens where this process looks for Redis."""
    return lambda: redis_at(port=1)


def at_once(call, arguments, threads=10):
    """Run call(argument) for each in as many threads as the pool has connections."""

    def run(argument):
        try:
            return call(argument)
        finally:
            connection.close()

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, arguments))


# --- Reading and writing


def test_a_value_comes_back_equal(memory):
    value = {"n": 12345678901234567890123, "d": codec.loads("0.10"), "t": "a\0b😀"}
    made = memory.put("plan", value)
    assert made.status_code == 201
    assert made.json["value"] == value
    read = memory.get("plan")
    assert read.json["value"] == value
    assert b"0.10" in read.content
    assert read.headers["ETag"] == made.headers["ETag"] == f'"{made.json["version"]}"'


@pytest.mark.parametrize("value", [None, "", 0, False, [], {}, "x" * 1000])
def test_any_json_is_a_value(memory, value):
    memory.put("k", value)
    assert memory.value("k") == value


def test_replacing_answers_200_and_a_higher_version(memory):
    first = memory.put("k", 1)
    second = memory.put("k", 2)
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json["version"] > first.json["version"]


def test_the_default_life_is_an_hour(memory):
    answer = memory.put("k", 1).json
    assert (answer["ttl_s"], answer["policy"]) == (3600, "fixed")
    assert 3_590_000 < memory.pttl("k") <= 3_600_000
    assert 3590 < answer["seconds_left"] <= 3600


def test_a_put_says_everything_anew(memory):
    memory.put("k", 1, ttl_s=10, policy="sliding")
    answer = memory.put("k", 2).json
    assert (answer["ttl_s"], answer["policy"]) == (3600, "fixed")


def test_an_unknown_key_is_404(memory):
    assert code(memory.get("k")) == (404, "entry_not_found")
    assert code(memory.delete("k")) == (404, "entry_not_found")
    assert code(memory.touch("k")) == (404, "entry_not_found")


def test_a_deleted_key_is_gone_and_not_told_of_as_expired(memory):
    memory.put("k", 1)
    assert memory.delete("k").status_code == 204
    assert code(memory.get("k")) == (404, "entry_not_found")
    assert memory.list()["items"] == []


def test_touch_begins_the_life_anew(memory):
    version = memory.put("k", 1, ttl_s=60).json["version"]
    memory.set_left("k", 5000)
    answer = memory.touch("k")
    assert (answer.status_code, answer.json["version"]) == (200, version)
    assert 55_000 < memory.pttl("k") <= 60_000
    memory.touch("k", ttl_s=600)
    assert 590_000 < memory.pttl("k") <= 600_000
    memory.touch("k")
    assert memory.get("k").json["ttl_s"] == 600


@pytest.mark.parametrize(
    "fields",
    [
        {"ttl_s": 0},
        {"ttl_s": -1},
        {"ttl_s": 10**9},
        {"ttl_s": "60"},
        {"ttl_s": None},
        {"policy": "never"},
        {"ttl": 60},
    ],
)
def test_bad_lives_are_refused(memory, fields):
    answer = memory.put("k", 1, **fields)
    assert code(answer) == (422, "invalid")
    assert answer.json["errors"][0]["path"] == next(iter(fields))
    assert memory.stored() == []


def test_a_body_without_a_value_is_refused(memory):
    answer = memory.api.put(memory.path("k"), {"ttl_s": 5})
    assert answer.json["errors"][0]["path"] == "value"


# --- Compare and set


def test_if_match_lets_one_of_two_writers_win(memory):
    version = memory.put("k", "a").json["version"]
    etag = {"If-Match": f'"{version}"'}
    assert memory.put("k", "b", headers=etag).status_code == 200
    lost = memory.put("k", "c", headers=etag)
    assert code(lost) == (412, "version_conflict")
    assert lost.json["current_version"] == version + 1
    assert lost.json["current_value"] == "b"
    assert memory.value("k") == "b"


def test_if_match_on_a_missing_key_conflicts(memory):
    lost = memory.put("k", 1, headers={"If-Match": "*"})
    assert code(lost) == (412, "version_conflict")
    assert lost.json["current_version"] == 0
    assert code(memory.get("k")) == (404, "entry_not_found")


def test_an_old_version_never_matches_a_key_made_anew(memory):
    old = memory.put("k", 1).json["version"]
    memory.expire("k")
    memory.put("k", 2)
    assert code(memory.put("k", 3, headers={"If-Match": f'"{old}"'}))[0] == 412
    memory.delete("k")
    memory.put("k", 4)
    assert code(memory.put("k", 5, headers={"If-Match": f'"{old}"'}))[0] == 412
    assert memory.value("k") == 4


def test_if_none_match_creates_only(memory):
    only = {"If-None-Match": "*"}
    assert memory.put("k", 1, headers=only).status_code == 201
    assert code(memory.put("k", 2, headers=only)) == (412, "entry_exists")
    memory.expire("k")
    assert memory.put("k", 3, headers=only).status_code == 201


def test_delete_takes_a_condition(memory):
    version = memory.put("k", 1).json["version"]
    stale = {"If-Match": f'"{version - 1}"'}
    assert code(memory.delete("k", headers=stale)) == (412, "version_conflict")
    assert memory.delete("k", headers={"If-Match": f'"{version}"'}).status_code == 204


@pytest.mark.parametrize(
    "headers",
    [
        {"If-Match": "new"},
        {"If-None-Match": '"3"'},
        {"If-Match": "*", "If-None-Match": "*"},
    ],
)
def test_bad_conditions_are_422(memory, headers):
    assert memory.put("k", 1, headers=headers).status_code == 422
    assert memory.stored() == []


def test_of_many_writers_with_one_version_one_wins(memory):
    version = memory.put("k", "start").json["version"]
    together = threading.Barrier(10)

    def write(n):
        together.wait()
        headers = {"If-Match": f'"{version}"'}
        return memory.put("k", n, headers=headers).status_code

    answers = at_once(write, range(10))
    assert sorted(answers) == [200] + [412] * 9
    assert answers[memory.value("k")] == 200


# --- Counters and lists


def test_counting_begins_at_zero_and_is_exact(memory):
    assert memory.increment("n").json["value"] == 1
    assert memory.increment("n", by=2**62).json["value"] == 2**62 + 1
    assert memory.increment("n", by=-(2**62)).json["value"] == 1
    assert memory.increment("n", by=0).json["value"] == 1


def test_a_counter_may_be_put_first(memory):
    memory.put("n", 9007199254740993, ttl_s=60)
    answer = memory.increment("n", ttl_s=900)
    assert (answer.status_code, answer.json["value"]) == (200, 9007199254740994)
    assert answer.json["ttl_s"] == 60


@pytest.mark.parametrize("value", ["1", 1.5, None, [1], {"n": 1}, True, "x"])
def test_only_integers_are_counted(memory, value):
    memory.put("n", value)
    assert code(memory.increment("n")) == (409, "not_an_integer")
    assert memory.value("n") == value


def test_a_counter_does_not_overflow(memory):
    memory.put("n", 2**63 - 1)
    assert code(memory.increment("n")) == (409, "counter_overflow")
    assert memory.value("n") == 2**63 - 1
    memory.put("n", 2**70)
    assert code(memory.increment("n")) == (409, "counter_overflow")
    assert memory.increment("m", by=-(2**63)).json["value"] == -(2**63)
    assert code(memory.increment("m", by=-1)) == (409, "counter_overflow")


@pytest.mark.parametrize("by", [2**63, 1.5, "1", None, True])
def test_increments_by_what_is_no_integer_are_422(memory, by):
    assert memory.increment("n", by=by).status_code == 422


def test_parallel_increments_all_count(memory):
    at_once(lambda _: memory.increment("n"), range(200))
    assert memory.value("n") == 200


def test_append_makes_a_list_and_says_its_length(memory):
    answers = [memory.append("l", item) for item in ({"a": 1}, [2], "]", None)]
    assert [a.json["length"] for a in answers] == [1, 2, 3, 4]
    assert [a.status_code for a in answers] == [201, 200, 200, 200]
    assert memory.value("l") == [{"a": 1}, [2], "]", None]


def test_append_to_a_list_that_was_put(memory):
    memory.put("l", [])
    memory.append("l", 1)
    memory.put("l", [10**30, [1, 2]])
    assert memory.append("l", codec.loads("1.50")).json["length"] == 3
    assert b"[1000000000000000000000000000000,[1,2],1.50]" in memory.get("l").content


@pytest.mark.parametrize("value", ["[1]", 1, {"a": []}, None])
def test_append_to_what_is_no_list(memory, value):
    memory.put("l", value)
    assert code(memory.append("l", 1)) == (409, "not_a_list")
    assert memory.value("l") == value


def test_parallel_appends_lose_nothing(memory):
    answers = at_once(lambda n: memory.append("l", n), range(100))
    assert sorted(memory.value("l")) == list(range(100))
    assert sorted(a.json["length"] for a in answers) == list(range(1, 101))


def test_a_list_does_not_grow_past_the_limit(memory):
    memory.put("l", ["x" * (working_memory.VALUE_MAX_BYTES - 10)])
    assert code(memory.append("l", "12345678")) == (413, "value_too_large")
    assert memory.append("l", 1).json["length"] == 2


# --- Retries


def test_a_repeated_increment_counts_once(memory):
    headers = {"Idempotency-Key": "once"}
    first = memory.increment("n", headers=headers)
    again = memory.increment("n", headers=headers)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    assert (again.status_code, again.content) == (201, first.content)
    assert memory.value("n") == 1
    other = memory.increment("n", headers=headers, by=2)
    assert code(other) == (422, "idempotency_key_reused")


def test_parallel_repeats_count_once(memory):
    headers = {"Idempotency-Key": "once"}
    answers = at_once(lambda _: memory.append("l", 1, headers=headers), range(50))
    assert {a.status_code for a in answers} == {201}
    assert memory.value("l") == [1]


def test_a_repeated_put_and_delete_give_the_first_answer(memory):
    headers = {"Idempotency-Key": "k1"}
    first = memory.put("k", {"a": 1}, headers=headers)
    memory.put("k", "later")
    again = memory.put("k", {"a": 1}, headers=headers)
    assert (again.status_code, again.content) == (201, first.content)
    assert memory.value("k") == "later"
    gone = {"Idempotency-Key": "k2"}
    assert memory.delete("k", headers=gone).status_code == 204
    assert memory.delete("k", headers=gone).status_code == 204


def test_a_refused_call_may_be_made_again_with_its_key(memory):
    headers = {"Idempotency-Key": "k", "If-None-Match": "*"}
    memory.put("k", 1)
    assert memory.put("k", 2, headers=headers).status_code == 412
    memory.delete("k")
    assert memory.put("k", 2, headers=headers).status_code == 201


def test_what_is_kept_for_retries_holds_no_text_of_the_client(memory, redis):
    headers = {"Idempotency-Key": "k"}
    memory.put("sentinel-key", "sentinel-value", headers=headers)
    memory.append("sentinel-list", "sentinel-item", headers=headers)
    kept = [key for key in memory.stored() if b":answer:" in key]
    assert len(kept) == 2
    for key in kept:
        assert b"sentinel" not in key + redis.get(key)


# --- Cases


@pytest.fixture
def redis_refusing(redis, redis_at):
    """redis_refusing("set", …): a context in which Redis refuses these commands."""

    @contextmanager
    def refusing(*commands):
        rules = [f"-{command}" for command in commands]
        redis.execute_command(
            *("ACL", "SETUSER", "hampered", "on", ">pw", "~*", "+@all", *rules)
        )
        with redis_at(username="hampered", password="pw"):
            with pytest.raises(NoPermissionError):
                get_redis_connection("default").execute_command(commands[0], "x", 1)
            yield
        redis.execute_command("ACL", "DELUSER", "hampered")

    return refusing


def test_wm_02_value_and_expiry_are_set_by_one_command(memory, redis_refusing):
    """While Redis refuses to set expiries, a write fails and leaves nothing."""
    before = memory.put("approval", "pending", ttl_s=600).json
    with redis_refusing("set", "pexpireat"):
        for answer in (
            memory.put("approval", "given", ttl_s=60),
            memory.put("new", "pending", ttl_s=60),
            memory.increment("tries"),
            memory.append("notes", 1),
        ):
            assert code(answer) == (503, "working_memory_unavailable")
    assert memory.value("approval") == "pending"
    assert memory.get("approval").json["version"] == before["version"]
    assert [item["key"] for item in memory.list()["items"]] == ["approval"]


@pytest.mark.parametrize("refused", ["pexpireat", "set"])
def test_wm_02_no_part_of_a_first_write_stays(memory, redis_refusing, refused):
    with redis_refusing(refused):
        assert memory.put("k", 1, ttl_s=60).status_code == 503
        assert memory.immortal() == []
    assert memory.list()["items"] == []
    assert memory.put("k", 1, ttl_s=60).status_code == 201


def test_wm_03_sliding_lives_on_by_being_read(memory):
    memory.put("plan", 1, ttl_s=10, policy="sliding")
    memory.put("plan.notes", 1, ttl_s=10, policy="sliding")
    for _ in range(10):  # "30 seconds", 3 at a time
        memory.set_left("plan", 7000)
        answer = memory.get("plan")
        told = datetime.fromisoformat(answer.json["expires_at"])
        real = memory.redis.pexpiretime(memory.raw("plan")) / 1000
        assert abs(told.timestamp() - real) < 1
        assert 9000 < memory.pttl("plan") <= 10_000
    assert memory.pttl("plan.notes") <= 10_000
    memory.expire("plan.notes")
    assert memory.value("plan") == 1
    assert code(memory.get("plan.notes")) == (404, "entry_expired")


def test_wm_03_fixed_ends_whatever_is_read(memory):
    ends = memory.put("plan", 1, ttl_s=10, policy="fixed").json["expires_at"]
    memory.set_left("plan", 7000)
    for _ in range(3):
        left = memory.get("plan").json["seconds_left"]
        assert left <= 7
        assert memory.pttl("plan") <= 7000
    assert ends > memory.get("plan").json["expires_at"]


def test_wm_03_a_list_prolongs_nothing_and_writes_to_sliding_do(memory):
    memory.put("n", 1, ttl_s=10, policy="sliding")
    memory.set_left("n", 5000)
    memory.list()
    assert memory.pttl("n") <= 5000
    memory.increment("n")
    assert memory.pttl("n") > 9000


def test_wm_04_the_whole_says_what_has_expired(memory, api, session):
    api.put(
        f"/api/v1/sessions/{session}/state",
        {"state": {"a": 1}},
        headers={"If-Match": '"0"'},
    )
    memory.put("a", "short", ttl_s=5)
    memory.put("b", "long", ttl_s=60)
    memory.expire("a")
    a, b = memory.list()["items"]
    assert (a["key"], a["expired"]) == ("a", True)
    assert "value" not in a
    assert datetime.fromisoformat(a["expired_at"]) <= datetime.now(UTC)
    assert (b["key"], b["expired"], b["value"]) == ("b", False, "long")
    gone = memory.get("a")
    assert code(gone) == (404, "entry_expired")
    assert datetime.fromisoformat(gone.json["expired_at"]) <= datetime.now(UTC)
    found = api.get(f"/api/v1/sessions/{session}").json
    assert (found["state"], found["version"]) == ({"a": 1}, 1)


def test_wm_04_an_expired_key_can_be_dropped_or_set_again(memory):
    memory.put("a", 1)
    memory.expire("a")
    assert code(memory.delete("a")) == (404, "entry_expired")
    assert code(memory.get("a")) == (404, "entry_not_found")
    memory.put("b", 1)
    memory.expire("b")
    assert memory.put("b", 2).status_code == 201
    assert memory.list()["items"][0]["expired"] is False


def test_wm_05_counting_in_the_instant_of_expiry(memory, session, project):
    """1,000 rounds around the expiry: the old life or a new one, never none."""
    scope = working_memory.Scope(project.id, UUID(session), 10**6)
    outcomes = set()
    for round_number in range(1000):
        working_memory.put_entry(scope, "tries", 100, ttl=60)
        memory.redis.pexpire(memory.raw("tries"), 1 + round_number % 3)
        for _ in range(1 + round_number % 7):
            entry = working_memory.increment_entry(scope, "tries", 1).entry
            ttl = memory.pttl("tries")
            assert ttl != -1
            is_old = int(entry.value_text) > 100
            if is_old:
                assert entry.ttl == 60
                assert entry.seconds_left <= 1
            else:
                assert entry.ttl == working_memory.DEFAULT_TTL
                assert ttl > 3_500_000
            outcomes.add(is_old)
    assert outcomes == {True, False}


def test_wm_09_a_secret_stays_in_its_session(api, project, redis, make_key):
    one, two, three = (
        Memory(api, new_session(api, key=key, subject=subject), project, redis)
        for key, subject in (("t-1", "u-1"), ("t-2", "u-1"), ("t-3", "u-2"))
    )
    one.put("otp", "481516")
    for other in (two, three):
        assert code(other.get("otp")) == (404, "entry_not_found")
        assert other.list() == {"items": [], "next": None}
        found = api.get("/api/v1/sessions", params={"q": "481516"}).json
        assert found["items"] == []
        events = api.get(f"/api/v1/sessions/{other.session}/events")
        assert b"481516" not in events.content
    api.delete(f"/api/v1/sessions/{one.session}")
    again = Memory(api, new_session(api, key="t-1"), project, redis)
    assert again.list()["items"] == []
    assert code(again.get("otp")) == (404, "entry_not_found")
    assert not any(b"otp" in key for key in one.stored())


AWKWARD = [
    "a:b",
    "*",
    "a*",
    "..",
    ".",
    "s-2:draft",
    "\0",
    "a\0b",
    "k with space",
    "a/b",
    "a//b",
    "/",
    "x/increment",
    "x/touch",
    "line\nend",
    "%2F",
    "%",
    "+",
    "?a=b#c",
    "{x}",
    "ключ😀",
    "é",
    "e\u0301",
    "A",
    "a",
]


def test_own_14_each_key_is_one_exact_key(memory):
    for number, key in enumerate(AWKWARD):
        assert memory.put(key, number).status_code == 201, key
    for number, key in enumerate(AWKWARD):
        assert memory.get(key).json["key"] == key
        assert memory.value(key) == number
    assert {item["key"] for item in memory.list()["items"]} == set(AWKWARD)
    assert memory.delete("*").status_code == 204
    assert {i["key"] for i in memory.list()["items"]} == set(AWKWARD) - {"*"}
    for key in AWKWARD:
        if key != "*":
            assert memory.delete(key).status_code == 204
    assert memory.list()["items"] == []


def test_own_14_operations_reach_keys_that_end_like_them(memory):
    memory.put("a/increment", 5)
    assert memory.increment("a/increment").json["value"] == 6
    assert memory.increment("a").json["value"] == 1
    assert memory.touch("a/increment").status_code == 200
    assert memory.append("a/append", 1).json["length"] == 1


def test_own_14_no_key_reaches_another_session(api, project, redis):
    victim = Memory(api, new_session(api), project, redis)
    victim.put("draft", "secret")
    attacker = Memory(api, new_session(api), project, redis)
    for key in (
        f"../{victim.session}/working-memory/draft",
        f"{victim.prefix}:entry:draft",
        f"}}:{victim.session}:entry:draft",
        f":entry:draft\0{victim.session}",
    ):
        assert code(attacker.get(key)) == (404, "entry_not_found")
        attacker.put(key, "mine")
        attacker.delete(key)
    assert victim.value("draft") == "secret"


def test_own_14_long_keys_are_422_and_large_values_413(memory):
    for key in ("x" * 256, "x" * 10_000):
        answer = memory.put(key, 1)
        assert answer.status_code == 422
        assert answer.json["errors"][0]["path"] == "key"
    assert memory.put("é" * 255, 1).status_code == 201
    assert code(memory.put("k", "x" * 5_000_000)) == (413, "value_too_large")
    fits = "x" * (working_memory.VALUE_MAX_BYTES - 2)
    assert memory.put("k", fits).status_code == 201
    assert code(memory.put("k", fits + "x")) == (413, "value_too_large")
    assert memory.value("k") == fits


def test_own_14_bytes_that_are_no_text_stand_for_their_escapes(memory):
    made = memory.api.put(f"{memory.base}/%ff", {"value": 1})
    assert made.json["key"] == "%FF"
    assert memory.value("%FF") == 1


def test_own_14_over_a_real_server(server, project, session, memory):
    headers = {"Authorization": f"Bearer {issue_key(project)}"}
    with httpx.Client(base_url=server.base_url, headers=headers, timeout=60) as client:
        for number, key in enumerate(AWKWARD):
            path = memory.path(key).replace("/.", "/%2E").replace("..", "%2E%2E")
            path = "/".join(
                "%2E" * len(part) if part in (".", "..") else part
                for part in path.split("/")
            )
            made = client.put(path, json={"value": number})
            assert made.status_code == 201, (key, made.text)
            assert client.get(path).json()["key"] == key
    assert {item["key"] for item in memory.list()["items"]} == set(AWKWARD)


# --- Listing


def test_the_list_is_in_order_and_by_cursor(memory):
    keys = [f"k{n:03}" for n in range(25)]
    for key in reversed(keys):
        memory.put(key, key)
    first = memory.list(limit=10)
    second = memory.list(limit=10, cursor=first["next"])
    third = memory.list(limit=10, cursor=second["next"])
    pages = (first, second, third)
    assert [item["key"] for page in pages for item in page["items"]] == keys
    assert third["next"] is None
    assert memory.api.get(memory.base, params={"cursor": "x"}).status_code == 422


def test_a_page_of_large_values_ends_early(memory):
    for n in range(20):
        memory.put(f"k{n:02}", "x" * 250_000)
    page = memory.list()
    assert 0 < len(page["items"]) < 20
    rest = memory.list(cursor=page["next"])
    assert len(page["items"]) + len(rest["items"]) == 20


def test_a_scope_has_room_for_so_many_keys(memory, monkeypatch):
    monkeypatch.setattr(working_memory, "ENTRIES_MAX", 5)
    for n in range(5):
        memory.put(f"k{n}", n)
    assert code(memory.put("k5", 5)) == (409, "working_memory_full")
    assert memory.put("k0", "again").status_code == 200
    memory.delete("k0")
    assert memory.put("k5", 5).status_code == 201


def test_expired_names_do_not_pile_up(memory, monkeypatch, redis):
    monkeypatch.setattr(working_memory, "EXPIRED_TOLD", 0)
    memory.put("old", 1)
    names = f"{memory.prefix}:expiries"
    redis.zadd(names, {"old": 1})
    memory.expire("old")
    memory.put("new", 1)
    assert redis.zrange(names, 0, -1) == [b"new"]


# --- The end of a session


def test_closing_a_session_ends_its_memory(memory, api, session, redis):
    memory.put("k", "sentinel")
    api.post(f"/api/v1/sessions/{session}/close", {})
    assert redis.exists(memory.raw("k")) == 0
    assert memory.list()["items"] == []
    assert code(memory.put("k", 1)) == (409, "session_closed")
    api.post(f"/api/v1/sessions/{session}/reopen", {})
    assert code(memory.get("k")) == (404, "entry_not_found")
    assert memory.put("k", 1).status_code == 201


def test_erasing_a_session_leaves_none_of_its_keys(memory, api, session):
    memory.put("k", "sentinel")
    memory.append("list", "sentinel")
    assert api.delete(f"/api/v1/sessions/{session}").status_code == 204
    assert [k for k in memory.stored() if b":entry:" in k or b":names" in k] == []
    assert code(memory.get("k")) == (404, "session_not_found")


def test_a_write_that_began_before_the_end_is_refused_after_it(
    memory, api, session, project
):
    """The view has read the session; the close commits; then the write arrives."""
    seq = api.get(f"/api/v1/sessions/{session}").json["last_seq"]
    before = working_memory.Scope(project.id, UUID(session), seq)
    api.post(f"/api/v1/sessions/{session}/close", {})
    with pytest.raises(working_memory.SessionClosed):
        working_memory.put_entry(before, "late", "sentinel")
    api.delete(f"/api/v1/sessions/{session}")
    with pytest.raises(working_memory.SessionClosed):
        working_memory.put_entry(before, "late", "sentinel")
    assert not any(b"late" in key for key in memory.stored())


def test_the_job_does_not_end_a_memory_twice(memory, api, session, project):
    """It runs late: what a reopened session has written since stays."""
    closed = api.post(f"/api/v1/sessions/{session}/close", {}).json
    api.post(f"/api/v1/sessions/{session}/reopen", {})
    memory.put("k", 1)
    end_working_memory(str(project.id), session, closed["last_seq"])
    assert memory.value("k") == 1


def test_what_could_not_end_for_want_of_redis_is_ended_by_the_job(
    memory, api, session, redis_away
):
    memory.put("k", "sentinel")
    with redis_away():
        assert api.delete(f"/api/v1/sessions/{session}").status_code == 204
    assert any(b":entry:" in key for key in memory.stored())
    job = ProcrastinateJob.objects.get(
        task_name="sessions_app.end_working_memory", args__session_id=session
    )
    assert "sentinel" not in str(job.args)
    end_working_memory(**job.args)
    assert not any(b":entry:" in key for key in memory.stored())


def test_a_rolled_back_erase_ends_nothing(memory, api, session, monkeypatch):
    memory.put("k", 1)
    with transaction.atomic():
        erase_session(memory_project(memory), UUID(session), actor="test")
        transaction.set_rollback(True)
    assert memory.value("k") == 1


def memory_project(memory):
    return UUID(memory.prefix.split(":")[2][1:])


# --- Redis away


def test_without_redis_it_says_so_at_once_and_comes_back(
    memory, make_key, redis_away, api, session
):
    memory.put("k", 1)
    unlimited = Memory(
        Api(make_key(rate_limit_per_minute=0)), session, memory_owner(memory), None
    )
    with redis_away():
        seconds = []
        for _ in range(20):
            began = time.perf_counter()
            answer = unlimited.get("k")
            seconds.append(time.perf_counter() - began)
            assert code(answer) == (503, "working_memory_unavailable")
            assert answer.headers["Retry-After"] == "1"
        assert min(seconds) < 0.5  # none waits; the machine may
        assert api.get(f"/api/v1/sessions/{session}").status_code == 200
    assert unlimited.value("k") == 1


class Owner:
    def __init__(self, project_id):
        self.id = project_id


def memory_owner(memory):
    return Owner(memory_project(memory))


# --- Who may


def test_reading_and_writing_need_their_scopes(memory, make_key, session):
    reader = Memory(Api(make_key(["sessions:read"])), session, memory_owner(memory), 0)
    writer = Memory(Api(make_key(["sessions:write"])), session, memory_owner(memory), 0)
    assert writer.put("k", 1).status_code == 201
    assert code(writer.get("k")) == (403, "missing_scope")
    assert reader.value("k") == 1
    for refused in (reader.put("k", 2), reader.increment("k"), reader.delete("k")):
        assert code(refused) == (403, "missing_scope")


def test_another_project_finds_no_session(memory, other_api):
    stranger = Memory(other_api, memory.session, memory_owner(memory), 0)
    memory.put("k", 1)
    assert code(stranger.get("k")) == (404, "session_not_found")
    assert code(stranger.put("k", 2)) == (404, "session_not_found")
    assert code(stranger.delete("k")) == (404, "session_not_found")


def test_a_bound_key_reaches_its_session_only(api, project, redis, make_key):
    mine, other = new_session(api, subject="u-1"), new_session(api, subject="u-2")
    for key in (make_key(session_id=UUID(mine)), make_key(subject="u-1")):
        bound = Api(key)
        assert Memory(bound, mine, project, redis).put("k", 1).status_code < 300
        assert code(Memory(bound, other, project, redis).put("k", 1))[0] == 404


def test_post_without_an_operation_is_405(memory):
    assert memory.api.post(memory.path("k"), {}).status_code == 405
