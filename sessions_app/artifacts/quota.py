"""How much a project may keep in the store, and how much it does.

A trigger counts what blobs bring and take, in rows that are only added, so that nobody
waits. Uploads ask for room one after the other, each until its commit: together they
never exceed the limit. Payloads of events count, and are never refused: the log must
go on.
"""

from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Count, Sum

from access_app.models import Project
from access_app.services import change_settings
from agentstate.errors import FieldError
from sessions_app.errors import StorageQuotaExceeded
from sessions_app.models import Blob, StoredBytes

PROJECT_LIMIT = "storage_limit_bytes"  # a project's setting
LIMIT_MAX = 2**62
MEGABYTE = 1024 * 1024
ROWS_KEPT = 200  # of one project, until they are folded
FOLD = """
WITH taken AS (
    DELETE FROM agent_stored_bytes WHERE project_id = %(project)s RETURNING bytes
)
INSERT INTO agent_stored_bytes (project_id, bytes)
SELECT %(project)s, sum(bytes) FROM taken HAVING count(*) > 0
"""


@dataclass(frozen=True)
class Usage:
    """What a project keeps, and may keep; None is no limit.

    `limit` is the lower of the server's and the project's own.
    """

    stored: int
    server_limit: int | None
    project_limit: int | None

    @property
    def limit(self) -> int | None:
        given = [n for n in (self.server_limit, self.project_limit) if n is not None]
        return min(given, default=None)

    @property
    def project_megabytes(self) -> str:
        """As `read_megabytes` reads it; whole numbers without a point."""
        if self.project_limit is None:
            return ""
        return f"{Decimal(self.project_limit) / MEGABYTE:f}"


def usage_of(project_id: UUID) -> Usage:
    """Read what is counted. A limit that is no whole number is none."""
    told = Project.objects.values_list("settings", flat=True).get(pk=project_id)
    own = told.get(PROJECT_LIMIT)
    rows = StoredBytes.objects.filter(project_id=project_id)
    return Usage(
        stored=rows.aggregate(sum=Sum("bytes"))["sum"] or 0,
        server_limit=settings.STORAGE_LIMIT_BYTES or None,
        project_limit=own if type(own) is int and own >= 0 else None,
    )


def check_room(project_id: UUID, size: int) -> None:
    """Refuse early what there is no room for. Raises StorageQuotaExceeded."""
    usage = usage_of(project_id)
    if usage.limit is not None and usage.stored + size > usage.limit:
        raise StorageQuotaExceeded(
            limit_bytes=usage.limit, stored_bytes=usage.stored, size_bytes=size
        )


def check_room_for(project_id: UUID, sha256: str, size: int) -> None:
    """`check_room`, but bytes that the project has already need none."""
    if not Blob.objects.filter(project_id=project_id, sha256=sha256).exists():
        check_room(project_id, size)


def take_room(project_id: UUID, sha256: str, size: int) -> None:
    """Let nobody else take the room for these bytes until this transaction ends.

    Raises StorageQuotaExceeded.
    """
    if usage_of(project_id).limit is not None:
        _fold(project_id)
        check_room_for(project_id, sha256, size)


def _fold(project_id: UUID) -> None:
    """Put one row in the place of a project's many, while no other does."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
            [f"agentstate storage {project_id}"],
        )
        cursor.execute(FOLD, {"project": project_id})


def fold_counts() -> int:
    """Fold where nobody asks for room; return for how many projects."""
    counts = StoredBytes.objects.values("project_id").annotate(rows=Count("id"))
    many = list(counts.filter(rows__gt=ROWS_KEPT).values_list("project_id", flat=True))
    for project_id in many:
        with transaction.atomic():
            _fold(project_id)
    return len(many)


@transaction.atomic
def limit_project(
    project_id: UUID, limit: int | None, *, actor: str, reason: str
) -> None:
    """Set the project's own limit, or take it away. What is stored stays."""
    if limit is not None and not 0 <= limit <= LIMIT_MAX:
        raise FieldError("limit", "out_of_range", "is no size that can be kept")
    change_settings(project_id, {PROJECT_LIMIT: limit}, actor=actor, reason=reason)
