import pytest

from tests.factories import SessionApi, make_session
from tests.runs_app.conftest import giver, runs, work  # noqa: F401


@pytest.fixture
def session(api) -> SessionApi:
    """An open session of `project`, over `api`."""
    return make_session(api)
