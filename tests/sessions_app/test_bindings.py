"""Who may see what: tenants (AU-01), keys bound to a subject or to a session, scopes.

Driven by the API's own OpenAPI, so that a new call is covered without a word here.
"""

import itertools
from copy import deepcopy
from functools import cache, cached_property
from uuid import uuid4

import pytest
from django.urls import resolve
from drf_spectacular.generators import SchemaGenerator

from agentstate import codec
from tests.factories import (
    MISSING,
    SESSIONS,
    SessionApi,
    calls,
    fetch,
    make_session,
    says,
)
from tests.fixtures import Api, issue_key, make_project

METHODS = {"get", "post", "put", "patch", "delete"}


@cache
def operations():
    """(method, path) -> operation of every call, from the schema."""
    schema = SchemaGenerator().get_schema(request=None, public=True)
    return {
        (method.upper(), path): methods[method]
        for path, methods in sorted(schema["paths"].items())
        for method in sorted(METHODS & methods.keys())
    }


def with_ids():
    found = [pair for pair in operations() if "{" in pair[1]]
    assert len(found) > 15
    return found


def body_of(operation):
    """A body that the call takes, so that nothing but the id can be refused."""
    content = operation.get("requestBody", {}).get("content", {})
    for media in content.values():
        for example in media.get("examples", {}).values():
            body = deepcopy(example["value"])
            if isinstance(body, dict):
                body.pop("expected_version", None)
            return body
    return None


def call(api, method, path, ids, version=1):
    operation = operations()[method, path]
    headers = {"If-Match": f'"{version}"'}
    if (method, path.rpartition("/")[2]) == ("DELETE", "lock"):
        headers["X-Lock-Token"] = MISSING
    for name, value in ids.items():
        path = path.replace(f"{{{name}}}", value)
    assert "{" not in path
    return api.request(
        method,
        path,
        json=body_of(operation) if method != "GET" else None,
        params={"at_seq": 0} if path.endswith("/replay") else None,
        headers=headers,
    )


def nobody_s(name, value):
    """An id that nothing has; a name of the client's own stays as it is."""
    if not name.endswith("id"):
        return value
    return "999999999" if value.isdigit() else MISSING


@pytest.fixture(scope="module")
def world(database):
    """Two projects, each with one of everything that has an id."""
    return [Tenant(), Tenant()]


class Tenant:
    def __init__(self):
        self.project = make_project()
        self.api = Api(issue_key(self.project))
        self.session = make_session(self.api, subject="u-1", state={"n": 1})
        self.session.append("hello", calls("c"))
        self.key = self.api.post(
            "/api/v1/keys", {"name": "k", "scopes": ["sessions:read"]}
        ).json["id"]

    @cached_property
    def ids(self):
        """The values of every path parameter that the schema names."""
        names = {
            part[1:-1]
            for _, path in with_ids()
            for part in path.split("/")
            if part.startswith("{")
        }
        known = {
            "session_id": self.session.id,
            "key_id": self.key,
            "member_id": "1",
            "subject": "u-1",
            "seq": "1",
        }
        return {name: known.get(name) or str(uuid4()) for name in names}

    def contents(self):
        """Every row of the project, as text."""
        tables = fetch(
            "SELECT table_name FROM information_schema.columns"
            " WHERE column_name = 'project_id' AND table_schema = 'public'"
        )
        rows = {}
        for (table,) in tables:
            if table != "access_idempotency":
                rows[table] = sorted(
                    fetch(
                        f'SELECT t::text FROM "{table}" t WHERE project_id = %s',
                        self.project.id,
                    )
                )
        # A key's last use is written once a minute, whoever calls.
        rows["access_key"] = len(rows.get("access_key", []))
        return rows


def same_problem(a, b):
    """Equal but for the ids that were asked for."""
    return a.status_code == b.status_code and a.json == b.json


@pytest.mark.parametrize(("method", "path"), with_ids())
def test_au_01_anothers_id_is_answered_like_an_id_of_nobody(world, method, path):
    victim, attacker = world
    before = victim.contents()
    foreign = call(attacker.api, method, path, victim.ids)
    nobodys = {n: nobody_s(n, value) for n, value in victim.ids.items()}
    unknown = call(attacker.api, method, path, nobodys)
    assert foreign.status_code == unknown.status_code
    if "id}" in path:
        assert foreign.status_code in (404, 503), foreign
        assert same_problem(foreign, unknown), (foreign, unknown)
    assert victim.session.id.encode() not in foreign.content
    if "{session_id}" in path:
        assert foreign.json["code"] == "session_not_found"
    assert victim.contents() == before


OWN_PATHS = [
    (method, path)
    for method, path in with_ids()
    if "{session_id}" in path and path.count("{") == 1
]


@pytest.mark.parametrize(("method", "path"), OWN_PATHS)
def test_au_01_the_owner_is_not_told_404(method, path):
    """The calls above are ones that work: else their 404 would prove nothing."""
    owner = Tenant()
    owner.session.put_state({"step": "identify", "cart": []}, 1)
    answer = call(owner.api, method, path, owner.ids, version=2)
    if method == "DELETE" and path.endswith("/lock"):
        assert answer.json["code"] == "lock_lost"
    elif path.endswith("/fork"):
        assert answer.status_code in (201, 404)  # the example's seq may not be there
    elif path.endswith("/stream"):
        assert answer.json["code"] == "stream_only"
    else:
        # A call of another app may find the example out of place, never the session.
        assert answer.status_code not in (401, 403, 404), answer
        assert answer.status_code < 500, answer


