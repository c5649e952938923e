"""Artifacts: upload, list, download, link, delete."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.db import transaction
from django.http import HttpRequest, HttpResponseBase, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from django.urls import reverse
from django.utils.http import parse_header_parameters
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.response import Response

from access_app import idempotency
from access_app.api.docs import documented, page
from access_app.api.views import ApiRequest, Handler, replayed
from access_app.idempotency import IdempotencyRequest
from agentstate import codec
from agentstate.api.pagination import page_response, paginate
from agentstate.api.params import PageParams, Params, read_params
from agentstate.api.parsers import LengthRequired, declared_length
from agentstate.api.serializers import JSONObjectField, StringField
from agentstate.errors import FieldError
from agentstate.metrics import ARTIFACT_BYTES
from sessions_app.api.base import LOCK_TOKEN, SessionCallView
from sessions_app.api.serializers import NAME_MAX
from sessions_app.artifacts.blobs import ContentGone
from sessions_app.artifacts.content import (
    MEDIA_TYPE_MAX,
    check_media_type,
    check_name,
    check_sha256,
    check_size,
    received,
)
from sessions_app.artifacts.links import make_link
from sessions_app.artifacts.quota import check_room
from sessions_app.artifacts.services import (
    TRIES,
    NewArtifact,
    Upload,
    delete_artifact,
    get_artifact,
    record_artifact,
)
from sessions_app.artifacts.serving import content_response
from sessions_app.errors import ArtifactNotFound, SessionClosed, StorageUnavailable
from sessions_app.log import iso
from sessions_app.models import Artifact

# What Django raises for a form: broken, of too many parts, in no encoding there is.
UNREADABLE_FORM = (
    UnreadablePostError,
    MultiPartParserError,
    SuspiciousOperation,
    LookupError,
    ValueError,
)
# In the environment of a request that only asks whether it may upload so many bytes.
ASKED_ENVIRON = "agentstate.upload_bytes"
MULTIPART = "multipart/form-data"
ANY_TYPE = "*/*"
OCTETS = "application/octet-stream"
BYTES_EXAMPLE = "%PDF-1.7 …"
METADATA_MAX = 2000  # characters, in an address
LINK_SECONDS = 300
LINK_SECONDS_MAX = 7 * 24 * 3600  # no store signs for longer
ARTIFACT_EXAMPLE = {
    "id": "0199b2a0-9e10-7b12-8f6e-5d1c0a9b7e42",
    "session": "0199b2a0-8a10-7d12-8f6e-5d1c0a9b7e42",
    "seq": 4,
    "name": "report.pdf",
    "version": 1,
    "media_type": "application/pdf",
    "size": 48213,
    "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "metadata": {"tool": "pdf_writer"},
    "actor": "key:4f0c1a9be27d",
    "created_at": "2026-01-15T09:30:00.000000Z",
}


class ArtifactOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    session = serializers.UUIDField()
    seq = serializers.IntegerField(help_text="The event that tells of it.")
    name = serializers.CharField()
    version = serializers.IntegerField(help_text="1, 2, 3 for the uploads of a name.")
    media_type = serializers.CharField()
    size = serializers.IntegerField(help_text="In bytes.")
    sha256 = serializers.CharField()
    metadata = JSONObjectField()
    actor = serializers.CharField()
    created_at = serializers.DateTimeField()


class UploadParams(Params):
    name = StringField(
        max_length=NAME_MAX,
        required=False,
        help_text="Required, unless Content-Disposition or the form names the file.",
    )
    media_type = StringField(
        max_length=MEDIA_TYPE_MAX,
        required=False,
        help_text="In place of Content-Type.",
    )
    sha256 = StringField(
        max_length=64,
        required=False,
        help_text="What the bytes must have; anything else is refused (422).",
    )
    metadata = StringField(
        max_length=METADATA_MAX, required=False, help_text="A JSON object."
    )


class ArtifactListParams(PageParams):
    name = StringField(max_length=NAME_MAX, required=False)
    version = serializers.IntegerField(min_value=1, max_value=2**31 - 1, required=False)


class LinkParams(Params):
    expires_s = serializers.IntegerField(
        min_value=1, max_value=LINK_SECONDS_MAX, default=LINK_SECONDS
    )


class LinkOut(serializers.Serializer[Any]):
    url = serializers.CharField(help_text="Give it to whoever may read the artifact.")
    expires_at = serializers.DateTimeField()
    direct = serializers.BooleanField(help_text="It leads to the store itself.")


def artifact_json(artifact: Artifact) -> dict[str, Any]:
    """Return an artifact as ArtifactOut describes it."""
    return {
        "id": str(artifact.pk),
        "session": str(artifact.session_id),
        "seq": artifact.seq,
        "name": artifact.name,
        "version": artifact.version,
        "media_type": artifact.media_type,
        "size": artifact.size,
        "sha256": artifact.sha256,
        "metadata": artifact.metadata,
        "actor": artifact.actor,
        "created_at": iso(artifact.created_at),
    }


class Sent(NamedTuple):
    """What a request brings: its bytes, and what it calls them."""

    source: Any
    announced: int | None
    name: str
    media_type: str


class SessionArtifactsView(SessionCallView):
    upload: Upload
    new: NewArtifact

    @documented(
        "list_session_artifacts",
        "List a session's artifacts, newest first",
        params=ArtifactListParams,
        responses={200: page(ArtifactOut)},
        response_example={"items": [ARTIFACT_EXAMPLE], "next": None},
        errors=[404],
        description="With `name` and `limit=1`: the newest version of a name. A fork "
        "has the artifacts that its parent had at that seq.",
        tags=["artifacts"],
    )
    def get(self, request: ApiRequest, session_id: UUID) -> Response:
        params = read_params(request, ArtifactListParams)
        found = Artifact.objects.seen_in(self.load(session_id)).live()
        return page_response(paginate(_narrowed(found, params), params, ["-seq"]), _out)

    @documented(
        "create_artifact",
        "Upload an artifact",
        params=UploadParams,
        request={
            OCTETS: OpenApiTypes.BINARY,
            MULTIPART: {
                "type": "object",
                "properties": {"file": {"type": "string", "format": "binary"}},
                "required": ["file"],
            },
        },
        request_example={OCTETS: BYTES_EXAMPLE, MULTIPART: {"file": BYTES_EXAMPLE}},
        responses={201: ArtifactOut},
        response_example=ARTIFACT_EXAMPLE,
        headers=[LOCK_TOKEN],
        errors=[404, 423],
        description="The body is the file, with its own Content-Type; or a form of at "
        "most 40 MB with one file. A name that is in use gets its next version; "
        "nothing is replaced. "
        "Bytes that the project has already are kept once.",
        tags=["artifacts"],
    )
    def post(self, request: ApiRequest, session_id: UUID) -> Response:
        writer = self.writer
        artifact = record_artifact(session_id, self.new, self.upload, **writer)
        return Response(artifact_json(artifact), status=201)

    def read_idempotency(self, request: ApiRequest) -> IdempotencyRequest | None:
        """As every call's; the digest stands for the body."""
        told = (self.new.name, self.new.media_type, self.upload.content.sha256)
        body = "\0".join(told).encode()
        return idempotency.read_idempotency(request, self.caller, body)

    def call_once(self, handler: Handler, request: ApiRequest) -> HttpResponseBase:
        """For an upload: have the bytes in the store, and only then the transaction."""
        if request.method != "POST":
            return super().call_once(handler, request)
        params = read_params(request, UploadParams)
        self._check_may_upload(request._request)
        if ASKED_ENVIRON in request._request.META:
            check_size(
                request._request.META[ASKED_ENVIRON], settings.ARTIFACT_MAX_BYTES
            )
            return Response(status=204)
        with _sent(request._request) as sent:
            self.new = _new_artifact(params, sent)
            with received(sent.source, announced=sent.announced) as content:
                check_sha256(params.get("sha256"), content)
                with Upload(self.caller.project_id, content) as self.upload:
                    return self._store_once(handler, request)

    def _check_may_upload(self, http: HttpRequest) -> None:
        """Refuse before a byte is read what would be refused after the last."""
        encoding = http.META.get("HTTP_TRANSFER_ENCODING", "").lower()
        if "chunked" in encoding and not http.META.get("CONTENT_LENGTH"):
            raise LengthRequired
        session = self.load(self.kwargs["session_id"])
        if not session.is_open:
            raise SessionClosed(session_status=session.status)
        # What a key repeats may be stored already; it is looked at when it is here.
        size = http.META.get(ASKED_ENVIRON) or declared_length(http)
        if size and not http.headers.get("Idempotency-Key"):
            check_room(session.project_id, size)

    def _store_once(self, handler: Handler, request: ApiRequest) -> HttpResponseBase:
        if key := self.read_idempotency(request):
            with transaction.atomic():
                answer = idempotency.begin(key)
            if answer is not None:
                return replayed(answer, answer.body)
        for _ in range(TRIES):
            self.upload.place()
            try:
                response = super().call_once(handler, request)
            except ContentGone:
                continue
            ARTIFACT_BYTES.labels("in").inc(self.upload.content.size)
            return response
        raise StorageUnavailable


