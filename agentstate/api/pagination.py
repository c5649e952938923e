"""Lists by cursor: keyset, no offsets and no totals.

A cursor is the place of the last row shown, signed, so that a changed or invented one
is refused instead of read. Its scope is the list's name and order: a cursor of one list
is no cursor of another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.signing import BadSignature, Signer
from django.db.models import F, Model, Q, QuerySet
from django.db.models.fields.tuple_lookups import (
    Tuple,
    TupleGreaterThan,
    TupleLessThan,
)
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer

from agentstate.api.params import PageParams, Params, read_params
from agentstate.errors import AppError


class BadCursor(AppError):
    """This cursor is not one that this list has handed out."""

    code, status = "bad_cursor", 422

    def __init__(self) -> None:
        detail = "this is not a cursor of this list"
        error = {"path": "cursor", "code": self.code, "detail": detail}
        super().__init__(errors=[error])


@dataclass(frozen=True)
class Page[T]:
    items: Sequence[T]
    next: str | None


def encode_cursor(scope: str, values: Sequence[str | int]) -> str:
    """Return an opaque cursor that holds `values`, valid for `scope` only."""
    return _signer(scope).sign_object(list(values))


def decode_cursor(scope: str, cursor: str, length: int | None = None) -> list[Any]:
    """Return the values that `encode_cursor` was given. Raises BadCursor."""
    try:
        values = _signer(scope).unsign_object(cursor)
    except (BadSignature, ValueError) as exc:
        raise BadCursor from exc
    if not isinstance(values, list) or length not in (None, len(values)):
        raise BadCursor
    return values


def paginate[M: Model](
    queryset: QuerySet[M], params: dict[str, Any], order: Sequence[str]
) -> Page[M]:
    """Return one page of `queryset` in `order`, by the `cursor` and `limit` in params.

    `order` names one or two columns, all ascending or all descending ("-created_at",
    "-id"); together they are unique in the list, and an index that begins with what
    the list is filtered by holds them.
    """
    names = [name.removeprefix("-") for name in order]
    scope = f"{queryset.model._meta.label}:{','.join(order)}"
    if cursor := params.get("cursor"):
        place = _decode_place(queryset.model, names, scope, cursor)
        queryset = queryset.filter(_after(names, place, order[0].startswith("-")))
    limit = params["limit"]
    rows = list(queryset.order_by(*order)[: limit + 1])
    items = rows[:limit]
    if len(rows) <= limit:
        return Page(items, None)
    return Page(items, encode_cursor(scope, _place(items[-1], names)))


def page_of[M: Model](
    queryset: QuerySet[M],
    out: type[Serializer[Any]],
    request: Request,
    *,
    order: Sequence[str],
    params: type[Params] = PageParams,
) -> Response:
    """Answer a list call that has no filters beyond those already in `queryset`."""
    return page_response(paginate(queryset, read_params(request, params), order), out)


def page_response(
    page: Page[Any], out: type[Serializer[Any]] | Callable[[Any], Any]
) -> Response:
    """Return `{"items", "next"}`; `out` is a serializer or makes one item's JSON."""
    items: Any
    if isinstance(out, type):
        items = out(page.items, many=True).data
    else:
        items = [out(item) for item in page.items]
    return Response({"items": items, "next": page.next})


def _after(names: list[str], place: list[Any], descending: bool) -> Q | Any:
    # A row comparison, `(a, b) < (x, y)`, is what one index range can answer; the
    # same as OR and AND is not.
    if len(names) == 1:
        return Q(**{f"{names[0]}__{'lt' if descending else 'gt'}": place[0]})
    lookup = TupleLessThan if descending else TupleGreaterThan
    return lookup(Tuple(*(F(name) for name in names)), tuple(place))


def _place(row: Model, names: list[str]) -> list[str | int]:
    values = []
    for name in names:
        value = getattr(row, name)
        values.append(value if isinstance(value, int) else _as_text(value))
    return values


def _as_text(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _decode_place(
    model: type[Model], names: list[str], scope: str, cursor: str
) -> list[Any]:
    values = decode_cursor(scope, cursor, len(names))
    fields: list[Any] = [model._meta.get_field(name) for name in names]
    return [field.to_python(v) for field, v in zip(fields, values, strict=True)]


def _signer(scope: str) -> Signer:
    return Signer(salt=f"agentstate.cursor:{scope}", sep=".")
