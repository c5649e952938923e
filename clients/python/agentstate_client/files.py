"""What the calls on artifacts return."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from agentstate_client.models import Record, _time


@dataclass(frozen=True, kw_only=True)
class Artifact(Record):
    """A stored file. Each upload under a name is a `version` of its own."""

    id: str
    session: str = ""
    seq: int = 0
    name: str = ""
    version: int = 1
    media_type: str = ""
    size: int = 0
    sha256: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    actor: str = ""
    created_at: datetime | None = _time()


@dataclass(frozen=True, kw_only=True)
class ArtifactLink(Record):
    """An address at which anybody may read an artifact until `expires_at`."""

    url: str
    expires_at: datetime | None = _time()
    direct: bool = False
