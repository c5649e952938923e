"""A progress bar for commands: on a terminal only, on stderr, never in a log file."""

import time
from types import TracebackType
from typing import Protocol, Self

WIDTH = 30  # characters
REDRAW_SECONDS = 0.1


class Stream(Protocol):
    def isatty(self) -> bool: ...
    def write(self, text: str, /) -> object: ...
    def flush(self) -> None: ...


class ProgressBar:
    """`with ProgressBar(total, "sessions", sys.stderr) as bar: bar.advance()`."""

    def __init__(self, total: int, unit: str, stream: Stream) -> None:
        self.total = total
        self.unit = unit
        self.done = 0
        # Django's wrapper of a stream ends each write with a line feed.
        self._stream: Stream = getattr(stream, "_out", stream)
        self._shown = self._stream.isatty() and total > 0
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()

    def advance(self, count: int = 1) -> None:
        self.done += count
        if self._shown and time.monotonic() - self._drawn_at >= REDRAW_SECONDS:
            self._draw()

    def clear(self) -> None:
        """Take the bar off the line, before other output or at the end."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        part = min(self.done / self.total, 1.0)
        bar = "#" * round(part * WIDTH)
        count = f"{self.done:,} of {self.total:,} {self.unit}"
        self._stream.write(f"\r[{bar:<{WIDTH}}] {part:4.0%} {count}")
        self._stream.flush()
