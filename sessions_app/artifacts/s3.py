"""Artifacts in a bucket of any store that speaks S3, by django-storages."""

import contextlib
import io
from collections.abc import Iterator
from typing import IO, Any

from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from storages.backends.s3 import S3Storage

from sessions_app.artifacts.content import OCTETS
from sessions_app.artifacts.store import CHUNK_BYTES

PART_BYTES = 8 * 1024 * 1024  # S3 takes no less than 5 MB
PARTS_MAX = 10_000  # that S3 takes
CONNECT_SECONDS = 3
TRIES = 2


class Slice(io.RawIOBase):
    """`length` bytes of a file from `start`, as a file of its own."""

    def __init__(self, file: IO[bytes], start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def __len__(self) -> int:
        return self._length

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._at, self._length)[whence]
        self._at = min(max(base + offset, 0), self._length)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = self._length - self._at
        wanted = left if size is None or size < 0 else min(size, left)
        self._file.seek(self._start + self._at)
        found = self._file.read(wanted)
        self._at += len(found)
        return found


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
            **options,
        )

    def put(self, path: str, file: IO[bytes]) -> None:
        """As Store.put. The bucket learns no media type: nothing runs from there.

        Parts are sent from the file itself. boto's own transfer would hold each in
        memory, and leave the heap in pieces.
        """
        named = self._named(path)
        size = file.seek(0, 2)
        if size <= PART_BYTES:
            part = Slice(file, 0, size)
            self._client.put_object(**named, Body=part, ContentType=OCTETS)
            return
        begun = self._client.create_multipart_upload(**named, ContentType=OCTETS)
        upload = {**named, "UploadId": begun["UploadId"]}
        try:
            parts = self._put_parts(upload, file, size)
            self._client.complete_multipart_upload(
                **upload, MultipartUpload={"Parts": parts}
            )
        except BaseException:
            with contextlib.suppress(*self.failures):
                self._client.abort_multipart_upload(**upload)
            raise

    def _put_parts(
        self, upload: dict[str, str], file: IO[bytes], size: int
    ) -> list[dict[str, Any]]:
        length = max(PART_BYTES, -(-size // PARTS_MAX))
        parts = []
        for number, start in enumerate(range(0, size, length), 1):
            part = Slice(file, start, min(length, size - start))
            answer = self._client.upload_part(**upload, PartNumber=number, Body=part)
            parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        return parts

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
