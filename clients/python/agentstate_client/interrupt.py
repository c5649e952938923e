"""Ends a function that runs in a thread, by raising StepStopped inside it."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from agentstate_client.work import StepStopped


class Interruptible:
    """Runs one function; `interrupt` from another thread makes it raise StepStopped.

    The exception arrives between two bytecodes: a call that blocks in C comes back
    first. Where the interpreter cannot do this, the function runs on to its end.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._thread: int | None = None  # while the function runs
        self._is_sent = False

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        with self._guard:
            self._thread = threading.get_ident()
        try:
            result = self._run(function, args)
        except StepStopped:
            raise
        except BaseException:
            with contextlib.suppress(StepStopped):
                self._settle()
            raise
        self._settle()
        return result

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            return function(*args)
        finally:
            with self._guard:
                self._thread = None

    def _settle(self) -> None:
        """Let what was sent arrive here; it must not hit whoever called us."""
        if self._is_sent:
            for _ in range(10):
                time.sleep(0.001)

    def interrupt(self) -> None:
        with self._guard:
            if self._thread is None or self._is_sent:
                return
            raise_in = getattr(ctypes, "pythonapi", None)
            if raise_in is None:
                return
            self._is_sent = True
            raise_in.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread), ctypes.py_object(StepStopped)
            )