@contextmanager
def _sent(http: HttpRequest) -> Iterator[Sent]:
    media_type = http.META.get("CONTENT_TYPE", "")
    if media_type.partition(";")[0].strip().lower() == MULTIPART:
        with _form_file(http) as sent:
            yield sent
        return
    source = http.META.get("wsgi.input")
    seekable = getattr(source, "seekable", None)
    named = http.headers.get("Content-Disposition", "")
    yield Sent(
        # Our own server's file of the body can be read twice; any other stream by
        # Django, which ends where the body does.
        source if seekable and seekable() else http,
        declared_length(http),
        _file_name(named) if named else "",
        media_type,
    )


@contextmanager
def _form_file(http: HttpRequest) -> Iterator[Sent]:
    """The one file of a form. It is copied once more, so it may not be the largest."""
    check_size(declared_length(http), settings.REQUEST_MAX_BYTES)
    http.upload_handlers = [TemporaryFileUploadHandler(http)]
    try:
        files = [file for _, each in http.FILES.lists() for file in each]
    except UNREADABLE_FORM as exc:
        raise FieldError("file", "bad_form", "the form cannot be read") from exc
    try:
        if len(files) != 1:
            raise FieldError("file", "one_file", "the form must hold one file")
        [file] = files
        media_type = file.content_type or ""
        yield Sent(file.file, file.size, file.name or "", media_type)
    finally:
        for each in files:
            each.close()


