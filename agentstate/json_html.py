"""A JSON value as HTML that folds: numbers digit for digit, strings only as text.

Every string goes through `escape` and stands in a <bdi>, so neither markup nor the
direction of what an agent wrote reaches beyond its own place.
"""

from collections.abc import Iterator
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from agentstate import codec

NODES_MAX = 3000  # then the rest is left out, with a word: a browser would choke
STRING_MAX = 20_000  # characters
OPEN_ITEMS = 12  # containers with more items begin folded
OPEN_DEPTH = 3


def json_tree(value: Any) -> SafeString:
    """Return nested <details>; `value` is as the codec reads it."""
    return _Tree().node(value, 0)


class _Tree:
    def __init__(self) -> None:
        self.nodes = 0

    def node(self, value: Any, depth: int, name: str | SafeString = "") -> SafeString:
        """`name` stands before the value, and so in what opens and folds it."""
        self.nodes += 1
        if isinstance(value, dict) and value:
            return self._container(value, name, "{", "}", depth)
        if isinstance(value, list) and value:
            return self._container(value, name, "[", "]", depth)
        return format_html("{}{}", name, leaf(value))

    def _container(
        self,
        value: dict[str, Any] | list[Any],
        name: str | SafeString,
        begin: str,
        end: str,
        depth: int,
    ) -> SafeString:
        is_open = len(value) <= OPEN_ITEMS and depth < OPEN_DEPTH
        items = format_html_join("", "<li>{}</li>", self._items(value, depth))
        return format_html(
            '<details class="json"{}><summary>{}{}<span class="json-count">{}</span>{}'
            "</summary><ul>{}</ul></details>",
            mark_safe(" open") if is_open else "",
            name,
            begin,
            _count(value),
            end,
            items,
        )

    def _items(
        self, value: dict[str, Any] | list[Any], depth: int
    ) -> Iterator[tuple[SafeString]]:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for done, (key, item) in enumerate(pairs):
            if self.nodes >= NODES_MAX:
                left = f"{len(value) - done} more are not shown here"
                yield (format_html('<em class="quiet">{}</em>', left),)
                return
            shown = format_html('<bdi class="json-key">{}</bdi>: ', visible(str(key)))
            yield (self.node(item, depth + 1, shown),)


def leaf(value: Any) -> SafeString:
    if isinstance(value, str):
        cut = value[:STRING_MAX]
        more = len(value) - len(cut)
        note = f" … {more:,} more characters" if more else ""
        return format_html('<bdi class="json-string">{}</bdi>{}', visible(cut), note)
    # As the codec writes it, not as Python does: 1.0 stays 1.0, and 10**30 whole.
    return format_html('<span class="json-value">{}</span>', codec.dumps(value))


def visible(text: str) -> str:
    """Show U+0000, which no HTML document can hold, as its symbol."""
    return text.replace("\0", "\N{SYMBOL FOR NULL}")


def _count(value: dict[str, Any] | list[Any]) -> str:
    kind = "field" if isinstance(value, dict) else "item"
    return f" {len(value):,} {kind}{'' if len(value) == 1 else 's'} "
