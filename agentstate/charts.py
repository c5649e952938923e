"""Charts as SVG attributes: drawn on the server, so that no page needs a script.

Positions are attributes, not styles, which the content security policy would refuse.
"""

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 720
HEIGHT = 96
GAP = 2


@dataclass(frozen=True)
class Bar:
    """One bar: its place, and what hovering and screen readers get."""

    x: float
    y: float
    width: float
    height: float
    label: str
    value: int


@dataclass(frozen=True)
class BarChart:
    bars: list[Bar]
    top: int  # the value of a full bar
    total: int
    width: int = WIDTH
    height: int = HEIGHT


def bar_chart(values: Sequence[tuple[str, int]]) -> BarChart:
    """Return bars for pairs of label and value; with all values 0, none stands out."""
    top = max((value for _, value in values), default=0)
    step = WIDTH / max(len(values), 1)
    bars = []
    for index, (label, value) in enumerate(values):
        height = round(value / top * (HEIGHT - 4), 1) if top else 0.0
        if value:
            height = max(height, 1.5)  # one event must be seen beside thousands
        bars.append(
            Bar(
                x=round(index * step, 2),
                y=round(HEIGHT - height, 2),
                width=round(max(step - GAP, 1), 2),
                height=height,
                label=label,
                value=value,
            )
        )
    return BarChart(bars, top, sum(value for _, value in values))
