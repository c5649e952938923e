"""Read the environment: parse a value, or fail loudly with its name."""

import os
import re
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

TRUE = {"1", "true", "yes", "on"}
FALSE = {"0", "false", "no", "off", ""}


def env_str(name: str, default: str = "") -> str:
    """Return `name`, or the contents of the file that `NAME_FILE` names."""
    if path := os.environ.get(f"{name}_FILE"):
        try:
            return Path(path).read_text().strip()
        except OSError as exc:
            raise ImproperlyConfigured(f"{name}_FILE: {exc}") from exc
    return os.environ.get(name, default)


def env_bool(name: str, default: bool = False) -> bool:
    value = os.environ.get(name)
    if value is None:
        return default
    if value.lower() in TRUE:
        return True
    if value.lower() in FALSE:
        return False
    raise ImproperlyConfigured(f"{name} must be 1 or 0, not {value!r}")


def env_int(name: str, default: int, *, low: int = 0, high: int | None = None) -> int:
    value = os.environ.get(name)
    if value is None or value == "":
        return default
    try:
        number = int(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a number, not {value!r}") from None
    if number < low or (high is not None and number > high):
        raise ImproperlyConfigured(f"{name} must be {low} to {high}, not {number}")
    return number


def env_list(name: str, default: str = "") -> list[str]:
    return [item.strip() for item in env_str(name, default).split(",") if item.strip()]


def env_choice(name: str, *choices: str) -> str:
    """One of `choices`; the first is the default."""
    value = env_str(name) or choices[0]
    if value not in choices:
        raise ImproperlyConfigured(
            f"{name} must be one of {', '.join(choices)}, not {value!r}"
        )
    return value


GRANT = re.compile(r"(.+)=([\w-]+):(owner|operator|reviewer|viewer)")


def env_grants(name: str) -> list[tuple[str, str, str]]:
    """Read `GROUP=PROJECT:ROLE, …`."""
    grants = []
    for item in env_list(name):
        if (found := GRANT.fullmatch(item)) is None:
            raise ImproperlyConfigured(
                f"{name}: {item!r} is not GROUP=PROJECT:ROLE, with a project's slug and"
                " owner, operator, reviewer or viewer"
            )
        group, slug, role = found.groups()
        grants.append((group, slug, role))
    return grants
