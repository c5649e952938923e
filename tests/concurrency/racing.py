"""Do things at the same moment, on connections of their own."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connection


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Call all at the same moment, each in a thread, and return what they return."""
    [answers] = each_at_once([()], *calls)
    return answers


def each_at_once(
    rounds: Sequence[Sequence[Any]],
    *calls: Callable[..., Any],
    before: Callable[..., object] = lambda *_: None,
    apart: float = 0,
) -> list[list[Any]]:
    """Call all at the same moment with a round's arguments, then with the next one's.

    Returns a list for each round. Threads and their connections last for all of them,
    and no call begins a round before all have ended the last and `before` is done.
    Each begins up to `apart` seconds late, by chance: where one has less to do before
    they meet, it would else be first nearly every time.
    """
    coming = iter(rounds)
    barrier = threading.Barrier(len(calls), lambda: before(*next(coming)))

    def run(call: Callable[..., Any]) -> list[Any]:
        answers = []
        try:
            for arguments in rounds:
                barrier.wait(60)
                if apart:
                    time.sleep(random.uniform(0, apart))
                answers.append(call(*arguments))
            return answers
        except BaseException:
            barrier.abort()  # nobody waits for what does not come
            raise
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(run, call) for call in calls]
    raised = [error for future in futures if (error := future.exception())]
    # A broken barrier only follows from what broke it.
    raised.sort(key=lambda error: isinstance(error, threading.BrokenBarrierError))
    if raised:
        raise raised[0]
    return [
        list(answers) for answers in zip(*(f.result() for f in futures), strict=True)
    ]
