import pytest

from tests.context_app.handoffs import make_run
from tests.factories import SessionApi, make_session


@pytest.fixture
def session(api) -> SessionApi:
    """An open session of `project`, over `api`."""
    return make_session(api)


@pytest.fixture
def triage(api):
    """A session of the agent triage with a run under way."""
    session = make_session(api, agent="triage", subject="ann")
    session.run = make_run(session)
    return session
