"""Facts as CSV, of which no cell runs as a formula in a spreadsheet."""

import csv
import io
from collections.abc import Iterator
from uuid import UUID

from memory_app.models import Fact
from sessions_app.log import iso

HEADER = ("id", "subject", "fact", "kind", "status", "confidence", "version", "created")
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r", "\n")


def safe_cell(text: str) -> str:
    """Put a quote before what a spreadsheet would take for a formula.

    Also after spaces, which some of them skip. The JSON export gives texts as they are.
    """
    stripped = text.lstrip(" ")
    is_formula = stripped.startswith(FORMULA_SIGNS) or text.startswith(FORMULA_SIGNS)
    return f"'{text}" if is_formula else text


def facts_as_csv(project_id: UUID, subject: str) -> Iterator[str]:
    yield csv_line(HEADER)
    facts = Fact.objects.in_project(project_id).about(subject).order_by("id")
    for fact in facts.iterator(chunk_size=500):
        yield csv_line(fact_cells(fact))


def fact_cells(fact: Fact) -> tuple[object, ...]:
    return (
        str(fact.id),
        safe_cell(fact.subject),
        safe_cell(fact.fact),
        fact.kind,
        fact.status,
        fact.confidence,
        fact.version,
        iso(fact.created_at),
    )


def csv_line(cells: tuple[object, ...]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()
