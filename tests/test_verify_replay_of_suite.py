"""The log of everything that the suite did is folded anew; the rows must equal it.

Tests that damage rows on purpose do so in a transaction that they roll back. With
pytest-xdist tests/verification.py looks at each worker's database at the end.
"""

import os
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from sessions_app.models import Event, Session

pytestmark = [
    pytest.mark.last,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "PYTEST_XDIST_WORKER" in os.environ, reason="done at the end of the run"
    ),
]


def test_every_row_of_the_suite_equals_its_log() -> None:
    out = StringIO()
    try:
        call_command("verify_replay", stdout=out)
    except CommandError:
        pytest.fail(out.getvalue()[:10_000])


def test_there_was_something_to_verify(request: pytest.FixtureRequest) -> None:
    if request.session.testscollected < 50:
        pytest.skip("only a part of the suite was asked for")
    assert Session.objects.exists()
    assert Event.objects.filter(seq__gte=1).exists()