def test_au_01_lists_and_the_feed_hold_nothing_of_others():
    victim, attacker = Tenant(), Tenant()
    needles = [victim.session.id, victim.key, str(victim.project.id)]
    for method, path in operations():
        if method != "GET" or "{" in path:
            continue
        answer = attacker.api.get(path)
        assert answer.status_code in (200, 422, 503), (path, answer)
        for needle in needles:
            assert needle.encode() not in answer.content, path
    for name, value in (("session", victim.session.id), ("agent", "x")):
        assert (
            attacker.api.get("/api/v1/events", params={name: value}).json["items"] == []
        )
    assert (
        attacker.api.get(SESSIONS, params={"parent": victim.session.id}).json["items"]
        == []
    )


def test_au_01_a_cursor_of_another_project_shows_nothing_of_it(world):
    victim, attacker = world
    theirs = victim.api.get("/api/v1/events", params={"limit": 1}).json["next"]
    page = attacker.api.get("/api/v1/events", params={"after": theirs}).json
    assert victim.session.id not in codec.dumps(page)


def test_without_a_key_nothing_is_answered(world, anonymous):
    victim, _ = world
    for (method, path), operation in operations().items():
        if operation.get("security") in ([], [{}]):
            continue
        answer = call(anonymous, method, path, victim.ids)
        assert answer.status_code == 401, (method, path)
        assert answer.headers["WWW-Authenticate"]


@pytest.mark.parametrize(("method", "path"), OWN_PATHS)
def test_a_bound_key_reaches_its_own_and_nothing_else(project, api, method, path):
    own = make_session(api, subject="u-1", state={"step": "x", "cart": []})
    other = make_session(api, subject="u-2", state={"step": "x", "cart": []})
    own.append("a")
    other.append("a")
    before = other.get(), other.events()
    for key in (
        Api(issue_key(project, subject="u-1")),
        Api(issue_key(project, session_id=own.id)),
    ):
        foreign = call(key, method, path, {"session_id": other.id})
        unknown = call(key, method, path, {"session_id": MISSING})
        # 403: a call that no bound key may make, whatever the id.
        assert foreign.status_code in (403, 404)
        assert same_problem(foreign, unknown)
        assert (other.get(), other.events()) == before
    if method == "GET":
        for key in (
            Api(issue_key(project, subject="u-1")),
            Api(issue_key(project, session_id=own.id)),
        ):
            answer = call(key, method, path, {"session_id": own.id})
            assert answer.status_code in (200, 503), answer


def test_a_key_bound_to_a_session_makes_no_other(project, api):
    own = make_session(api, subject="u-1")
    own.append("a")
    key = Api(issue_key(project, session_id=own.id))
    for answer in (
        key.post(SESSIONS, {}),
        key.post(f"{own.url}/fork", {"at_seq": 1}),
    ):
        assert (answer.status_code, answer.json["code"]) == (403, "missing_scope")
    assert SessionApi(key, own.id).append("b").json["last_seq"] == 2


def test_a_fork_by_a_key_bound_to_a_subject_stays_with_the_subject(project, api):
    own = make_session(api, subject="u-1")
    own.append("a")
    key = Api(issue_key(project, subject="u-1"))
    fork = SessionApi(key, own.id).fork(1)
    assert fork.get()["subject"] == "u-1"


def test_the_feed_of_a_bound_key_is_of_what_it_is_bound_to(project, api):
    own = make_session(api, subject="u-1")
    other = make_session(api, subject="u-2")
    own.append("mine")
    other.append("not mine")
    by_subject = Api(issue_key(project, subject="u-1"))
    by_session = Api(issue_key(project, session_id=own.id))
    for key in (by_subject, by_session):
        items = key.get("/api/v1/events").json["items"]
        assert {item["session"] for item in items} == {own.id}
        assert len(items) == 2
    asked = {"session": other.id}
    assert by_subject.get("/api/v1/events", params=asked).json["items"] == []
    assert by_session.get("/api/v1/events", params=asked).status_code == 404


def needed_scope(method, path):
    view = resolve(path.replace("{session_id}", MISSING)).func.view_class
    return view.scopes[method]


SCOPES = ["sessions:read", "sessions:write", "runs:read", "memory:read", "admin"]


@pytest.mark.parametrize("scope", SCOPES)
def test_each_call_asks_for_its_scope(project, api, scope):
    """A key of one scope gets 403 from every call that asks for another."""
    session = make_session(api, state={"step": "x", "cart": []})
    session.append("a")
    key = Api(issue_key(project, [scope]))
    ids = {"session_id": session.id}
    for method, path in OWN_PATHS:
        if needed_scope(method, path) == scope:
            continue
        answer = call(key, method, path, ids)
        assert (answer.status_code, answer.json["code"]) == (403, "missing_scope")
    assert session.get()["last_seq"] == 2


def test_ids_of_two_projects_never_meet(world):
    """The same client-made ids and keys in both: each has its own."""
    one, two = world
    own = str(uuid4())
    for tenant in (one, two):
        made = make_session(tenant.api, key=f"shared-{own}")
        assert made.append(says("x", id=own)).json["last_seq"] == 1
    pairs = itertools.combinations(
        [tenant.api.get(SESSIONS, params={"key": f"shared-{own}"}) for tenant in world],
        2,
    )
    for a, b in pairs:
        assert a.json["items"][0]["id"] != b.json["items"][0]["id"]
