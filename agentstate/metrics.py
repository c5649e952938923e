"""Prometheus metrics of all our processes, gathered through files in the data folder.

Each process writes its own file and `/metrics` adds them up, whichever process answers.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import psutil
from django.conf import settings
from django.http import HttpRequest

# prometheus_client chooses between memory and files when it is first imported.
os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", str(settings.DATA_DIR / "metrics"))
os.makedirs(os.environ["PROMETHEUS_MULTIPROC_DIR"], mode=0o700, exist_ok=True)

from prometheus_client import (  # noqa: E402
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector  # noqa: E402

REQUESTS = Counter(
    "agentstate_requests_total",
    "Requests answered.",
    ["method", "route", "status"],
)
REQUEST_SECONDS = Histogram(
    "agentstate_request_seconds",
    "Time from the first middleware to the answer.",
    ["method", "route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30),
)
CONFLICTS = Counter(
    "agentstate_conflicts_total",
    "Calls refused because another was faster, by the code of the answer.",
    ["code"],
)
RECALL_SECONDS = Histogram(
    "agentstate_recall_seconds",
    "Time to rank and read the facts of one recall.",
    ["mode"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 1, 5),
)
PROMOTIONS = Counter("agentstate_promotions_total", "Promotions ended.", ["status"])
EMBEDDING_FAILURES = Counter(
    "agentstate_embedding_failures_total", "Facts that could not be embedded."
)
STREAMS = Gauge("agentstate_streams", "Open live streams.", multiprocess_mode="livesum")
SOCKETS = Gauge("agentstate_sockets", "Open websockets.", multiprocess_mode="livesum")
TAILER_SECONDS = Histogram(
    "agentstate_tailer_seconds",
    "Time in which the tailer looked once at all that is followed.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
)
ARTIFACT_BYTES = Counter(
    "agentstate_artifact_bytes_total",
    "Bytes of artifacts taken in and given out.",
    ["direction"],
)
STORE_FAILURES = Counter(
    "agentstate_store_failures_total",
    "Calls to the store of artifacts that failed.",
    ["operation"],
)
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


class OpenConnections:
    """How many connections of a kind this process holds open."""

    def __init__(self, gauge: Gauge) -> None:
        self.gauge = gauge
        self.count = 0

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        self.count += 1
        self.gauge.inc()
        try:
            yield
        finally:
            self.count -= 1
            self.gauge.dec()


open_streams = OpenConnections(STREAMS)
open_sockets = OpenConnections(SOCKETS)


def record_request(request: HttpRequest, status: int, seconds: float) -> None:
    # The route, not the path: paths hold ids, and each label set is kept for ever.
    route = request.resolver_match.route if request.resolver_match else "none"
    method = str(request.method) if request.method in METHODS else "other"
    count, observe = _measures(method, route, status)
    count()
    observe(seconds)


@lru_cache(4096)
def _measures(
    method: str, route: str, status: int
) -> tuple[Callable[[], None], Callable[[float], None]]:
    """What counts such a request; to look it up costs more than to count."""
    seconds = REQUEST_SECONDS.labels(method, route)
    return REQUESTS.labels(method, route, status).inc, seconds.observe


def exposition() -> bytes:
    """Everything that was counted since the server started, as Prometheus reads it."""
    _forget_the_dead()
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def _forget_the_dead() -> None:
    """Drop the live gauges of processes that were killed: they left them as they were.

    What such a process has counted stays.
    """
    for path in Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]).glob("gauge_live*_*.db"):
        pid = path.stem.rpartition("_")[2]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            path.unlink(missing_ok=True)
