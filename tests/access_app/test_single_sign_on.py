"""Signing in at an OpenID Connect provider, which runs here and speaks HTTP."""

import html
import re
import time
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from access_app.models import AuditEntry, Identity, Member
from agentstate.ids import new_id
from tests.oidc import CLIENT_ID, CLIENT_SECRET, OctKey, provider
from tests.people import make_user

__all__ = ["make_user", "provider"]

BEGIN = "/sign-in/single/"


@pytest.fixture(autouse=True)
def configured(settings, provider):
    settings.OIDC_ISSUER = provider.issuer
    settings.OIDC_CLIENT_ID = CLIENT_ID
    settings.OIDC_CLIENT_SECRET = CLIENT_SECRET
    settings.OIDC_NAME = "the company account"
    return settings


@pytest.fixture
def person(provider, make_user):
    """Somebody who has an account here and at the provider, by the same address."""
    address = f"{new_id()}@example.test"
    provider.person = {"sub": str(new_id()), "email": address, "email_verified": True}
    return make_user(email=address)


@pytest.fixture
def client():
    # An address of its own, so that no test uses up the tries of another.
    return Client(REMOTE_ADDR=str(new_id()))


def go_there(client: Client, path: str = BEGIN) -> str:
    """To the provider and back: the address at which the person comes back to us."""
    answer = client.get(path)
    assert answer.status_code == 302, answer.content
    there = httpx.get(answer["Location"], timeout=60)
    assert there.status_code == 302
    back = urlsplit(there.headers["Location"])
    assert back.path == f"{BEGIN}return/"
    return f"{back.path}?{back.query}"


def sign_in(client: Client, path: str = BEGIN):
    return client.get(go_there(client, path))


def who(client: Client) -> str | None:
    return client.session.get("_auth_user_id")


def refused(answer, client: Client, status: int = 403) -> bool:
    assert answer.status_code == status, answer
    assert 'role="alert"' in answer.content.decode()
    return who(client) is None


def test_the_way_in_and_on(client, person):
    page = client.get("/sign-in/?next=/p/x/%3Fa=1%26b=2").content.decode()
    assert "the company account" in page
    assert f"{BEGIN}?next=%2Fp%2Fx%2F%3Fa%3D1%26b%3D2" in page
    answer = sign_in(client, f"{BEGIN}?next=/p/x/%3Fa=1")
    assert (answer.status_code, answer["Location"]) == (302, "/p/x/?a=1")
    assert who(client) == str(person.pk)
    hours = client.session.get_expiry_age() / 3600
    assert 11 < hours <= 12
    assert client.get(BEGIN)["Location"] == "/"  # signed in already


def test_nobody_is_sent_elsewhere(client, person):
    assert sign_in(client, f"{BEGIN}?next=https://evil.test/")["Location"] == "/"


def test_the_second_time_the_subject_decides_not_the_address(
    client, provider, person, make_user
):
    sign_in(client)
    provider.person |= {"email": "new@example.test", "email_verified": False}
    other = Client()
    sign_in(other)
    assert who(other) == str(person.pk)
    # Another person there who now has the first one's address is nobody here.
    provider.person = {
        "sub": "another",
        "email": person.email,
        "email_verified": True,
    }
    stranger = Client()
    assert refused(sign_in(stranger), stranger)


@pytest.mark.parametrize(
    "claims",
    [
        {"email_verified": False},
        {"email_verified": None},
        {"email_verified": "true"},
        {"email": "somebody.else@example.test"},
        {"email": None},
    ],
)
def test_an_unknown_person_is_refused(client, provider, person, claims):
    provider.overrides = claims
    assert refused(sign_in(client), client)
    assert not Identity.objects.filter(user=person).exists()


def test_two_accounts_with_one_address_are_nobodys(client, person, make_user):
    make_user(email=person.email.upper())
    assert refused(sign_in(client), client)


def test_an_account_that_is_not_active_stays_out(client, person):
    User.objects.filter(pk=person.pk).update(is_active=False)
    assert refused(sign_in(client), client)


def test_an_unknown_person_gets_an_account_if_we_say_so(client, provider, settings):
    settings.OIDC_UNKNOWN = "create"
    taken = User.objects.create_superuser(f"root-{new_id()}")
    provider.person = {
        "sub": str(new_id()),
        "preferred_username": taken.username,
        "email": "x@example.test",
        "email_verified": False,
    }
    assert sign_in(client)["Location"] == "/"
    made = User.objects.get(pk=who(client))
    assert made.pk != taken.pk and made.username.startswith(f"{taken.username}-")
    assert not made.has_usable_password() and made.email == ""
    assert not (made.is_staff or made.is_superuser)
    assert client.get("/").status_code == 200  # a member of nothing