def _file_name(disposition: str) -> str:
    """The name in a Content-Disposition, whose `filename*` may claim any encoding."""
    try:
        name = parse_header_parameters(disposition)[1].get("filename", "")
        name.encode()
    except (LookupError, ValueError) as exc:
        detail = "the name in Content-Disposition cannot be read"
        raise FieldError("name", "bad_name", detail) from exc
    return name


def _metadata(text: str) -> dict[str, Any]:
    with codec.inside("metadata"):
        metadata = codec.loads(text)
    if not isinstance(metadata, dict):
        raise FieldError("metadata", "not_an_object", "must be a JSON object")
    return metadata


def _new_artifact(params: dict[str, Any], sent: Sent) -> NewArtifact:
    metadata = _metadata(params["metadata"]) if "metadata" in params else {}
    name = params.get("name") or sent.name
    if not name:
        raise FieldError("name", "required", "is required")
    return NewArtifact(
        check_name(name),
        check_media_type(params.get("media_type") or sent.media_type),
        metadata,
    )


def _narrowed(found: Any, params: dict[str, Any]) -> Any:
    for name in ("name", "version"):
        if name in params:
            found = found.filter(**{name: params[name]})
    return found


def _out(artifact: Artifact) -> dict[str, Any]:
    return artifact_json(artifact)


class ArtifactCallView(SessionCallView):
    """A call on one artifact, of whatever session the key may see."""

    def load_artifact(self, artifact_id: UUID) -> Artifact:
        artifact = get_artifact(
            self.caller.project_id, artifact_id, subject=self.caller.subject
        )
        if not self._may_see(artifact):
            raise ArtifactNotFound
        return artifact

    def _may_see(self, artifact: Artifact) -> bool:
        bound_to = self.caller.session_id
        if bound_to is None or artifact.session_id == bound_to:
            return True
        # A fork reads what it began with, where it lies.
        seen = Artifact.objects.seen_in(self.load(bound_to))
        return seen.filter(id=artifact.pk).exists()


