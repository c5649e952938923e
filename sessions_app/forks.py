"""What becomes of forks when the session they began from is erased."""

from uuid import UUID

from django.db import connection

from sessions_app.artifacts.erasing import pass_on_artifacts
from sessions_app.models import Session


def pass_on_to_forks(session: Session, *, actor: str) -> None:
    """Give the log that forks of `session` read to the one that needs most of it.

    In the caller's transaction, before the session's own rows go. The heir owns the
    rows from then on, and the other forks read them there.
    """
    readers = [
        (fork, upto)
        for fork in _readers_of(session)
        for owner, upto in fork.lineage
        if owner == str(session.pk)
    ]
    if not readers:
        return
    # A child before a grandchild: it has the calls that were open when it began.
    heir, upto = max(readers, key=lambda r: (r[1], r[0].parent_id == session.pk))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT agentstate_pass_on_log(%s, %s, %s, %s)",
            [session.project_id, session.pk, heir.pk, upto],
        )
    pass_on_artifacts(session, heir.pk, upto, actor=actor)
    for fork, _ in readers:
        fork.lineage = _with_owner(fork, session.pk, heir.pk)
        fork.save(update_fields=["lineage"])


def _readers_of(session: Session) -> list[Session]:
    return list(
        Session.objects.select_for_update(no_key=True)
        .filter(
            project_id=session.project_id,
            lineage__contains=[[str(session.pk)]],
        )
        .exclude(pk=session.pk)
        .order_by("id")
    )


def _with_owner(fork: Session, old: UUID, new: UUID) -> list[list[str | int]]:
    """The fork's lineage with `new` in place of `old`."""
    lineage = [
        [str(new) if owner == str(old) else owner, upto] for owner, upto in fork.lineage
    ]
    while lineage and lineage[-1][0] == str(fork.pk):
        lineage.pop()  # its own rows follow anyway
    return lineage
