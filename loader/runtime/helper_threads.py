"""Helper threads: how they start, what they inherit, and how they end.

A thread must not be doing JAX work when the interpreter exits, and must not keep alive what it
works for. So a helper knows only what it shares with the consumer. It is stopped when the line is
closed, dropped or, with a bounded wait, when the interpreter exits.
"""

import atexit
import contextlib
import functools
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import jax

from loader.records.jax_settings import thread_settings, under

CLOSE_TIMEOUT_S = 5.0

# Threads that have not ended, with what stops them, also of lines that are gone.
_running: dict[threading.Thread, Callable[[], None]] = {}


class HelperThreads:
    """`count` threads that run `work`, under the settings of JAX of here.

    `stop` tells all of them to end. `uses_jax` says that they touch devices.
    """

    def __init__(
        self,
        count: int,
        work: Callable[[], None],
        stop: Callable[[], None],
        name: str,
        *,
        uses_jax: bool,
    ) -> None:
        self._count = count
        self._stop = stop
        self._name = name
        self._uses_jax = uses_jax
        self._threads: list[threading.Thread] = []
        self._seats: dict[int, threading.Thread] = {}  # threads take them, not the consumer
        self._run = functools.partial(_run, work, thread_settings(), self._seats)

    def start(self) -> None:
        """Start the threads. If this is interrupted, it can be called again.

        An interrupt does not say whether a thread has started. So another is started for the same
        seat, and the later of the two ends at once.
        """
        if self._uses_jax and self._count:
            # What is registered first runs last at exit: the threads must have ended before JAX
            # takes its backends down, which it arranges for when they come up.
            jax.devices()
        atexit.unregister(_end_all)
        atexit.register(_end_all)
        for seat in range(self._count):
            if seat not in self._seats:
                thread = threading.Thread(
                    target=self._run, args=(seat,), name=self._name, daemon=True
                )
                self._threads.append(thread)
                _running[thread] = self._stop
                thread.start()

    def alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self) -> str | None:
        """Wait for their end, but not for long. Says what they still do, if anything."""
        return join(self._threads)


def join(threads: Iterable[threading.Thread]) -> str | None:
    """Wait for threads that were told to end. Says what those that go on are doing."""
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    words = []
    for thread in threads:
        if thread.ident is not None and thread is not threading.current_thread():
            _join(thread, deadline)
        if thread.is_alive():
            frame = sys._current_frames().get(thread.ident or 0)
            place = traceback.extract_stack(frame)[-1] if frame else None
            at = f", at {place.filename}:{place.lineno} in {place.name}" if place else ""
            words.append(f"thread {thread.name} is still running{at}")
    return "; ".join(words) or None


def warn_of_what_runs(still: str | None) -> None:
    """Warn of threads that go on, at the line of the user's that has closed them."""
    if still is None:
        return
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("loader."):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{still}; it ends when that returns", RuntimeWarning, stacklevel=level)


def _join(thread: threading.Thread, deadline: float) -> None:
    while (left := deadline - time.monotonic()) > 0:
        try:
            thread.join(left)
            return
        except RuntimeError:
            # It runs, but does not say yet that it has started: `start()` was interrupted.
            time.sleep(0.001)


def _run(
    work: Callable[[], None],
    settings: tuple[dict[str, Any], Any],
    seats: dict[int, threading.Thread],
    seat: int,
) -> None:
    deciding, device = settings
    thread = threading.current_thread()
    try:
        if seats.setdefault(seat, thread) is not thread:
            return
        with (
            under(deciding),
            jax.default_device(device) if device else contextlib.nullcontext(),
        ):
            work()
    finally:
        _running.pop(thread, None)


def _end_all() -> None:
    threads = dict(_running)
    for stop in threads.values():
        stop()
    join(threads)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)  # the child has none of these threads
