"""Retry delays: pure functions."""


def exponential(failures: int, *, first: float, most: float) -> float:
    """Seconds to wait after `failures` failures in a row: first, doubled, at most most.

    `exponential(0, …)` is 0: nothing has failed.
    """
    if failures < 1:
        return 0.0
    # Far beyond any delay in use, and short of an overflow.
    return min(most, first * 2.0 ** min(failures - 1, 60))
