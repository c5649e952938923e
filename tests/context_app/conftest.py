import pytest

from tests.context_app.handoffs import make_run
from tests.factories import SessionApi, make_session
from tests.fixtures import Api, issue_key, make_project

PINNED = "Account 7731-QX belongs to Ann and to nobody else"


@pytest.fixture(scope="module")
def subject_api(database) -> Api:
    """A project whose subject has one pinned fact."""
    api = Api(issue_key(make_project()))
    fact = {"subject": "ann", "fact": PINNED, "pinned": True}
    assert api.post("/api/v1/memory", fact).status_code == 201
    return api


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
