"""Signing in at an OpenID Connect provider, where AGENTSTATE_OIDC_ISSUER names one.

Authlib speaks the protocol: discovery, state, nonce, PKCE, the keys and the signature.
Here is what is ours: which claims we insist on, whose account they open, and which
roles the provider's groups give. Nothing of the provider is kept between two sign-ins,
so that a key it changed or a page it moved never needs a restart.
"""

import hashlib
import logging
import re
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import requests
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.django_client import DjangoOAuth2App, OAuth
from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from joserfc.errors import JoseError

from access_app.models import Identity, Member, Project
from access_app.services import add_member, remove_member, set_role
from agentstate.errors import AppError, ServiceUnavailable

logger = logging.getLogger(__name__)

# By the provider's own keys. Never `none`, and never the client's secret, whatever
# the provider's description of itself allows.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"]
TIMEOUT_SECONDS = 5
NEXT = "single_sign_on_next"  # in the session, while the person is at the provider
PROOF = "single_sign_on_proof"  # in the session of who signed in there: to sign out by
PROOF_MAX = 3000  # characters; a longer one would not fit into an address
ACTOR = "single sign-on"
BACKEND = "django.contrib.auth.backends.ModelBackend"
STRONGEST_FIRST = ("owner", "operator", "reviewer", "viewer")

# What the libraries raise for an answer that is refused or makes no sense.
REFUSALS = (AuthlibBaseError, JoseError, KeyError, ValueError, TypeError)


class SingleSignOnRefused(AppError):
    """The sign-in could not be verified. Try again from the sign-in page."""

    code, status = "single_sign_on_refused", 403


class AccountUnknown(AppError):
    """Nobody here has this account. Ask an administrator to let you in."""

    code, status = "account_unknown", 403


class SingleSignOnUnavailable(ServiceUnavailable):
    """The sign-in service does not answer. Try again shortly."""

    code = "single_sign_on_unavailable"


def is_offered() -> bool:
    return bool(settings.OIDC_ISSUER)


def begin(request: HttpRequest, target: str) -> HttpResponse:
    """Send the person to the provider; `target` is where to go afterwards."""
    here = request.build_absolute_uri(reverse("single-sign-on-return"))
    try:
        going: HttpResponse = _provider().authorize_redirect(request, here)
    except requests.RequestException as exc:
        raise _unavailable(exc) from exc
    request.session[NEXT] = target
    return going


def finish(request: HttpRequest) -> str:
    """Sign in whom the provider sent back, and return where they wanted to go."""
    claims, proof = _verified_claims(request)
    target: str = request.session.pop(NEXT, reverse("home"))
    user = _account_of(claims)
    if not user.is_active:
        logger.info("single sign-on refused: the account is not active")
        raise AccountUnknown
    _give_roles(user, claims)
    login(request, user, BACKEND)
    request.session.set_expiry(settings.OIDC_SESSION_HOURS * 3600)
    if settings.OIDC_SIGN_OUT:
        request.session[PROOF] = proof
    return target


def way_out(request: HttpRequest) -> str | None:
    """Where the provider ends its own sign-in too, for who came by it.

    None for others, where that is off, or the provider does not offer it or is away:
    then the person is signed out here alone. To be asked before that is done.
    """
    proof = request.session.get(PROOF)
    if proof is None or not (settings.OIDC_SIGN_OUT and is_offered()):
        return None
    try:
        told = _provider().server_metadata.get("end_session_endpoint", "")
    except (requests.RequestException, SingleSignOnUnavailable, *REFUSALS) as exc:
        _unavailable(exc)
        return None
    there = urlsplit(told) if isinstance(told, str) else urlsplit("")
    if there.scheme != urlsplit(settings.OIDC_ISSUER).scheme or not there.netloc:
        return None
    asked = {
        "client_id": settings.OIDC_CLIENT_ID,
        "post_logout_redirect_uri": request.build_absolute_uri(reverse("sign-in")),
    }
    if len(proof) <= PROOF_MAX:
        asked["id_token_hint"] = proof
    query = "&".join(filter(None, (there.query, urlencode(asked))))
    return urlunsplit(there._replace(query=query, fragment=""))


def _provider() -> DjangoOAuth2App:
    """The provider as it describes itself now."""
    issuer = settings.OIDC_ISSUER
    client: DjangoOAuth2App = OAuth().register(
        "provider",
        client_id=settings.OIDC_CLIENT_ID,
        client_secret=settings.OIDC_CLIENT_SECRET or None,
        server_metadata_url=f"{issuer.rstrip('/')}/.well-known/openid-configuration",
        client_kwargs={
            "scope": settings.OIDC_SCOPES,
            "code_challenge_method": "S256",
            "default_timeout": TIMEOUT_SECONDS,
        },
    )
    described = client.load_server_metadata()
    if described.get("issuer", "").rstrip("/") != issuer.rstrip("/"):
        logger.error("single sign-on: the provider calls itself by another name")
        raise SingleSignOnUnavailable
    described["id_token_signing_alg_values_supported"] = ALGORITHMS
    return client