class ArtifactListView(SessionCallView):
    @documented(
        "list_artifacts",
        "List the project's artifacts, newest first",
        params=ArtifactListParams,
        responses={200: page(ArtifactOut)},
        response_example={"items": [ARTIFACT_EXAMPLE], "next": None},
        tags=["artifacts"],
    )
    def get(self, request: ApiRequest) -> Response:
        params = read_params(request, ArtifactListParams)
        caller = self.caller
        if caller.session_id is not None:
            found = Artifact.objects.seen_in(self.load(caller.session_id))
        else:
            found = Artifact.objects.in_project(caller.project_id)
            found = found.of_subject(caller.subject)
        found = _narrowed(found.live(), params)
        return page_response(paginate(found, params, ["-id"]), _out)


class ArtifactView(ArtifactCallView):
    @documented(
        "get_artifact",
        "Read what is known of an artifact",
        responses={200: ArtifactOut},
        response_example=ARTIFACT_EXAMPLE,
        errors=[404],
        tags=["artifacts"],
    )
    def get(self, request: ApiRequest, artifact_id: UUID) -> Response:
        return Response(artifact_json(self.load_artifact(artifact_id)))

    @documented(
        "delete_artifact",
        "Delete an artifact",
        responses={204: None},
        headers=[LOCK_TOKEN],
        errors=[404, 423],
        description="Its bytes go with the last artifact of the project that holds "
        "them. The log keeps that it was there.",
        tags=["artifacts"],
    )
    def delete(self, request: ApiRequest, artifact_id: UUID) -> Response:
        bound_to = self.caller.session_id
        artifact = self.load_artifact(artifact_id)
        if bound_to is not None and artifact.session_id != bound_to:
            raise ArtifactNotFound  # it is the parent's to delete
        delete_artifact(self.caller.project_id, artifact_id, **self.writer)
        return Response(status=204)


RANGE_HEADERS = [
    OpenApiParameter(
        "Range",
        str,
        OpenApiParameter.HEADER,
        description="One range, such as `bytes=0-1023`: answered with 206.",
    ),
    OpenApiParameter(
        "If-None-Match",
        str,
        OpenApiParameter.HEADER,
        description="The ETag, which is the sha256: 304 if you have these bytes.",
    ),
]


class ArtifactContentView(ArtifactCallView):
    @documented(
        "read_artifact",
        "Download an artifact's bytes",
        responses={
            (200, ANY_TYPE): OpenApiTypes.BINARY,
            (206, ANY_TYPE): OpenApiTypes.BINARY,
            304: None,
        },
        response_example=BYTES_EXAMPLE,
        headers=RANGE_HEADERS,
        errors=[404, 416],
        description="As an attachment, sandboxed. Types that a browser might run are "
        "given as application/octet-stream.",
        tags=["artifacts"],
    )
    def get(self, request: ApiRequest, artifact_id: UUID) -> HttpResponseBase:
        read_params(request)
        return content_response(request._request, self.load_artifact(artifact_id))


class ArtifactLinkView(ArtifactCallView):
    @documented(
        "link_artifact",
        "Get a link at which anybody may read an artifact for a while",
        params=LinkParams,
        responses={200: LinkOut},
        response_example={
            "url": "https://agentstate.example/artifacts/eyJh…/report.pdf",
            "expires_at": "2026-01-15T09:35:00.000000Z",
            "direct": False,
        },
        errors=[404],
        description="From a bucket the store's own presigned address, else one of "
        "this server.",
        tags=["artifacts"],
    )
    def get(self, request: ApiRequest, artifact_id: UUID) -> Response:
        params = read_params(request, LinkParams)
        artifact = self.load_artifact(artifact_id)
        link = make_link(artifact, params["expires_s"])
        url = link.url
        if url is None:
            path = reverse("artifact-link", args=[link.token])
            url = request._request.build_absolute_uri(path)
        shown = {"url": url, "expires_at": iso(link.until)}
        return Response(shown | {"direct": link.url is not None})
