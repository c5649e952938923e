"""Bodies, parameters and entity tags: what is read, and what is refused."""

from decimal import Decimal

import pytest
from django.test import RequestFactory
from rest_framework import serializers
from rest_framework.request import Request

from agentstate.api.etags import ANY, etag, read_if_match, read_if_none_match
from agentstate.api.params import (
    CommaListField,
    Params,
    RepeatedParameter,
    UnknownParameter,
    read_params,
)
from agentstate.api.renderers import JSONRenderer
from agentstate.api.serializers import JSONObjectField, JSONValueField, StrictSerializer
from agentstate.codec import RawJSON
from agentstate.errors import FieldError


class Inner(StrictSerializer):
    size = serializers.IntegerField()


class Body(StrictSerializer):
    name = serializers.CharField(required=False)
    count = serializers.IntegerField(required=False)
    share = serializers.FloatField(required=False)
    is_new = serializers.BooleanField(required=False)
    at = serializers.DateTimeField(required=False)
    id = serializers.UUIDField(required=False)
    tags = serializers.ListField(child=serializers.CharField(), required=False)
    inner = Inner(required=False)
    items = Inner(many=True, required=False)
    value = JSONValueField(required=False)
    object = JSONObjectField(required=False, max_bytes=20)


def codes(data):
    body = Body(data=data)
    if body.is_valid():
        return {}
    return {
        name: str(details[0].code)
        for name, details in body.errors.items()
        if isinstance(details, list) and details and hasattr(details[0], "code")
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", 5),
        ("name", True),
        ("count", "5"),
        ("count", True),
        ("share", "0.5"),
        ("is_new", "true"),
        ("is_new", 1),
        ("at", 20260101),
        ("id", 5),
    ],
)
def test_a_value_of_another_json_type_is_refused(name, value):
    assert codes({name: value}) == {name: "wrong_type"}


def test_values_of_the_right_type_are_read():
    body = Body(
        data={
            "name": "5",
            "count": 5,
            "share": Decimal("0.5"),
            "is_new": False,
            "tags": ["a"],
            "inner": {"size": 1},
            "items": [{"size": 2}],
            "value": None,
            "object": {"a": None},
        }
    )
    assert body.is_valid(), body.errors
    assert body.validated_data["is_new"] is False
    assert body.validated_data["value"] is None


def test_an_item_of_a_list_is_refused_at_its_place():
    body = Body(data={"tags": ["a", 5]})
    assert not body.is_valid()
    assert body.errors["tags"][1][0].code == "wrong_type"


def test_an_unknown_field_is_refused_at_any_depth():
    assert codes({"nmae": "x"}) == {"nmae": "unknown_field"}
    body = Body(data={"inner": {"size": 1, "x": 1}, "items": [{"size": 1, "y": 1}]})
    assert not body.is_valid()
    assert body.errors["inner"]["x"][0].code == "unknown_field"
    assert body.errors["items"][0]["y"][0].code == "unknown_field"


def test_all_that_is_wrong_is_said_at_once():
    assert codes({"nmae": "x", "count": "x", "id": "x"}) == {
        "nmae": "unknown_field",
        "count": "wrong_type",
        "id": "invalid",
    }


def test_an_object_has_a_size():
    assert codes({"object": {"a": "x" * 20}}) == {"object": "too_large"}
    assert codes({"object": []}) == {"object": "not_an_object"}


class Wanted(Params):
    types = CommaListField(required=False)
    label = serializers.ListField(child=serializers.CharField(), required=False)
    live = serializers.BooleanField(required=False)
    at = serializers.IntegerField(required=False)


def params_of(query):
    return read_params(Request(RequestFactory().get(f"/?{query}")), Wanted)


def test_parameters_are_read_by_their_fields():
    read = params_of("types=a,b,,c%20&label=x:1&label=y:2&live=true&at=3")
    assert read == {
        "types": ["a", "b", "c"],
        "label": ["x:1", "y:2"],
        "live": True,
        "at": 3,
    }
    assert params_of("") == {}


@pytest.mark.parametrize("query", ["type=a", "at=1&x", "%00=1"])
def test_an_unknown_parameter_is_refused(query):
    with pytest.raises(UnknownParameter):
        params_of(query)


def test_a_parameter_stands_once():
    with pytest.raises(RepeatedParameter):
        params_of("at=1&at=1")


@pytest.mark.parametrize(
    ("header", "version"),
    [('"7"', 7), ("7", 7), (' "7" ', 7), ('W/"7"', 7), ("*", ANY), (None, None)],
)
def test_if_match_names_a_version(header, version):
    headers = {} if header is None else {"If-Match": header, "If-None-Match": header}
    request = Request(RequestFactory().get("/", headers=headers))
    assert read_if_match(request) == version
    assert read_if_none_match(request) == version


@pytest.mark.parametrize("header", ["", '"x"', '"7", "8"', '"-1"', '"' + "9" * 40])
def test_what_is_no_version_is_refused(header):
    request = Request(RequestFactory().get("/", headers={"If-Match": header}))
    with pytest.raises(FieldError):
        read_if_match(request)


def test_an_etag_reads_back():
    request = Request(RequestFactory().get("/", headers={"If-Match": etag(12)}))
    assert read_if_match(request) == 12


def test_raw_json_goes_out_as_it_is():
    text = '{"a" : 1.0,   "b":"\\u0000"}'
    render = JSONRenderer().render
    assert render(RawJSON(text)) == text.encode()
    assert render({"x": [RawJSON(text)]}) == f'{{"x":[{text}]}}'.encode()
    assert render(None) == b""
