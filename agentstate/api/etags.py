"""Versions as entity tags: `"7"` in ETag, If-Match and If-None-Match."""

import re

from rest_framework.request import Request

from agentstate.errors import FieldError

ANY = "*"
TAG = re.compile(r'(?:W/)?"?([0-9]{1,18})"?\Z')


def etag(version: int) -> str:
    return f'"{version}"'


def read_if_match(request: Request) -> int | str | None:
    """Return the version that If-Match names, ANY for `*`, None without the header.

    Raises FieldError (422) for what is no version of ours.
    """
    return _read(request, "If-Match")


def read_if_none_match(request: Request) -> int | str | None:
    """As `read_if_match`, for If-None-Match."""
    return _read(request, "If-None-Match")


def _read(request: Request, header: str) -> int | str | None:
    value = request.headers.get(header)
    if value is None:
        return None
    value = value.strip()
    if value == ANY:
        return ANY
    if found := TAG.match(value):
        return int(found[1])
    raise FieldError(header, "bad_etag", 'this is one version, such as "7", or *')
