"""Every refusal is application/problem+json, and none gives anything away."""

import socket
from io import BytesIO

import httpx
import pytest
from django.core.handlers.wsgi import WSGIRequest
from django.db import DataError, OperationalError
from django.http import Http404
from django.test import RequestFactory
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError

from access_app.api.project import ProjectView
from access_app.models import Project
from agentstate.api import errors
from agentstate.api.errors import describe, flat_errors
from agentstate.api.parsers import IncompleteBody, read_body
from agentstate.errors import AppError, FieldError
from agentstate.wsgi import application

URL = "/api/v1/project"


def check_problem(answer, status, code):
    assert (answer.status_code, answer.json["code"]) == (status, code), answer
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json["status"] == status
    assert {"type", "title", "detail"} <= set(answer.json)


def test_malformed_json_is_400(api):
    check_problem(api.patch(URL, data=b'{"name": '), 400, "malformed_json")


def test_bytes_that_are_no_utf8_are_400(api):
    check_problem(api.patch(URL, data=b'{"name": "\xff"}'), 400, "malformed_json")


def test_a_blank_body_is_400(api):
    check_problem(api.patch(URL, data=b" \n"), 400, "empty_body")


def test_no_body_is_an_empty_object(api):
    answer = api.post("/api/v1/keys", data=b"")
    check_problem(answer, 422, "invalid")
    assert answer.json["errors"][0]["path"] == "scopes"


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "", "x"]
)
def test_another_content_type_is_415(api, content_type):
    answer = api.patch(URL, data=b'{"name": "x"}', content_type=content_type)
    check_problem(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "Application/JSON"]
)
def test_json_by_any_spelling_is_read(api, content_type):
    answer = api.patch(URL, data=b'{"settings": {}}', content_type=content_type)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "parameters",
    ["; charset*=foo''x", "; charset*=idna''%ff", "; a=" + "b" * 11_000, "x" * 11_000],
)
def test_a_content_type_that_cannot_be_read_is_no_server_error(api, parameters):
    environ = RequestFactory()._base_environ(
        PATH_INFO=URL,
        CONTENT_TYPE=f"application/json{parameters}",
        HTTP_AUTHORIZATION=f"Bearer {api.key}",
    )
    statuses = []
    response = application(environ, lambda status, headers: statuses.append(status))
    body = b"".join(response)
    response.close()
    assert statuses == ["200 OK"], body


def test_an_accept_header_of_any_kind_gets_json(api):
    answer = api.get(URL, headers={"Accept": "text/html"})
    assert answer.headers["Content-Type"] == "application/json"


def test_a_method_that_is_not_there_is_405(api):
    answer = api.delete(URL)
    check_problem(answer, 405, "method_not_allowed")
    assert answer.headers["Allow"] == "GET, PATCH, HEAD"


def test_a_body_over_the_limit_is_413(api, settings):
    settings.REQUEST_MAX_BYTES = 100
    answer = api.patch(URL, {"settings": {"a": "x" * 100}})
    check_problem(answer, 413, "body_too_large")
    assert answer.json["limit_bytes"] == 100


def test_a_body_shorter_than_it_says_is_400():
    environ = RequestFactory()._base_environ(
        **{"CONTENT_LENGTH": "1000", "wsgi.input": BytesIO(b"{}")}
    )
    with pytest.raises(IncompleteBody):
        read_body(WSGIRequest(environ))


def test_a_body_of_unknown_length_is_411(api):
    answer = api.client.generic(
        "PATCH",
        URL,
        b'{"settings": {"a": 1}}',
        content_type="application/json",
        headers={
            "Authorization": f"Bearer {api.key}",
            "Transfer-Encoding": "chunked",
        },
        CONTENT_LENGTH="",
    )
    assert (answer.status_code, answer.json()["code"]) == (411, "length_required")


def test_an_address_that_is_not_there_is_a_problem_too(api):
    check_problem(api.get("/api/v1/nothing/here"), 404, "not_found")


def test_pages_outside_the_api_keep_their_own_errors(api):
    answer = api.get("/nothing/here")
    assert answer.status_code == 404
    assert answer.headers["Content-Type"].startswith("text/html")


def test_a_wrong_host_is_a_problem_in_the_api(api):
    check_problem(api.get(URL, headers={"Host": "evil.example"}), 400, "bad_request")


def test_what_cannot_be_kept_is_422_with_its_path(api):
    answer = api.patch(URL, data=b'{"settings": {"a": [1, NaN]}}')
    assert answer.status_code == 422
    assert answer.json["errors"][0]["path"] == "settings.a[1]"