def _verified_claims(request: HttpRequest) -> tuple[dict[str, Any], str]:
    """What the provider says of the person, proved to be meant for us and now, and the
    token that says so."""
    try:
        client = _provider()
        told = client.authorize_access_token(
            request,
            claims_options={
                "iss": {"essential": True, "value": client.server_metadata["issuer"]},
                "aud": {"essential": True, "value": settings.OIDC_CLIENT_ID},
                "sub": {"essential": True},
                "nonce": {"essential": True},
            },
        )
        claims: dict[str, Any] = dict(told["userinfo"])
        proof = str(told["id_token"])
    except requests.RequestException as exc:
        raise _unavailable(exc) from exc
    except REFUSALS as exc:
        # The kind and no more: what it says may hold what was sent.
        logger.info("single sign-on refused", extra={"because": type(exc).__name__})
        raise SingleSignOnRefused from exc
    if not (isinstance(claims["sub"], str) and 0 < len(claims["sub"]) <= 255):
        raise SingleSignOnRefused
    return claims, proof


def _unavailable(exc: Exception) -> SingleSignOnUnavailable:
    logger.warning("single sign-on unavailable", extra={"because": type(exc).__name__})
    return SingleSignOnUnavailable()


@transaction.atomic
def _account_of(claims: dict[str, Any]) -> User:
    """The account these claims open, known by issuer and subject, never by name.

    The first time it is the one account with the same address, if the provider has
    verified that; else, where AGENTSTATE_OIDC_UNKNOWN says so, a new one that may
    nothing until somebody, or a group, makes it a member.
    """
    known = Identity.objects.filter(issuer=claims["iss"], subject=claims["sub"])
    if identity := known.select_related("user").first():
        return identity.user
    user = _by_address(claims) or _made(claims)
    try:
        with transaction.atomic():
            Identity.objects.create(
                user=user, issuer=claims["iss"], subject=claims["sub"]
            )
    except IntegrityError as exc:  # the same person, twice at once
        raise SingleSignOnRefused from exc
    return user


def _by_address(claims: dict[str, Any]) -> User | None:
    address = claims.get("email")
    if claims.get("email_verified") is not True or not isinstance(address, str):
        return None
    linked = Identity.objects.filter(issuer=claims["iss"]).values("user")
    found = User.objects.filter(email__iexact=address).exclude(pk__in=linked)[:2]
    return found[0] if address and len(found) == 1 else None


def _made(claims: dict[str, Any]) -> User:
    if settings.OIDC_UNKNOWN != "create":
        logger.info("single sign-on refused: no account for this person")
        raise AccountUnknown
    user = User(username=_free_name(claims))
    if claims.get("email_verified") is True:
        user.email = str(claims.get("email", ""))[:254]
    user.set_unusable_password()
    user.save()
    return user


def _free_name(claims: dict[str, Any]) -> str:
    """A name like the person's own; never one that somebody has."""
    wanted = claims.get("preferred_username") or claims.get("email") or "person"
    name = re.sub(r"[^\w.@+-]", "-", str(wanted))[:100]
    if not User.objects.filter(username__iexact=name).exists():
        return name
    whole = f"{claims['iss']} {claims['sub']}"
    return f"{name}-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"


def _give_roles(user: User, claims: dict[str, Any]) -> None:
    """Make `user`, in each project that AGENTSTATE_OIDC_ROLES names, what the groups
    say: the strongest of their roles, or no member."""
    told = claims.get(settings.OIDC_GROUPS_CLAIM)
    groups = {told} if isinstance(told, str) else set(map(str, told or ()))
    wanted: dict[str, set[str]] = {}
    for group, slug, role in settings.OIDC_ROLES:
        wanted.setdefault(slug, set()).update({role} if group in groups else ())
    for project in Project.objects.filter(slug__in=wanted):
        roles = wanted[project.slug]
        strongest = next((each for each in STRONGEST_FIRST if each in roles), None)
        try:
            _set_membership(project, user, strongest)
        except AppError as exc:
            # The last owner stays one; signing in goes on.
            logger.warning("a role by group was not given", extra={"code": exc.code})


def _set_membership(project: Project, user: User, role: str | None) -> None:
    member = Member.objects.filter(project=project, user=user).first()
    why = {"actor": ACTOR, "reason": "the provider's groups, at sign-in"}
    if member is None and role is not None:
        add_member(project.id, user, role, **why)
    elif member is not None and role is None:
        remove_member(project.id, member.pk, **why)
    elif member is not None and role is not None:
        set_role(project.id, member.pk, role, **why)
