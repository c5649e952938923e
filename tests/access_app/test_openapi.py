"""What the OpenAPI document says of every call, and that views keep the rules."""

import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from drf_spectacular.generators import SchemaGenerator

from access_app.api.views import ANY_KEY, ApiView
from access_app.scopes import SCOPES

METHODS = ("get", "post", "put", "patch", "delete")


@pytest.fixture(scope="module")
def schema():
    return SchemaGenerator().get_schema(public=True)


def operations(schema):
    for path, item in schema["paths"].items():
        for method in METHODS:
            if method in item:
                yield f"{method.upper()} {path}", item[method]


def api_views(patterns=None, found=None):
    found = [] if found is None else found
    for each in get_resolver().url_patterns if patterns is None else patterns:
        if isinstance(each, URLResolver):
            api_views(each.url_patterns, found)
        elif isinstance(each, URLPattern):
            view = getattr(each.callback, "cls", None)
            if isinstance(view, type) and issubclass(view, ApiView):
                found.append(view)
    return found


def test_every_method_of_every_view_names_its_scope():
    views = api_views()
    assert views
    for view in views:
        handlers = {m.upper() for m in METHODS if hasattr(view, m)}
        assert handlers <= set(view.scopes), view
        assert set(view.scopes.values()) <= {*SCOPES, ANY_KEY}, view


def test_it_is_openapi_3_1(schema):
    assert schema["openapi"].startswith("3.1")


def test_every_operation_has_a_summary_and_an_id_of_its_own(schema):
    ids = [operation["operationId"] for _, operation in operations(schema)]
    assert len(ids) == len(set(ids))
    for name, operation in operations(schema):
        assert operation["summary"], name


def test_every_answer_with_a_body_has_an_example(schema):
    for name, operation in operations(schema):
        for status, response in operation["responses"].items():
            for content in response.get("content", {}).values():
                assert content.get("examples"), (name, status)


def test_every_operation_may_be_refused_as_a_problem(schema):
    for name, operation in operations(schema):
        for status in ("401", "403", "422", "429", "503"):
            content = operation["responses"][status]["content"]
            reference = content["application/problem+json"]["schema"]["$ref"]
            assert reference.endswith("/Problem"), name


def test_every_write_takes_an_idempotency_key(schema):
    for name, operation in operations(schema):
        headers = {p["name"] for p in operation.get("parameters", [])}
        assert ("Idempotency-Key" in headers) == (not name.startswith("GET")), name


def test_every_body_has_an_example(schema):
    for name, operation in operations(schema):
        for content in operation.get("requestBody", {}).get("content", {}).values():
            assert content.get("examples"), name


def test_a_key_may_be_sent_in_either_header(schema):
    schemes = schema["components"]["securitySchemes"]
    assert schemes["bearerKey"]["scheme"] == "bearer"
    assert schemes["headerKey"]["name"] == "X-API-Key"
    for name, operation in operations(schema):
        assert operation["security"] == [{"bearerKey": []}, {"headerKey": []}], name
