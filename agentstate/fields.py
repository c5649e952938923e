"""Model fields for what Django's own cannot hold."""

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models.sql.compiler import SQLCompiler

from agentstate import codec

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    class _JSONFieldBase(models.Field[Any, Any]): ...
else:
    _JSONFieldBase = models.Field


class ExactJSONField(_JSONFieldBase):
    """A JSON value kept as its own text, in a column of type `json`.

    Not jsonb: that refuses U+0000 and forgets how a number was written. The price is
    that SQL does not look inside; what a query needs stands in a column of its own.
    """

    description = "JSON, exactly as it was sent"

    def db_type(self, connection: "BaseDatabaseWrapper") -> str:
        return "json"

    def select_format(
        self, compiler: SQLCompiler, sql: str, params: Any
    ) -> tuple[str, Any]:
        # As text: psycopg's own json loader would turn decimals into floats.
        return f"({sql})::text", params

    def get_placeholder_sql(
        self, value: Any, compiler: SQLCompiler, connection: "BaseDatabaseWrapper"
    ) -> tuple[str, tuple[Any, ...]]:
        if hasattr(value, "as_sql"):
            sql, params = compiler.compile(value)
            return sql, tuple(params)
        return "%s::json", (value,)

    def get_prep_value(self, value: Any) -> Any:
        if value is None or hasattr(value, "as_sql"):
            return value
        if isinstance(value, codec.RawJSON):
            return value.encoded_json
        return codec.dumps(value)

    def from_db_value(self, value: str | None, *args: Any) -> Any:
        return None if value is None else codec.loads(value, max_depth=10_000)

    def value_to_string(self, obj: models.Model) -> str:
        return codec.dumps(self.value_from_object(obj))


class Xid8Field(models.Field):  # type: ignore[type-arg]
    """A Postgres transaction id, 64 bits and so never wrapping."""

    def db_type(self, connection: "BaseDatabaseWrapper") -> str:
        return "xid8"

    def select_format(
        self, compiler: SQLCompiler, sql: str, params: Any
    ) -> tuple[str, Any]:
        return f"({sql})::text::bigint", params


def plain_link[M: models.Model](
    to: type[M], *, related_name: str = "+"
) -> "models.ForeignKey[M, M]":
    """A column that names a row of `to`, with no constraint and no index of its own.

    A constraint would cost each insert a lock on that row, and want an index that does
    not begin with the project.
    """
    return models.ForeignKey(
        to,
        on_delete=models.DO_NOTHING,
        related_name=related_name,
        db_constraint=False,
        db_index=False,
    )
