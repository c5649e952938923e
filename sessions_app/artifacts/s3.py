"""Artifacts in a bucket of any store that speaks S3, by django-storages."""

from collections.abc import Iterator
from typing import IO, Any

from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from django.core.files.base import File
from storages.backends.s3 import S3Storage

from sessions_app.artifacts.store import CHUNK_BYTES

PART_BYTES = 5 * 1024 * 1024  # the least that S3 takes; held in memory, one at a time
CONNECT_SECONDS = 3
TRIES = 2


class BucketStore(S3Storage):  # type: ignore[misc]
    """Objects of one bucket, under a prefix if one is set."""

    failures: tuple[type[Exception], ...] = (
        BotoCoreError,
        ClientError,
        Boto3Error,
        OSError,
    )

    def __init__(
        self, *, addressing_style: str = "auto", timeout: int = 60, **options: Any
    ) -> None:
        super().__init__(
            client_config=Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=timeout,
                retries={"total_max_attempts": TRIES, "mode": "standard"},
                s3={"addressing_style": addressing_style},
                signature_version="s3v4",
                # Stores that are not Amazon's often know no other checksums.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
            # In the thread of the request: no pool of threads for each upload.
            transfer_config=TransferConfig(
                multipart_threshold=PART_BYTES,
                multipart_chunksize=PART_BYTES,
                use_threads=False,
            ),
            **options,
        )

    def put(self, path: str, file: IO[bytes]) -> None:
        """As Store.put. The bucket learns no media type: nothing runs from there."""
        self.save(path, File(file))

    def read(self, path: str, start: int, length: int) -> Iterator[bytes]:
        span = {"Range": f"bytes={start}-{start + length - 1}"} if length else {}
        try:
            found = self._client.get_object(**self._named(path), **span)
        except ClientError as exc:
            if _is_missing(exc):
                raise FileNotFoundError(path) from exc
            raise
        return _read(found["Body"], length)

    def object_size(self, path: str) -> int | None:
        try:
            found = self._client.head_object(**self._named(path))
        except ClientError as exc:
            if _is_missing(exc):
                return None
            raise
        return int(found["ContentLength"])

    def remove(self, path: str) -> None:
        self.delete(path)
        named = self._named(path)
        begun = self._client.list_multipart_uploads(
            Bucket=named["Bucket"], Prefix=named["Key"]
        )
        for upload in begun.get("Uploads", ()):
            self._client.abort_multipart_upload(**named, UploadId=upload["UploadId"])

    def link(
        self, path: str, *, seconds: int, disposition: str, media_type: str
    ) -> str | None:
        address: str = self.url(
            path,
            expire=seconds,
            parameters={
                "ResponseContentDisposition": disposition,
                "ResponseContentType": media_type,
            },
        )
        return address

    @property
    def _client(self) -> Any:
        return self.connection.meta.client

    def _named(self, path: str) -> dict[str, str]:
        return {"Bucket": self.bucket_name, "Key": self._normalize_name(path)}


def _is_missing(exc: ClientError) -> bool:
    # A bucket that is not there is a fault of the deployment, not a missing object.
    status = exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return bool(status == 404 and exc.response["Error"].get("Code") != "NoSuchBucket")


def _read(body: Any, length: int) -> Iterator[bytes]:
    try:
        got = 0
        for part in body.iter_chunks(CHUNK_BYTES):
            got += len(part)
            yield part
        if got != length:
            raise OSError(f"the store sent {got} bytes of {length}")
    finally:
        body.close()
