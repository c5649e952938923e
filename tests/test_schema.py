from io import StringIO
from pathlib import Path

from django.core.management import call_command

COMMITTED = Path(__file__).resolve().parent.parent / "docs" / "openapi.yaml"


def test_the_committed_schema_is_current():
    """If this fails, run `make schema` and look at what changed."""
    current = StringIO()
    call_command("spectacular", validate=True, fail_on_warn=True, stdout=current)
    assert current.getvalue() == COMMITTED.read_text()
