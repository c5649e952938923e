import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import boto3
import httpx
import pytest

from agentstate.processes import wait_until
from tests.cutting_proxy import CuttingProxy
from tests.factories import SessionApi, make_session
from tests.server import PATIENCE, Port


@pytest.fixture
def session(api) -> SessionApi:
    """An open session of `project`, over `api`."""
    return make_session(api)


class Bucket:
    """A bucket of a real S3 server, reached through a proxy that can break it."""

    def __init__(self, target: str, name: str) -> None:
        self.name = name
        self.proxy = CuttingProxy(target)
        self.target = self.proxy.target
        self.direct = boto3.client(
            "s3", endpoint_url=target, region_name="us-east-1", **KEYS
        )
        self.direct.create_bucket(Bucket=name)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AGENTSTATE_STORAGE_BUCKET": self.name,
            "AGENTSTATE_STORAGE_ENDPOINT": self.proxy.base_url,
            "AGENTSTATE_STORAGE_REGION": "us-east-1",
            "AGENTSTATE_STORAGE_ADDRESSING": "path",
            "AWS_ACCESS_KEY_ID": KEYS["aws_access_key_id"],
            "AWS_SECRET_ACCESS_KEY": KEYS["aws_secret_access_key"],
        }

    def options(self, **changed: str) -> dict[str, str]:
        return {
            "bucket_name": self.name,
            "endpoint_url": self.proxy.base_url,
            "region_name": "us-east-1",
            "addressing_style": "path",
            "access_key": KEYS["aws_access_key_id"],
            "secret_key": KEYS["aws_secret_access_key"],
            **changed,
        }

    def keys(self) -> list[str]:
        found = self.direct.list_objects_v2(Bucket=self.name).get("Contents", ())
        return sorted(each["Key"] for each in found)

    def unfinished(self) -> int:
        found = self.direct.list_multipart_uploads(Bucket=self.name)
        return len(found.get("Uploads", ()))

    def die(self) -> None:
        """Break every connection, those to come included, until `live`."""
        self.proxy.target = ("127.0.0.1", 1)
        self.proxy.cut_all()

    def live(self) -> None:
        self.proxy.target = self.target
        self.proxy.cut_after = []


KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test-secret"}


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """A server of the S3 protocol over HTTP; its address."""
    held = Port()
    port = held.number
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def answers() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/moto-api/", timeout=5).status_code == 200
        return False

    try:
        assert wait_until(answers, PATIENCE) and process.poll() is None
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def bucket(s3_server: str) -> Iterator[Bucket]:
    made = Bucket(s3_server, f"b-{uuid4().hex}")
    yield made
    made.proxy.close()


@pytest.fixture
def in_bucket(bucket: Bucket, settings: Any) -> Bucket:
    """The bucket, as the store of this process."""
    use_bucket(settings, bucket.options())
    return bucket


def use_bucket(settings: Any, options: dict[str, str]) -> None:
    store = {"BACKEND": "sessions_app.artifacts.s3.BucketStore", "OPTIONS": options}
    settings.STORAGES = settings.STORAGES | {"artifacts": store}