NOT_OURS = {
    "iss": "https://another.example.test",
    "aud": "another-client",
    "nonce": "another",
    "exp": int(time.time()) - 1000,
    "iat": int(time.time()) + 10_000,
}


@pytest.mark.parametrize("name", NOT_OURS)
@pytest.mark.parametrize("is_missing", [True, False])
def test_a_token_that_is_not_for_us_now_is_refused(
    client, provider, person, name, is_missing
):
    provider.overrides = {name: None if is_missing else NOT_OURS[name]}
    assert refused(sign_in(client), client)


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": [CLIENT_ID, "another"], "azp": "another"},
        {"aud": "another", "azp": CLIENT_ID},
    ],
)
def test_a_token_names_us_as_audience_and_party(client, provider, person, claims):
    provider.overrides = claims
    assert refused(sign_in(client), client)


def test_a_signature_by_another_key_is_refused(client, provider, person):
    provider.signs_with = provider.new_key("first")  # of the same name
    assert refused(sign_in(client), client)


@pytest.mark.parametrize("alg", ["none", "HS256"])
def test_an_algorithm_without_the_providers_key_is_refused(
    client, provider, person, alg
):
    provider.alg = alg
    provider.signs_with = OctKey.import_key(CLIENT_SECRET.ljust(32, "x"))
    assert refused(sign_in(client), client)


def test_a_changed_key_needs_no_restart(client, provider, person):
    sign_in(client)
    provider.key = provider.signs_with = provider.new_key("second")
    provider.published = [provider.key]
    other = Client()
    sign_in(other)
    assert who(other) == str(person.pk)


def test_a_code_comes_back_once_and_to_the_one_who_asked(client, provider, person):
    back = go_there(client)
    thief = Client()
    assert refused(thief.get(back), thief)  # no such state in this browser
    assert client.get(back).status_code == 302
    client.logout()
    assert refused(client.get(back), client)
    wrong = parse_qs(urlsplit(back).query) | {"state": ["x"]}
    assert refused(client.get(f"{BEGIN}return/", wrong), client)
    assert refused(client.get(f"{BEGIN}return/"), client)


def test_what_the_provider_refuses_is_refused(client, provider, person):
    provider.refuses = "access_denied"
    assert refused(sign_in(client), client)


def test_a_wrong_secret_is_refused(client, settings, person):
    settings.OIDC_CLIENT_SECRET = "wrong"
    assert refused(sign_in(client), client)


def test_a_provider_that_calls_itself_otherwise_is_not_used(client, provider, person):
    provider.described = {"issuer": "https://another.example.test"}
    assert refused(client.get(BEGIN), client, 503)


def test_a_provider_that_is_away_is_said_so(client, settings):
    settings.OIDC_ISSUER = "http://127.0.0.1:1"
    assert refused(client.get(BEGIN), client, 503)


def test_groups_give_and_take_roles(client, provider, person, project, settings):
    settings.OIDC_ROLES = [
        ("support", project.slug, "reviewer"),
        ("ops", project.slug, "operator"),
    ]

    def role_with(groups):
        provider.person["groups"] = groups
        sign_in(Client(REMOTE_ADDR=str(new_id())))
        members = Member.objects.filter(project=project, user=person)
        return members.values_list("role", flat=True).first()

    assert role_with(["support"]) == "reviewer"
    assert role_with(["support", "ops", "others"]) == "operator"
    assert role_with("support") == "reviewer"
    assert role_with(None) is None
    entries = AuditEntry.objects.in_project(project.id).filter(actor="single sign-on")
    assert sorted(entries.values_list("action", flat=True)) == [
        "member.added",
        "member.removed",
        "member.role_set",
        "member.role_set",
    ]


def test_groups_never_take_the_last_owner(provider, person, project, settings):
    from access_app.services import add_member

    add_member(project.id, person, "owner")
    settings.OIDC_ROLES = [("support", project.slug, "reviewer")]
    client = Client(REMOTE_ADDR=str(new_id()))
    assert sign_in(client).status_code == 302
    assert Member.objects.get(project=project, user=person).role == "owner"


