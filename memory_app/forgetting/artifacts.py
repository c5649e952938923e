"""Forgetting files: all of a session's, or those in which something is found.

A forgotten artifact is deleted, in its log too, and what the log said of it is blanked,
its digest included: that would tell whoever guesses the bytes that they are right. The
bytes go with the last artifact that holds them, after the commit.
"""

import codecs
import re
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from agentstate import codec
from memory_app.forgetting.log import blank_numbered
from memory_app.forgetting.scrub import Needles
from sessions_app.artifacts.services import delete_all
from sessions_app.artifacts.serving import open_content
from sessions_app.errors import ContentMissing, StorageUnavailable
from sessions_app.models import Artifact
from sessions_app.querysets import ArtifactQuerySet

REASON = "forgotten"
LOOKED_INTO_BYTES = 64 * 1024 * 1024  # of one file; all of it would take too long
# Most programs that write JSON spell "Müller" with one of these.
ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|([nrt"/\\]))')
SPELLED = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "/": "/", "\\": "\\"}
OVERLAP = 2000  # characters: what is looked for may lie across two parts


class Found(NamedTuple):
    """How many were forgotten, and how many could not be looked into."""

    forgotten: int
    unread: int


def forget_all(project_id: UUID, session_ids: list[UUID], *, actor: str) -> int:
    """Forget every artifact of these sessions, which are locked; return how many."""
    rows = Artifact.objects.in_project(project_id).filter(session_id__in=session_ids)
    live = list(rows.live().order_by("id"))
    delete_all(live, actor=actor, reason=REASON)
    _blank(rows)
    return len(live)


def artifact_ids(project_id: UUID, session_ids: list[UUID]) -> list[UUID]:
    """Return the artifacts of these sessions, the deleted included."""
    rows = Artifact.objects.in_project(project_id).filter(session_id__in=session_ids)
    return list(rows.values_list("id", flat=True))


def forget_holding(
    project_id: UUID, session_ids: list[UUID], needles: Needles, *, actor: str
) -> Found:
    """Forget the artifacts whose name, metadata or text holds a needle."""
    rows = Artifact.objects.in_project(project_id).filter(session_id__in=session_ids)
    live = rows.live().order_by("id").select_related("blob")
    held, unread = [], 0
    for artifact in live.iterator(chunk_size=200):
        holds = _is_about(artifact, needles) or _text_holds(artifact, needles)
        if holds:
            held.append(artifact)
        elif holds is None:
            unread += 1
    delete_all(held, actor=actor, reason=REASON)
    for artifact in held:
        blank_numbered(project_id, artifact.session_id, [artifact.seq])
    _blank(rows.filter(id__in=[artifact.pk for artifact in held]))
    return Found(len(held), unread)


def _blank(rows: ArtifactQuerySet) -> None:
    # The same as memory_app.forgetting.scrub.blank_artifact makes of the event.
    rows.update(name="", media_type="", sha256="", metadata={})


def _is_about(artifact: Artifact, needles: Needles) -> bool:
    return (
        needles.are_in(artifact.name)
        or needles.are_in(artifact.media_type)
        or needles.are_in_json(codec.dumps(artifact.metadata))
    )


def _text_holds(artifact: Artifact, needles: Needles) -> bool | None:
    """Whether the file's text holds a needle; None if it is not text, or too large."""
    if artifact.size > LOOKED_INTO_BYTES:
        return None
    try:
        return any(_are_in(text, needles) for text in _texts(artifact))
    except (UnicodeDecodeError, StorageUnavailable, ContentMissing):
        return None


def _are_in(text: str, needles: Needles) -> bool:
    """Whether a needle is in the text, or in what it spells if it is JSON or code."""
    if needles.are_in(text):
        return True
    return ESCAPE.search(text) is not None and needles.are_in(_unescaped(text))


def _unescaped(text: str) -> str:
    spelled = ESCAPE.sub(lambda e: chr(int(e[1], 16)) if e[1] else SPELLED[e[2]], text)
    return spelled.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _texts(artifact: Artifact) -> Iterator[str]:
    decoder, before = codecs.getincrementaldecoder("utf-8")(), ""
    for part in open_content(artifact):
        text = before + decoder.decode(part)
        yield text
        before = text[-OVERLAP:]
    decoder.decode(b"", final=True)
