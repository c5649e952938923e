"""What a project lets become memory at once: `settings.memory` of the project."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from access_app.models import Project

ACTIVE, REVIEW, OFF = "active", "review", "off"
CHOICES = (ACTIVE, REVIEW, OFF)


@dataclass(frozen=True)
class Policy:
    """`remember` and `promote` say by source kind: active, review or off.

    What an agent inferred waits for a person when it was promoted from a log, and is
    active when the agent itself asked for it to be remembered.
    """

    remember: dict[str, str] = field(
        default_factory=lambda: {"user": ACTIVE, "agent": ACTIVE, "staff": ACTIVE}
    )
    promote: dict[str, str] = field(
        default_factory=lambda: {"user": ACTIVE, "agent": REVIEW}
    )
    extractor: str = ""  # rules, llm or off; empty: llm where an endpoint is set
    promote_tool_output: bool = False
    llm_max_tokens: int = 20_000  # of prompt and answer, for one promotion

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "Policy":
        """Read a project's settings. What is not understood is left at its default;
        a choice that is none of CHOICES waits for review, since it was meant to."""
        given = settings.get("memory")
        if not isinstance(given, dict):
            return cls()
        known: dict[str, Any] = {}
        for name in ("remember", "promote"):
            known[name] = getattr(cls(), name) | _choices(given.get(name))
        if given.get("extractor") in ("rules", "llm", OFF):
            known["extractor"] = given["extractor"]
        if isinstance(given.get("promote_tool_output"), bool):
            known["promote_tool_output"] = given["promote_tool_output"]
        if isinstance(given.get("llm_max_tokens"), int):
            known["llm_max_tokens"] = max(0, given["llm_max_tokens"])
        return cls(**known)


def changed(
    settings: dict[str, Any], choices: dict[str, dict[str, str]]
) -> dict[str, Any]:
    """A project's settings of memory with other choices; the rest stays as it is."""
    given = settings.get("memory")
    kept = given if isinstance(given, dict) else {}
    for name, wanted in choices.items():
        known = kept.get(name)
        kept = kept | {name: (known if isinstance(known, dict) else {}) | wanted}
    return kept


def policy_of(project_id: UUID) -> Policy:
    return Policy.of(Project.objects.only("settings").get(pk=project_id).settings)


def _choices(given: Any) -> dict[str, str]:
    if not isinstance(given, dict):
        return {}
    return {k: v if v in CHOICES else REVIEW for k, v in given.items()}
