import json
from io import StringIO
from pathlib import Path

import yaml
from django.core.management import call_command

COMMITTED = Path(__file__).resolve().parent.parent / "docs" / "openapi.yaml"


def test_the_committed_schema_is_current():
    """If this fails, run `make schema` and look at what changed."""
    current = StringIO()
    call_command("spectacular", validate=True, fail_on_warn=True, stdout=current)
    assert current.getvalue() == COMMITTED.read_text()


def test_the_server_tells_the_same_schema(client):
    answer = client.get("/api/v1/schema")
    assert answer["Content-Type"] == "application/vnd.oai.openapi"
    assert answer.content.decode() == COMMITTED.read_text()
    told = client.get("/api/v1/schema", headers={"Accept": "application/json, */*"})
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    assert json.loads(told.content) == json.loads(
        json.dumps(yaml.load(COMMITTED.read_text(), loader), default=str)
    )
    assert client.get("/api/v1/schema?format=json").content == told.content
    again = client.get("/api/v1/schema", headers={"If-None-Match": answer["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
