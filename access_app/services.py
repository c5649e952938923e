"""The only writes to projects, members, keys and the audit log."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils.text import slugify

from access_app import scopes as scope_names
from access_app.errors import (
    AlreadyMember,
    LastOwner,
    NameTaken,
    ScopeTooWide,
)
from access_app.keys import hash_secret, new_key_text
from access_app.models import ApiKey, AuditEntry, Member, Project, Role
from agentstate.clock import Now, db_now
from agentstate.errors import FieldError
from agentstate.ids import new_id

SYSTEM = "system"
SLUG_LENGTH = 80
LAST_USE_STEP = timedelta(minutes=1)


class NewKey(NamedTuple):
    """A key just made, and its text, which nothing can show again."""

    key: ApiKey
    text: str


def record_audit(
    project_id: UUID,
    actor: str,
    action: str,
    object: str,
    *,
    before: Any = None,
    after: Any = None,
    reason: str = "",
) -> AuditEntry:
    """Add one entry to the audit log, in the caller's transaction.

    `actor` is "key:PREFIX", "user:NAME" or "system"; `action` is "noun.verb" in the
    past, "key.revoked"; `object` is "kind:id". `before` and `after` hold what changed,
    as JSON values, and never a secret.
    """
    return AuditEntry.objects.create(
        project_id=project_id,
        actor=actor,
        action=action,
        object=object,
        before=before,
        after=after,
        reason=reason,
    )


def record_audits(
    project_id: UUID, actor: str, action: str, objects: Collection[str]
) -> None:
    """Add an entry for each object that something was done with; none, no query."""
    AuditEntry.objects.bulk_create(
        AuditEntry(project_id=project_id, actor=actor, action=action, object=name)
        for name in objects
    )


@transaction.atomic
def create_project(
    name: str,
    *,
    settings: dict[str, Any] | None = None,
    actor: str = SYSTEM,
    reason: str = "",
) -> Project:
    """Make a project. Raises NameTaken."""
    project = Project(id=new_id(), name=_checked_name(name), settings=settings or {})
    project.slug = _free_slug(project)
    try:
        with transaction.atomic():
            project.save(force_insert=True)
    except IntegrityError as exc:
        raise NameTaken(f"There is already a project named {name!r}.") from exc
    record_audit(
        project.id,
        actor,
        "project.created",
        f"project:{project.id}",
        after={"name": project.name, "slug": project.slug},
        reason=reason,
    )
    return project


@transaction.atomic
def update_project(
    project_id: UUID,
    *,
    name: str | None = None,
    settings: dict[str, Any] | None = None,
    actor: str = SYSTEM,
    reason: str = "",
) -> Project:
    """Change a project's name or replace its settings; None leaves them. NameTaken."""
    project = Project.objects.select_for_update().get(pk=project_id)
    before = {"name": project.name, "settings": project.settings}
    if name is not None:
        project.name = _checked_name(name)
    if settings is not None:
        project.settings = settings
    after = {"name": project.name, "settings": project.settings}
    if after == before:
        return project
    try:
        with transaction.atomic():
            project.save(update_fields=["name", "settings"])
    except IntegrityError as exc:
        raise NameTaken(f"There is already a project named {name!r}.") from exc
    record_audit(
        project.id,
        actor,
        "project.updated",
        f"project:{project.id}",
        before=before,
        after=after,
        reason=reason,
    )
    return project


@transaction.atomic
def change_settings(
    project_id: UUID, changes: dict[str, Any], *, actor: str, reason: str
) -> Project:
    """Change single settings of a project and leave the others as they are."""
    project = Project.objects.select_for_update().get(pk=project_id)
    wanted = project.settings | changes
    return update_project(project_id, settings=wanted, actor=actor, reason=reason)


@transaction.atomic
def create_key(
    project: Project,
    *,
    scopes: Collection[str],
    name: str = "",
    subject: str | None = None,
    session_id: UUID | None = None,
    run_id: UUID | None = None,
    tool_allowlist: list[str] | None = None,
    expires_at: datetime | None = None,
    expires_in: timedelta | None = None,
    rate_limit_per_minute: int | None = None,
    actor: str = SYSTEM,
    reason: str = "",
    secret: str | None = None,
) -> NewKey:
    """Make a key of `project` and return it with its text: the one time it is shown.

    `expires_in` counts from now by the database's clock and wins over `expires_at`.
    `rate_limit_per_minute`: None is the server's default, 0 no limit. With `run_id` it
    makes no other run, with `tool_allowlist` it calls no other tools. `secret` is for a
    caller that can derive it again; otherwise it is random. Raises FieldError for a
    scope that does not exist.
    """
    if expires_at is not None and expires_at <= db_now():
        raise FieldError("expires_at", "in_the_past", "this time has passed")
    text = new_key_text(secret)
    key = ApiKey.objects.create(
        project=project,
        name=name,
        prefix=text.prefix,
        secret_hash=hash_secret(text.secret),
        scopes=_checked_scopes(scopes),
        subject=subject,
        session_id=session_id,
        run_id=run_id,
        tool_allowlist=tool_allowlist,
        expires_at=expires_at if expires_in is None else Now() + expires_in,
        rate_limit_per_minute=rate_limit_per_minute,
        created_by=actor,
    )
    key.refresh_from_db(fields=["expires_at", "created_at"])
    record_audit(
        project.id,
        actor,
        "key.created",
        f"key:{key.id}",
        after=_key_facts(key),
        reason=reason,
    )
    return NewKey(key, str(text))


