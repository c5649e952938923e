"""The ground that every test stands on: real services, one database a test process.

Tests commit for real and nothing is flushed: each test works in a project of its own,
so that `verify_replay` can go over all that the suite left behind. The services start
once, in the process that collects; the workers of pytest-xdist inherit their addresses
and make a database each. The fixtures are in tests/fixtures.py.
"""

import os
import sys
from pathlib import Path
from typing import Any

import django
import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))
os.environ["DJANGO_SETTINGS_MODULE"] = "agentstate.settings"

from tests import services  # noqa: E402

pytest_plugins = ("tests.fixtures", "tests.verification")

# A machine that is busy is no failure: examples have no deadline.
hypothesis.settings.register_profile("suite", max_examples=50, deadline=None)
hypothesis.settings.load_profile("suite")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Start the services before anything reads Django's settings."""
    worker = hasattr(config, "workerinput")
    if not worker:
        services.start()
        if config.getoption("numprocesses", None):
            # Workers inherit it, and pytest-django would read their settings before
            # they have a database of their own. Their conftest sets it again.
            del os.environ["DJANGO_SETTINGS_MODULE"]
    if worker or not config.getoption("numprocesses", None):
        services.make_database(os.environ.get("PYTEST_XDIST_WORKER", "main"))
        django.setup()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
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
