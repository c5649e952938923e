"""The retry policy, over a transport that loses answers when a real one cannot be made
to: what is tried again, with which key, after how long, and when it gives up."""

import itertools
import json
from datetime import datetime, timedelta, timezone

import httpx
import pytest

from agentstate_client import (
    AsyncClient,
    Client,
    Conflict,
    NotFound,
    RateLimited,
    Unavailable,
    ValidationError,
)
from agentstate_client.calls import events
from agentstate_client.connection import Connection
from agentstate_client.retry import Attempts, RetryPolicy, retry_after
from agentstate_client.streams import Follower

APPENDED = {"events": [{"id": "e-1", "seq": 1}], "last_seq": 1}
OK = httpx.Response(201, json=APPENDED)
IN_PROGRESS = httpx.Response(409, json={"code": "idempotency_in_progress"})


def lost(error):
    def answer(request):
        raise error("gone", request=request)

    return answer


def copy_of(response):
    """Return an unread response: one that a client has read serves no other."""
    return httpx.Response(
        response.status_code, headers=response.headers, content=response.content
    )


class Script:
    """Answers as told, one outcome a request; the last is repeated."""

    def __init__(self, *outcomes):
        self.outcomes = outcomes
        self.requests = []

    def __call__(self, request):
        self.requests.append(request)
        outcome = self.outcomes[min(len(self.requests), len(self.outcomes)) - 1]
        return outcome(request) if callable(outcome) else copy_of(outcome)

    def keys(self):
        return [request.headers["Idempotency-Key"] for request in self.requests]


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that the blocking client would have made."""
    slept = []
    monkeypatch.setattr("agentstate_client.client.time.sleep", slept.append)
    return slept


@pytest.fixture
def connect(pauses):
    def make(script, **options):
        transport = httpx.MockTransport(script)
        return Client("http://server", "key", transport=transport, **options)

    return make


def append(client, **options):
    return client.events.append("s-1", "message.user", {"content": "hi"}, **options)


@pytest.mark.parametrize(
    "outcome",
    [
        lost(httpx.ConnectError),
        lost(httpx.ConnectTimeout),
        lost(httpx.ReadError),
        lost(httpx.ReadTimeout),
        lost(httpx.WriteError),
        lost(httpx.PoolTimeout),
        lost(httpx.RemoteProtocolError),
        httpx.Response(502),
        httpx.Response(503, json={"code": "unavailable"}),
        httpx.Response(504, text="<html>gateway</html>"),
        httpx.Response(429, headers={"Retry-After": "2"}),
        IN_PROGRESS,
    ],
)
def test_a_write_is_tried_again_with_the_same_key_and_bytes(connect, outcome):
    script = Script(outcome, outcome, OK)
    assert append(connect(script)).last_seq == 1
    assert len(script.requests) == 3
    assert len(set(script.keys())) == 1
    assert len({request.content for request in script.requests}) == 1


def test_each_write_has_a_key_of_its_own(connect):
    script = Script(OK)
    client = connect(script)
    append(client)
    append(client)
    assert len(set(script.keys())) == 2


def test_a_key_given_by_the_caller_is_the_one_sent(connect):
    script = Script(OK)
    append(connect(script), idempotency_key="turn-7")
    assert script.keys() == ["turn-7"]


def test_reads_are_tried_again_without_a_key(connect):
    script = Script(httpx.Response(503), httpx.Response(200, json={"id": "s-1"}))
    assert connect(script).sessions.get("s-1").id == "s-1"
    assert "Idempotency-Key" not in script.requests[0].headers


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ValidationError),
        (404, NotFound),
        (409, Conflict),
        (422, ValidationError),
        (500, Exception),
    ],
)
def test_a_refusal_is_final(connect, status, error):
    script = Script(httpx.Response(status, json={"code": "x", "detail": "no"}), OK)
    with pytest.raises(error):
        append(connect(script))
    assert len(script.requests) == 1


def test_gives_up_after_max_retries_and_names_the_key(connect):
    script = Script(lost(httpx.ConnectError))
    with pytest.raises(Unavailable) as caught:
        append(connect(script, max_retries=3))
    assert len(script.requests) == 4
    assert caught.value.code == "unreachable"
    assert caught.value.idempotency_key == script.keys()[0]
    assert isinstance(caught.value.__cause__, httpx.ConnectError)


def test_the_last_answer_is_the_error(connect):
    answer = httpx.Response(503, json={"code": "database_unavailable", "detail": "d"})
    with pytest.raises(Unavailable) as caught:
        append(connect(Script(answer), max_retries=1))
    assert (caught.value.status, caught.value.code) == (503, "database_unavailable")
    assert caught.value.idempotency_key


def test_waits_as_long_as_the_server_asks(connect, pauses):
    limited = httpx.Response(429, headers={"Retry-After": "7"})
    append(connect(Script(limited, OK)))
    assert 7 <= pauses[0] < 8


def test_does_not_wait_beyond_the_deadline(connect, pauses):
    limited = httpx.Response(429, headers={"Retry-After": "60"})
    with pytest.raises(RateLimited):
        append(connect(Script(limited, OK), deadline=30))
    assert pauses == []


def test_no_try_may_take_longer_than_what_the_deadline_leaves(connect):
    script = Script(OK)
    append(connect(script, deadline=3, timeout=30))
    assert script.requests[0].extensions["timeout"]["read"] <= 3


def test_nan_is_refused_before_anything_is_sent(connect):
    script = Script(OK)
    with pytest.raises(ValueError, match="JSON"):
        connect(script).events.append("s-1", "message.user", {"x": float("nan")})
    assert script.requests == []


def test_large_integers_travel_digit_for_digit(connect):
    script = Script(OK)
    number = 184467440737095516150
    connect(script).events.append("s-1", "a.b", {"n": number, "s": "a\0b"})
    event = json.loads(script.requests[0].content)["events"][0]
    assert event["payload"] == {"n": number, "s": "a\0b"}


def test_an_id_cannot_lead_to_another_address(connect):
    script = Script(httpx.Response(200, json={"id": "x"}))
    client = connect(script)
    client.sessions.get("a/../b?c")
    assert script.requests[0].url.raw_path == b"/api/v1/sessions/a%2F..%2Fb%3Fc"
    for bad in ("", ".", ".."):
        with pytest.raises(ValueError, match="not an id"):
            client.sessions.get(bad)


def test_a_page_that_is_not_json_says_so(connect):
    script = Script(httpx.Response(200, text="<html>"))
    with pytest.raises(Exception, match="not JSON"):
        connect(script).sessions.get("s-1")


def test_a_redirect_is_not_followed_with_the_key(connect):
    script = Script(httpx.Response(301, headers={"Location": "http://other/"}))
    with pytest.raises(Exception, match="base_url"):
        append(connect(script))
    assert len(script.requests) == 1


def sse(text):
    headers = {"Content-Type": "text/event-stream"}
    return httpx.Response(200, headers=headers, content=text)


def test_a_stream_resumes_behind_what_it_has_handed_out(connect):
    script = Script(
        sse('id: 1\ndata: {"id": "a", "seq": 1, "type": "a.b"}\n\nid: 2\ndata: {"id'),
        lost(httpx.ReadError),
        sse('id: 2\ndata: {"id": "b", "seq": 2, "type": "a.b"}\n\n'),
    )
    stream = connect(script).events.stream("s-1")
    assert [next(stream).seq, next(stream).seq] == [1, 2]
    stream.close()
    asked = [request.headers.get("Last-Event-ID") for request in script.requests]
    assert asked == [None, "1", "1"]


def test_a_message_without_data_moves_the_place_to_resume_from(connect):
    event = '{"id": "a", "seq": 1, "type": "a.b", "session": "s-1"}'
    script = Script(sse("id: p-1\n\n"), sse(f"id: p-2\ndata: {event}\n\n"))
    stream = connect(script).feed.stream(types=["a.*"])
    assert next(stream).position == "p-2"
    stream.close()
    assert script.requests[1].headers["Last-Event-ID"] == "p-1"


@pytest.mark.parametrize("said", ["", "retry: 1000\n\n", ": welcome\n\n"])
def test_a_stream_that_ends_at_once_is_given_up(connect, said):
    script = Script(sse(said))
    with pytest.raises(Unavailable, match="ends at once"):
        next(connect(script, max_retries=2).events.stream("s-1"))
    assert len(script.requests) == 3


EVENT = 'id: {n}\ndata: {{"id": "e", "seq": {n}, "type": "a.b"}}\n\n'


def test_each_event_gives_a_stream_all_its_tries_again(connect):
    outcomes = [[lost(httpx.ReadError), sse(EVENT.format(n=n))] for n in range(1, 6)]
    script = Script(*itertools.chain(*outcomes))
    stream = connect(script, max_retries=2).events.stream("s-1")
    assert [next(stream).seq for _ in range(5)] == [1, 2, 3, 4, 5]
    stream.close()


def follower_of(policy):
    connection = Connection("http://server", "key", 30, policy)
    follower, clock = Follower(events.stream("s-1"), connection), FakeClock()
    follower._exchange.attempts = Attempts(policy, clock=clock)
    return follower, clock


def test_a_reader_may_take_longer_than_the_deadline_over_an_event():
    follower, clock = follower_of(RetryPolicy())
    follower.options()
    follower.delay_after_answer(httpx.Response(200))
    assert [event.seq for event in follower.feed(EVENT.format(n=1).encode())] == [1]
    clock.now += 1000
    assert follower.delay_after_failure(httpx.ReadError("cut")) < 1


def test_a_stream_that_only_keeps_alive_is_not_given_up():
    follower, clock = follower_of(RetryPolicy(max_retries=1))
    for _ in range(5):
        follower.options()
        follower.delay_after_answer(httpx.Response(200))
        assert list(follower.feed(b": still here\n\n")) == []
        clock.now += 60
        follower.delay_after_failure(httpx.ReadError("cut"))


@pytest.mark.asyncio
async def test_async_retries_in_the_same_way():
    async def answer(request):
        return script(request)

    script = Script(lost(httpx.ReadError), httpx.Response(503), IN_PROGRESS, OK)
    transport = httpx.MockTransport(answer)
    async with AsyncClient("http://server", "key", transport=transport) as client:
        result = await client.events.append("s-1", "message.user", {"content": "hi"})
    assert result.last_seq == 1
    assert len(set(script.keys())) == 1 and len(script.keys()) == 4


class FakeClock:
    now = 100.0

    def __call__(self):
        return self.now


def attempts_of(policy, chance=1.0):
    clock = FakeClock()
    return Attempts(policy, clock=clock, chance=lambda: chance), clock


def test_backoff_doubles_up_to_its_cap():
    policy = RetryPolicy(max_retries=6, first_delay=0.5, max_delay=4, deadline=1000)
    attempts, _ = attempts_of(policy)
    delays = list(itertools.takewhile(lambda d: d is not None, each(attempts)))
    assert delays == [0.5, 1, 2, 4, 4, 4]


def each(attempts):
    while True:
        yield attempts.delay()


def test_jitter_is_full():
    policy = RetryPolicy(first_delay=1)
    assert attempts_of(policy, chance=0.0)[0].delay() == 0
    assert attempts_of(policy, chance=0.25)[0].delay() == 0.25
    assert policy.backoff(5000, 1.0) == policy.max_delay


def test_the_deadline_counts_from_the_first_try_and_reset_begins_anew():
    attempts, clock = attempts_of(RetryPolicy(deadline=10, first_delay=1))
    clock.now += 9.5
    assert attempts.delay() is None
    attempts.reset()
    assert attempts.delay() == 1


def test_retry_after_may_be_a_date():
    later = datetime.now(timezone.utc) + timedelta(seconds=30)
    text = later.strftime("%a, %d %b %Y %H:%M:%S GMT")
    seconds = retry_after(httpx.Response(503, headers={"Retry-After": text}))
    assert 25 < seconds <= 30


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "²"])
def test_a_retry_after_that_makes_no_sense_is_ignored(text):
    headers = [(b"Retry-After", text.encode())]
    assert retry_after(httpx.Response(503, headers=headers)) == 0


def test_a_key_with_a_line_end_is_the_key_without(pauses):
    client = Client("http://server", "secret\n")
    assert client.connection.api_key == "secret"
    assert "secret" not in repr(client.connection)


def test_a_retry_is_told_in_the_log(connect, caplog):
    with caplog.at_level("INFO", logger="agentstate_client"):
        append(connect(Script(httpx.Response(503), OK)))
    [record] = [r for r in caplog.records if r.name == "agentstate_client"]
    assert "HTTP 503" in record.getMessage()
