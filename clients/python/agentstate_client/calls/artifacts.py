"""Artifacts: files of a session, streamed both ways."""

from __future__ import annotations

import json
import mimetypes
import uuid
from collections.abc import Mapping
from typing import Any

import httpx

from agentstate_client.body import Body, Source
from agentstate_client.call import (
    LOCK_TOKEN,
    Call,
    filled,
    json_reader,
    listing,
    nothing,
    path_to,
    reading,
    writing,
)
from agentstate_client.download import Fetch, Target
from agentstate_client.errors import AgentStateError
from agentstate_client.files import Artifact, ArtifactLink
from agentstate_client.models import Page

OCTETS = "application/octet-stream"
# What a compressed file is, whatever is in it.
COMPRESSED = {
    "gzip": "application/gzip",
    "bzip2": "application/x-bzip2",
    "xz": "application/x-xz",
}


def upload(
    session_id: str,
    source: Source,
    *,
    name: str | None = None,
    media_type: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    lock_token: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Artifact]:
    """Store a file: a path, bytes, or a file open for reading.

    It is sent in parts, and what was stored is checked against what was sent. `name`
    and `media_type` are those of the file if not given. A name that is in use gets its
    next version.
    """
    body = Body(source)
    name = name or body.name
    if not name:
        body.close()
        raise ValueError("Give the artifact a name: this source has none")
    key = idempotency_key or str(uuid.uuid4())
    headers = {
        "Idempotency-Key": key,
        "Content-Type": OCTETS,
        "Content-Length": str(body.size),
        LOCK_TOKEN: lock_token,
    }
    # Not as the header: a form's type there would have the server look for a form.
    params = {"name": name, "media_type": media_type or _guessed(name)}
    if metadata is not None:
        params["metadata"] = json.dumps(metadata)

    def read(response: httpx.Response) -> Artifact:
        artifact = json_reader(Artifact.from_json)(response)
        if body.sha256 and artifact.sha256 != body.sha256:
            raise AgentStateError(
                "what was stored is not what was sent", code="sha256_mismatch"
            )
        return artifact

    return Call(
        "POST",
        path_to("sessions", session_id, "artifacts"),
        read,
        params,
        {k: v for k, v in headers.items() if v is not None},
        body,
        key,
    )


def _guessed(name: str) -> str:
    media_type, compression = mimetypes.guess_type(name)
    if compression is not None:
        return COMPRESSED.get(compression, OCTETS)
    return media_type or OCTETS


def download(artifact_id: str, target: Target) -> Fetch:
    """Write an artifact's bytes to a path or an open file; return how many there were.

    A cut connection is taken up where it was. At a path, the file appears when all of
    it has come and is what was stored.
    """
    return Fetch(path_to("artifacts", artifact_id, "content"), target)


def read(artifact_id: str) -> Call[bytes]:
    """Return an artifact's bytes. For small ones: they are held in memory."""
    path = path_to("artifacts", artifact_id, "content")
    return Call("GET", path, lambda response: response.content)


def get(artifact_id: str) -> Call[Artifact]:
    """Return what is known of an artifact."""
    return reading(path_to("artifacts", artifact_id), Artifact.from_json)


def list_page(
    session_id: str | None = None,
    *,
    name: str | None = None,
    version: int | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[Artifact]]:
    """List a session's artifacts, or the project's, newest first."""
    params = filled(name=name, version=version, limit=limit, cursor=cursor)
    path = path_to("artifacts")
    if session_id is not None:
        path = path_to("sessions", session_id, "artifacts")
    return listing(path, Artifact.from_json, params)


def link(artifact_id: str, *, expires_s: int | None = None) -> Call[ArtifactLink]:
    """Return a link at which anybody may read the artifact for a while: 5 minutes."""
    path = path_to("artifacts", artifact_id, "link")
    return reading(path, ArtifactLink.from_json, filled(expires_s=expires_s))


def delete(
    artifact_id: str,
    *,
    lock_token: str | None = None,
    idempotency_key: str | None = None,
) -> Call[None]:
    """Delete an artifact; its bytes go with the last artifact that holds them."""
    return writing(
        "DELETE",
        path_to("artifacts", artifact_id),
        nothing,
        idempotency_key=idempotency_key,
        headers={LOCK_TOKEN: lock_token},
    )