def test_it_is_off_by_default(client, settings):
    settings.OIDC_ISSUER = ""
    assert client.get(BEGIN).status_code == 404
    assert client.get(f"{BEGIN}return/?code=x&state=y").status_code == 404
    assert BEGIN not in client.get("/sign-in/").content.decode()


def leads_to(answer) -> str:
    """Where the page that tells of signing out leads on to."""
    shown = answer.content.decode()
    [there] = re.findall(r'http-equiv="refresh" content="0; url=([^"]+)"', shown)
    assert f'href="{there}"' in shown
    return html.unescape(there)


@pytest.mark.parametrize("path", ["/sign-out/", "/admin/logout/"])
def test_signing_out_here_signs_out_there(client, provider, person, settings, path):
    settings.OIDC_SIGN_OUT = True
    sign_in(client)
    answer = client.post(path)
    assert (answer.status_code, who(client)) == (200, None)
    assert "no-store" in answer["Cache-Control"]
    there = httpx.get(leads_to(answer))
    assert there.headers["Location"] == "http://testserver/sign-in/"
    assert provider.signed_out == [provider.person["sub"]]


def test_a_provider_may_have_a_query_of_its_own(client, provider, person, settings):
    settings.OIDC_SIGN_OUT = True
    provider.described = {"end_session_endpoint": f"{provider.issuer}/logout?a=1&b=2"}
    sign_in(client)
    query = parse_qs(urlsplit(leads_to(client.post("/sign-out/"))).query)
    assert (query["a"], query["b"], query["client_id"]) == (["1"], ["2"], [CLIENT_ID])


@pytest.mark.parametrize(
    "told", [None, "", "javascript:alert(1)", "/logout", "ftp://x.test/", 7, ["x"]]
)
def test_a_provider_that_offers_no_way_out_holds_nobody(
    client, provider, person, settings, told
):
    settings.OIDC_SIGN_OUT = True
    provider.described = {"end_session_endpoint": told}
    sign_in(client)
    answer = client.post("/sign-out/")
    assert (answer.status_code, answer["Location"]) == (302, "/sign-in/")
    assert who(client) is None


def test_a_provider_that_is_away_holds_nobody(client, person, settings):
    settings.OIDC_SIGN_OUT = True
    sign_in(client)
    settings.OIDC_ISSUER = "http://127.0.0.1:1"
    assert client.post("/sign-out/")["Location"] == "/sign-in/"
    assert who(client) is None


def test_who_came_by_a_password_goes_nowhere(client, provider, settings, make_user):
    settings.OIDC_SIGN_OUT = True
    client.force_login(make_user())
    assert client.post("/sign-out/")["Location"] == "/sign-in/"
    assert provider.asked == []


def test_signing_out_there_is_off_by_default(client, provider, person):
    sign_in(client)
    assert "single_sign_on_proof" not in client.session
    assert client.post("/sign-out/")["Location"] == "/sign-in/"
    assert provider.signed_out == []


def test_tries_are_counted(client):
    for _ in range(100):
        assert client.get(BEGIN).status_code == 302
    assert refused(client.get(BEGIN), client, 429)


def test_a_deployment_that_cannot_be_safe_is_told(settings):
    assert [c.id for c in run_checks() if c.id.startswith("agentstate.E")] == []
    settings.OIDC_ISSUER = "http://login.example.test"
    settings.OIDC_CLIENT_ID = ""
    settings.OIDC_SCOPES = "profile"
    found = {c.id for c in run_checks() if c.id.startswith("agentstate.E")}
    assert found == {"agentstate.E003", "agentstate.E004", "agentstate.E005"}


def test_grants_are_read_or_refused(monkeypatch):
    from agentstate.env import env_choice, env_grants

    monkeypatch.setenv("X_ROLES", "a=b=demo:owner, c d=shop-2:viewer")
    assert env_grants("X_ROLES") == [
        ("a=b", "demo", "owner"),
        ("c d", "shop-2", "viewer"),
    ]
    for wrong in ("a=demo", "a=demo:king", "demo:owner"):
        monkeypatch.setenv("X_ROLES", wrong)
        with pytest.raises(ImproperlyConfigured, match="X_ROLES"):
            env_grants("X_ROLES")
    monkeypatch.setenv("X_CHOICE", "maybe")
    with pytest.raises(ImproperlyConfigured, match="X_CHOICE"):
        env_choice("X_CHOICE", "refuse", "create")