@transaction.atomic
def create_key_as(maker_id: UUID, project: Project, **options: Any) -> NewKey:
    """Make a key on behalf of another key, which cannot give more than it has.

    `options` are those of `create_key`. Raises ScopeTooWide. A key that expires makes
    keys that expire no later.
    """
    maker = ApiKey.objects.in_project(project.id).get(pk=maker_id)
    missing = set(options["scopes"]) - set(maker.scopes)
    if missing and scope_names.ALL not in maker.scopes:
        raise ScopeTooWide(scopes=sorted(missing))
    if maker.expires_at is not None:
        options["expires_at"] = options.get("expires_at") or maker.expires_at
        if options["expires_at"] > maker.expires_at:
            detail = "a key cannot make a key that outlives it"
            raise FieldError("expires_at", "too_late", detail)
    return create_key(project, **options)


@transaction.atomic
def revoke_key(
    project_id: UUID, key_id: UUID, *, actor: str = SYSTEM, reason: str = ""
) -> ApiKey:
    """Revoke a key for good. Once revoked it stays so: again changes nothing."""
    keys = ApiKey.objects.in_project(project_id)
    key = keys.select_for_update(no_key=True).get(pk=key_id)
    if key.is_revoked:
        return key
    keys.filter(pk=key_id).update(revoked_at=Now())
    key.refresh_from_db(fields=["revoked_at"])
    record_audit(
        project_id,
        actor,
        "key.revoked",
        f"key:{key.id}",
        before=_key_facts(key),
        reason=reason,
    )
    return key


def touch_keys(key_ids: Collection[UUID]) -> None:
    """Write that these keys were used now, at most once a minute each."""
    stale = Q(last_used_at=None) | Q(last_used_at__lt=Now() - LAST_USE_STEP)
    ApiKey.objects.filter(stale, pk__in=key_ids).update(last_used_at=Now())


@transaction.atomic
def add_member(
    project_id: UUID, user: User, role: str, *, actor: str = SYSTEM, reason: str = ""
) -> Member:
    """Give `user` a role in the project. Raises AlreadyMember."""
    try:
        with transaction.atomic():
            member = Member.objects.create(
                project_id=project_id, user=user, role=_checked_role(role)
            )
    except IntegrityError as exc:
        raise AlreadyMember(f"{user.username} is a member already.") from exc
    member.refresh_from_db(fields=["created_at"])
    record_audit(
        project_id,
        actor,
        "member.added",
        f"member:{member.pk}",
        after=_member_facts(member),
        reason=reason,
    )
    return member


@transaction.atomic
def set_role(
    project_id: UUID,
    member_id: int,
    role: str,
    *,
    actor: str = SYSTEM,
    reason: str = "",
) -> Member:
    """Change a member's role. Raises LastOwner rather than leave none."""
    member = _locked_member(project_id, member_id)
    before = _member_facts(member)
    if member.role == _checked_role(role):
        return member
    _check_an_owner_stays(member)
    member.role = role
    member.save(update_fields=["role"])
    record_audit(
        project_id,
        actor,
        "member.role_set",
        f"member:{member.pk}",
        before=before,
        after=_member_facts(member),
        reason=reason,
    )
    return member


@transaction.atomic
def remove_member(
    project_id: UUID, member_id: int, *, actor: str = SYSTEM, reason: str = ""
) -> None:
    """Take a member out of the project. Raises LastOwner rather than leave none."""
    member = _locked_member(project_id, member_id)
    _check_an_owner_stays(member)
    record_audit(
        project_id,
        actor,
        "member.removed",
        f"member:{member.pk}",
        before=_member_facts(member),
        reason=reason,
    )
    member.delete()


def _locked_member(project_id: UUID, member_id: int) -> Member:
    # The project first: two owners who leave at the same time take turns.
    Project.objects.select_for_update(no_key=True).get(pk=project_id)
    return Member.objects.in_project(project_id).get(pk=member_id)


def _check_an_owner_stays(member: Member) -> None:
    others = Member.objects.filter(project_id=member.project_id).exclude(pk=member.pk)
    if member.role == Role.OWNER and not others.owners().exists():
        raise LastOwner


def _checked_name(name: str) -> str:
    name = name.strip()
    if not 0 < len(name) <= 200:
        raise FieldError("name", "invalid", "a name has 1 to 200 characters")
    return name


def _checked_scopes(scopes: Collection[str]) -> list[str]:
    for scope in scopes:
        if scope not in scope_names.SCOPES:
            known = ", ".join(scope_names.SCOPES)
            raise FieldError(
                "scopes", "unknown_scope", f"{scope!r} is no scope; there are {known}"
            )
    if not scopes:
        raise FieldError("scopes", "required", "a key has at least one scope")
    return sorted(set(scopes))


def _checked_role(role: str) -> str:
    if role not in Role.values:
        known = ", ".join(Role.values)
        raise FieldError(
            "role", "unknown_role", f"{role!r} is no role; there are {known}"
        )
    return role


def _free_slug(project: Project) -> str:
    """A slug from the name, made unique by the tail of the id where it has to be."""
    slug = slugify(project.name)[:SLUG_LENGTH] or "project"
    if not Project.objects.filter(slug=slug).exists():
        return slug
    return f"{slug[: SLUG_LENGTH - 13]}-{project.id.hex[-12:]}"


def _key_facts(key: ApiKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "prefix": key.prefix,
        "scopes": list(key.scopes),
        "subject": key.subject,
        "session_id": str(key.session_id) if key.session_id else None,
        "run_id": str(key.run_id) if key.run_id else None,
        "tool_allowlist": key.tool_allowlist,
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "rate_limit_per_minute": key.rate_limit_per_minute,
    }


def _member_facts(member: Member) -> dict[str, Any]:
    return {"user": member.user.username, "role": member.role}
