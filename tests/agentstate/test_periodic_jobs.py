"""Background jobs come as often as they say."""

from datetime import UTC, datetime
from itertools import pairwise

from procrastinate.contrib.django import app

MINUTE, DAY = 60, 86_400
EVERY = {  # seconds
    "access_app.sweep_idempotency": 10 * MINUTE,
    "access_app.sweep_sign_ins": DAY,
    "sessions_app.close_expired": MINUTE,
    "sessions_app.end_working_memory": MINUTE,
    "sessions_app.remove_strays": MINUTE,
    "sessions_app.fold_counts": 10 * MINUTE,
    "sessions_app.move_payloads": MINUTE,
    "runs_app.sweep": 10,
    "runs_app.settle_handoffs": 10,
    "runs_app.expire_memory": MINUTE,
    "memory_app.expire_facts": MINUTE,
    "memory_app.promote_due": MINUTE,
    "memory_app.embed_due": 5 * MINUTE,
}
A_WHILE = datetime(2026, 11, 30, 10, 57, 26, tzinfo=UTC)


def test_each_comes_as_often_as_it_says():
    found = {}
    for task in app.periodic_registry.periodic_tasks.values():
        times, at = [], A_WHILE.timestamp()
        for _ in range(100):
            at = task.croniter.get_next(float, start_time=at)
            times.append(at)
        assert times[0] - A_WHILE.timestamp() <= EVERY[task.task.name]
        found[task.task.name] = {later - sooner for sooner, later in pairwise(times)}
    expected = {name: {seconds} for name, seconds in EVERY.items() if name in found}
    assert found == expected
    assert {"runs_app.sweep", "memory_app.promote_due"} <= set(found)
