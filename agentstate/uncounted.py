"""Paging in the admin over tables that only grow."""

from functools import cached_property

from django.core.paginator import Paginator

COUNT_MOST = 10_000


class OrMore(int):
    """A count that stopped: it pages like the number and does not claim to be it."""

    def __str__(self) -> str:
        return f"{int(self):,} or more"


class UncountedPaginator(Paginator):  # type: ignore[type-arg]
    """Pages without COUNT(*), which reads the whole of a log to show one page.

    Rows are counted up to a limit, by their keys. What is behind it is found by
    searching, not by turning pages.
    """

    @cached_property
    def count(self) -> int:
        keys = self.object_list.order_by().values_list("pk")  # type: ignore[attr-defined]
        found = len(keys[: COUNT_MOST + 1])
        return OrMore(COUNT_MOST) if found > COUNT_MOST else found
