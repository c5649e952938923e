"""Every call is tried with what its own OpenAPI allows, and with what it does not.

Whatever is sent to the real server: no 5xx, and no status, media type or body that the
document does not announce.
"""

import warnings
from functools import cache

import pytest
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, given, settings

from tests.artifacts.calls import upload
from tests.factories import calls, make_session
from tests.fixtures import Api, issue_key, make_project

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
PATHS = r"^/api/v1/(?!.*stream)"
EXAMPLES = 5
NO_HTTP = "Invalid HTTP request received."


@cache
def operations():
    document = SchemaGenerator().get_schema(request=None, public=True)
    schema = schemathesis.openapi.from_dict(document).include(path_regex=PATHS)
    found = [result.ok() for result in schema.get_all_operations()]
    assert len(found) >= 100
    return {operation.label: operation for operation in found}


@pytest.fixture(scope="module")
def contract_api(database):
    return Api(issue_key(make_project()))


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("label", operations())
def test_a_call_answers_as_its_document_says(server, contract_api, label, mode):
    operation = operations()[label]
    session = make_session(contract_api, state={"n": 1})
    session.append("hello", calls("c"))
    headers = {"Authorization": f"Bearer {contract_api.key}"}
    artifact = upload(session, b"some bytes").json["id"]
    ids = {"session_id": session.id, "artifact_id": artifact}

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def check(case):
        # Of a session that is there: one made up would be 404 whatever else is sent.
        known = ids.keys() & case.path_parameters.keys()
        case.path_parameters |= {name: ids[name] for name in known}
        response = case.call(base_url=server.base_url, headers=headers, timeout=120)
        if response.text == NO_HTTP:
            return  # too long a line for the web server: no call that we could answer
        case.validate_response(response, checks=CHECKS)

    check()
