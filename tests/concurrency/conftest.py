import pytest

from tests.factories import SessionApi, make_session


@pytest.fixture
def session(api) -> SessionApi:
    """An open session of `project`, over `api`."""
    return make_session(api)
