"""The one place that says what a role may do: asked by pages, sockets and the admin."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404

from access_app.models import Member, Project, Role

HIDE_FROM_VIEWERS = "hide_payloads_from_viewers"  # a project's setting


class Right(StrEnum):
    SEE_SESSIONS = "see_sessions"  # sessions, their logs, runs
    SEE_PAYLOADS = "see_payloads"  # what was said in them
    STEER = "steer"  # close sessions, act on runs, approve steps
    SEE_MEMORY = "see_memory"
    REVIEW = "review"  # correct facts, approve and reject them
    FORGET = "forget"
    SEE_AUDIT = "see_audit"
    MANAGE = "manage"  # members, keys, policies


LOOKING = {Right.SEE_SESSIONS, Right.SEE_PAYLOADS, Right.SEE_MEMORY}
RIGHTS: dict[str, frozenset[Right]] = {
    Role.OWNER: frozenset(Right),
    Role.OPERATOR: frozenset(LOOKING | {Right.STEER, Right.SEE_AUDIT}),
    Role.REVIEWER: frozenset({Right.SEE_MEMORY, Right.REVIEW, Right.FORGET}),
    Role.VIEWER: frozenset(LOOKING),
}


def rights_of(role: str, project: Project) -> frozenset[Right]:
    rights = RIGHTS[role]
    if role == Role.VIEWER and project.settings.get(HIDE_FROM_VIEWERS) is True:
        return rights - {Right.SEE_PAYLOADS, Right.SEE_MEMORY}
    return rights


@dataclass(frozen=True)
class Visit:
    """A person in a project: what they are there, and so may do."""

    project: Project
    user: User
    role: str
    rights: frozenset[Right]

    @property
    def actor(self) -> str:
        return f"user:{self.user.get_username()}"

    def may(self, right: Right) -> bool:
        return right in self.rights

    def require(self, right: Right) -> None:
        if right not in self.rights:
            raise PermissionDenied(
                f"Your role in this project, {self.role}, does not allow this."
            )


def projects_where(user: User, right: Right) -> list[UUID]:
    """The projects in which `user` has this right, by their ids."""
    members = Member.objects.filter(user=user).select_related("project")
    return [m.project_id for m in members if right in rights_of(m.role, m.project)]


def visit_of(user: User, project: Project) -> Visit | None:
    """`user` in `project`; None for one who is no member. A superuser owns all."""
    if not user.is_active:
        return None
    if user.is_superuser:
        role: str | None = Role.OWNER
    else:
        members = Member.objects.filter(project=project, user=user)
        role = members.values_list("role", flat=True).first()
    if role is None:
        return None
    return Visit(project, user, role, rights_of(role, project))


def find_visit(user: User, slug: str) -> Visit:
    """`user` in the project of this slug. Http404 tells a stranger as little as none.

    404 too for a project that exists: whether it does is nobody else's business.
    """
    project = Project.objects.filter(slug=slug).first()
    visit = visit_of(user, project) if project else None
    if visit is None:
        raise Http404("There is no such project, or you are no member of it.")
    return visit
