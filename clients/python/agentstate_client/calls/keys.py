"""The key in use."""

from __future__ import annotations

from agentstate_client.call import Call, path_to, reading
from agentstate_client.models import Caller


def whoami() -> Call[Caller]:
    """Return what the server knows about the key in use."""
    return reading(path_to("whoami"), Caller.from_json)
