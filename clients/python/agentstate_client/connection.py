"""What both clients share: where the server is, who asks, how long to wait."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field, replace
from typing import Any

from agentstate_client.retry import Attempts, RetryPolicy
from agentstate_client.version import __version__

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class Connection:
    base_url: str
    api_key: str = field(repr=False)
    timeout: float  # seconds, of one try
    policy: RetryPolicy

    @classmethod
    def of(
        cls,
        base_url: str | None,
        api_key: str | None,
        timeout: float,
        max_retries: int,
        deadline: float,
    ) -> Connection:
        """Fill in from the environment what was not given."""
        key = api_key or os.environ.get("AGENTSTATE_API_KEY")
        if not key:
            raise ValueError("No API key: pass api_key or set AGENTSTATE_API_KEY")
        url = base_url or os.environ.get("AGENTSTATE_URL") or DEFAULT_URL
        policy = RetryPolicy(max_retries=max_retries, deadline=deadline)
        # A key read from a file or a shell often brings its line end along.
        return cls(url, key.strip(), timeout, policy)

    def http_options(self) -> dict[str, Any]:
        """Return the arguments of httpx.Client and of httpx.AsyncClient."""
        return {
            "base_url": self.base_url,
            "headers": {
                "Authorization": f"Bearer {self.api_key}",
                "User-Agent": f"agentstate-client/{__version__} "
                f"python/{platform.python_version()}",
            },
        }

    def within(self, deadline: float | None) -> Connection:
        """Return the same connection for calls that take at most `deadline` seconds."""
        if deadline is None:
            return self
        policy = replace(self.policy, deadline=min(deadline, self.policy.deadline))
        return replace(self, policy=policy)

    def attempts(self) -> Attempts:
        return Attempts(self.policy)
