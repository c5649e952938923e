"""Redis keeps a file beside its keys, and that forgets as well."""

import shutil
import tempfile
from pathlib import Path

import pytest
import redis

from agentstate.embedded import EmbeddedServices
from agentstate.ids import new_id
from agentstate.processes import wait_until
from memory_app.forgetting.elsewhere import REDIS_PREFIX, forget_in_redis


@pytest.fixture
def valkey(settings):
    """One of its own, with its folder."""
    # Not pytest's own folder, which is closed to the services' user.
    folder = Path(tempfile.mkdtemp(prefix="agentstate-valkey-"))
    services = EmbeddedServices(folder, postgres=False)
    settings.REDIS_URL = services.start()["REDIS_URL"]
    yield folder / "valkey"
    services.stop()
    shutil.rmtree(folder, ignore_errors=True)


def files_with(folder, text):
    """The append-only files that hold a text; some may just be going."""
    found = []
    for path in folder.rglob("*.aof"):
        try:
            if text in path.read_bytes():
                found.append(path.name)
        except FileNotFoundError:
            continue
    return found


@pytest.mark.parametrize("kind", ["string", "list"])
def test_what_was_deleted_goes_from_the_append_only_file(valkey, settings, kind):
    run = new_id()
    client = redis.Redis.from_url(settings.REDIS_URL)
    key = f"{REDIS_PREFIX}{run}:name"
    if kind == "string":
        client.set(key, "ZQ-SECRET-7")
    else:
        client.rpush(key, "ZQ-SECRET-7")
    client.set(f"{REDIS_PREFIX}{new_id()}:other", "ZQ-KEPT-7")
    assert wait_until(lambda: files_with(valkey, b"ZQ-SECRET-7") != [], 60)
    assert forget_in_redis([run]) == 1
    assert wait_until(lambda: files_with(valkey, b"ZQ-SECRET-7") == [], 60)
    assert client.get(client.keys(f"{REDIS_PREFIX}*")[0]) == b"ZQ-KEPT-7"
