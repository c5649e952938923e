import json
import logging

from django.test import Client

from agentstate import logs

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def formatted(**extra):
    record = logging.makeLogRecord({"name": "agentstate", "msg": "done", **extra})
    return json.loads(logs.JSONFormatter().format(record))


def test_a_line_is_one_json_object_with_its_extra():
    line = logs.JSONFormatter().format(
        logging.makeLogRecord({"msg": "two\nlines", "session": "s-1"})
    )
    assert "\n" not in line
    assert json.loads(line)["message"] == "two\nlines"
    assert json.loads(line)["session"] == "s-1"


def test_an_exception_is_in_the_line():
    try:
        raise ValueError("no")
    except ValueError as exc:
        found = formatted(exc_info=(ValueError, exc, exc.__traceback__))
    assert "ValueError: no" in found["exception"]


def test_what_is_not_json_is_written_as_text():
    assert formatted(thing={1, 2})["thing"] == "{1, 2}"


def test_lines_within_a_request_hold_its_ids():
    context = logs.RequestContext.read("r-1", f"00-{TRACE}-{SPAN}-01")
    token = logs.current.set(context)
    try:
        found = formatted()
    finally:
        logs.current.reset(token)
    assert (found["request_id"], found["trace_id"]) == ("r-1", TRACE)
    assert found["span_id"] == SPAN
    assert "request_id" not in formatted()


def test_a_traceparent_that_does_not_parse_is_ignored():
    assert logs.RequestContext.read("r-1", "00-zz-1-01").trace_id is None


def test_the_callers_request_id_is_given_back():
    answer = Client().get("/healthz", headers={"X-Request-ID": "mine-1"})
    assert answer["X-Request-ID"] == "mine-1"


def test_a_request_id_that_could_forge_a_line_is_replaced():
    answer = Client().get("/healthz", headers={"X-Request-ID": 'a"}\x0b{'})
    assert answer["X-Request-ID"] != 'a"}\x0b{'