def test_an_unexpected_exception_is_a_500_that_leaks_nothing(api, monkeypatch, caplog):
    def fail(*args):
        raise RuntimeError("secret of the house")

    monkeypatch.setattr(ProjectView, "get", fail)
    answer = api.get(URL)
    check_problem(answer, 500, "internal_error")
    assert b"secret" not in answer.content
    assert "secret of the house" in caplog.text


def test_a_database_that_is_away_is_503_with_retry_after(api, monkeypatch):
    def fail(*args):
        raise OperationalError("couldn't get a connection after 10.00 sec")

    monkeypatch.setattr(ProjectView, "get", fail)
    answer = api.get(URL)
    check_problem(answer, 503, "database_unavailable")
    assert answer.headers["Retry-After"] == "1"
    assert b"10.00" not in answer.content


def test_a_failure_in_a_write_rolls_it_back(api, project, monkeypatch):
    """With an Idempotency-Key the handler runs in the transaction of its record."""

    def half(self, request):
        Project.objects.filter(pk=project.pk).update(settings={"half": True})
        raise RuntimeError

    monkeypatch.setattr(ProjectView, "patch", half)
    api.patch(URL, {"name": "x"}, headers={"Idempotency-Key": "k"})
    assert Project.objects.get(pk=project.pk).settings == {}


@pytest.mark.parametrize(
    ("exc", "status", "code"),
    [
        (Http404(), 404, "not_found"),
        (Project.DoesNotExist(), 404, "not_found"),
        (DataError("out of range"), 422, "invalid"),
        (KeyError("x"), 500, "internal_error"),
        (FieldError("a[0].b", "bad", "no"), 422, "invalid"),
    ],
)
def test_exceptions_have_their_answers(exc, status, code):
    found, body, _ = describe(exc)
    assert (found, body["code"], body["status"]) == (status, code, status)


def test_an_app_error_brings_its_detail_extras_and_headers():
    class TooHot(AppError):
        """It is too hot.

        What follows is for developers.
        """

        code, status = "too_hot", 409

    status, body, headers = describe(TooHot(degrees=40, headers={"X-Cool": "1"}))
    assert (status, headers) == (409, {"X-Cool": "1"})
    assert body["detail"] == "It is too hot."
    assert body["degrees"] == 40
    assert body["type"].endswith(":too_hot")


def test_nested_errors_have_json_paths():
    class Item(serializers.Serializer):
        content = serializers.CharField()

    class Body(serializers.Serializer):
        events = Item(many=True)
        tags = serializers.ListField(child=serializers.IntegerField())
        labels = serializers.DictField(child=serializers.CharField(max_length=1))

    body = Body(
        data={
            "events": [{"content": "x"}, {}],
            "tags": [1, "x"],
            "labels": {"a b": "xx"},
        }
    )
    assert not body.is_valid()
    errors_found = flat_errors(ValidationError(body.errors).get_full_details())
    assert {(e["path"], e["code"]) for e in errors_found} == {
        ("events[1].content", "required"),
        ("tags[1]", "invalid"),
        ('labels["a b"]', "max_length"),
    }


def test_errors_of_the_whole_stand_at_the_root():
    details = {"non_field_errors": [ErrorDetail("no", code="bad")]}
    [error] = flat_errors(ValidationError(details).get_full_details())
    assert error == {"path": "$", "code": "bad", "detail": "no"}


def test_django_itself_answers_problems_under_api():
    for path, content_type in (
        ("/api/v1/x", "application/problem+json"),
        ("/x", "text/html"),
    ):
        request = RequestFactory().get(path)
        for handler, arguments in (
            (errors.handler400, [Exception()]),
            (errors.handler403, [Exception()]),
            (errors.handler404, [Exception()]),
            (errors.handler500, []),
        ):
            answer = handler(request, *arguments)
            assert answer["Content-Type"].startswith(content_type)
            assert str(answer.status_code) in handler.__name__


def test_a_real_chunked_body_is_read_whole(server, make_key, project):
    answer = httpx.patch(
        f"{server.base_url}{URL}",
        content=iter([b'{"settings":', b' {"a":', b" 1}}"]),
        headers={
            "Authorization": f"Bearer {make_key()}",
            "Content-Type": "application/json",
        },
    )
    assert answer.status_code == 200
    assert Project.objects.get(pk=project.pk).settings == {"a": 1}


def test_a_body_cut_off_by_a_lost_connection_changes_nothing(server, make_key, project):
    head = (
        f"PATCH {URL} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {make_key()}\r\nContent-Length: 40\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + b'{"settings": {"cut": true}}')
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(30)
        while connection.recv(1000):
            pass
    assert Project.objects.get(pk=project.pk).settings == {}
    assert server.get("/healthz").status_code == 200
