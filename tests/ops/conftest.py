import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ops.supervised import Supervised


@pytest.fixture
def supervise() -> Iterator[Callable[..., Supervised]]:
    """supervise(**env) is `manage.py serve` over a folder of its own, not started."""
    made: list[Supervised] = []
    # Not pytest's own folder, which is closed to the services' user.
    top = Path(tempfile.mkdtemp(prefix="agentstate-serve-"))

    def make(**environment: str) -> Supervised:
        made.append(Supervised(top / str(len(made)), **environment))
        return made[-1]

    yield make
    for each in made:
        each.clean_up()
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture(scope="module")
def served() -> Iterator[Supervised]:
    """One running server for the tests of a module that leave it running."""
    top = Path(tempfile.mkdtemp(prefix="agentstate-serve-"))
    running = Supervised(top)
    running.start()
    yield running
    running.clean_up()
    shutil.rmtree(top, ignore_errors=True)
