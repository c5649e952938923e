"""The ground that every test stands on: real services, one database a test process.

Tests commit for real and nothing is flushed: each test works in a project of its own,
so that `verify_replay` can go over all that the suite left behind. Each process that
runs tests, so each worker of pytest-xdist, has services of its own: the feed waits for
every open transaction of its cluster, and another worker's would hold it back. The
fixtures are in tests/fixtures.py.
"""

import os
import sys
from pathlib import Path
from typing import Any

import django
import hypothesis
import pytest
from django.conf import settings

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))
os.environ["DJANGO_SETTINGS_MODULE"] = "agentstate.settings"

from tests import services  # noqa: E402

pytest_plugins = ("tests.fixtures", "tests.verification")

# A busy machine is no failure, and nothing hangs on luck: the same examples each time.
# `pytest --hypothesis-profile new` thinks of others.
hypothesis.settings.register_profile(
    "suite",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("suite")
hypothesis.settings.register_profile("new", derandomize=False)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Start the services before anything reads Django's settings."""
    if only_distributes(config):
        # Workers inherit it, and pytest-django would read their settings before they
        # have a database. Their conftest sets it again.
        del os.environ["DJANGO_SETTINGS_MODULE"]
        return
    services.start()
    services.make_database("test")
    django.setup()
    # Tests have more threads at once than the pool has connections.
    pool = settings.DATABASES["default"]["OPTIONS"].get("pool", {})
    pool["timeout"] = 120  # seconds


def only_distributes(config: pytest.Config) -> bool:
    """Whether this process runs no tests itself, but gives them to workers."""
    return not hasattr(config, "workerinput") and bool(
        config.getoption("numprocesses", None)
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    services.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Show what the real server logged beside a failure."""
    report = yield
    server = getattr(item, "funcargs", {}).get("server")
    if report.failed and server is not None:
        report.sections.append(("server log", server.log[-4000:]))
    return report
