"""Links at which anybody may read one artifact for a while.

A bucket gives out its own. For a folder we sign one: it says which artifact and until
when, by the database's clock, and nothing else is stored; a deleted artifact's link
leads nowhere.
"""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.conf import settings
from django.core import signing

from agentstate.clock import db_now
from sessions_app.artifacts.services import get_artifact
from sessions_app.artifacts.serving import disposition, safe_type
from sessions_app.artifacts.store import ObjectName, configured_store, reaching
from sessions_app.errors import LinkInvalid
from sessions_app.models import Artifact

SALT = "agentstate.artifact-link"


class Link(NamedTuple):
    """`url` is of the store, or None: then `token` is for our own address."""

    url: str | None
    token: str | None
    until: datetime


def make_link(artifact: Artifact, seconds: int) -> Link:
    """Return a link to the artifact's bytes. Raises StorageUnavailable."""
    assert artifact.blob is not None
    until = db_now() + timedelta(seconds=seconds)
    if settings.STORAGE_LINKS:
        store = configured_store()
        with reaching(store, "link"):
            url = store.link(
                ObjectName(artifact.project_id, artifact.blob.object_id).path,
                seconds=seconds,
                disposition=disposition(artifact),
                media_type=safe_type(artifact.media_type),
            )
        if url is not None:
            return Link(url, None, until)
    told = [str(artifact.project_id), str(artifact.pk), int(until.timestamp())]
    return Link(None, signing.dumps(told, salt=SALT), until)


def artifact_of(token: str) -> Artifact:
    """Return the artifact that a link of ours leads to. Raises LinkInvalid."""
    try:
        project_id, artifact_id, until = signing.loads(token, salt=SALT)
        ends_at = datetime.fromtimestamp(until, UTC)
    except (signing.BadSignature, ValueError, TypeError) as exc:
        raise LinkInvalid from exc
    if ends_at <= db_now():
        raise LinkInvalid
    return get_artifact(UUID(project_id), UUID(artifact_id))
