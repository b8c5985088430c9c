"""Interrupts in the loop's thread: at a chosen line of our packages, or by a real signal.

Both raise `KeyboardInterrupt` only where a frame of ours is on the stack, and not on the line that
delivers: there the batch is the loop's already. What is interrupted is then asked again.
"""

import linecache
import logging
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import loader
import operators

T = TypeVar("T")

OURS = tuple(str(Path(package.__file__ or "").parent) for package in (loader, operators))
DELIVERS = "return batch"  # the line after which a batch counts as delivered


def is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(OURS)


def delivers(frame: FrameType) -> bool:
    """Whether the frame is at the line that delivers: in `next`, or what that calls to deliver."""
    if frame.f_code.co_name not in ("_deliver", "__next__"):
        return False
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() == DELIVERS


def is_interrupt(error: BaseException | None) -> bool:
    """Whether this is an interrupt, or what a lock of Python's makes of one on the way out.

    JAX compares keys of its caches in C++, and makes an error of its own of an interrupt there.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        if "Cache keys should be comparable" in str(error) and "KeyboardInterrupt" in str(error):
            return True
        error = error.__context__
    return error is not None


def unlock_logging() -> None:
    """Release what an interrupt has left locked in the standard library's logging.

    It takes the lock of a handler before it enters the `try` that releases it. Whatever logs later,
    in another thread, would wait for ever.
    """
    for handler in [reference() for reference in vars(logging)["_handlerList"]]:
        lock = getattr(handler, "lock", None)
        while lock is not None and lock._is_owned():
            lock.release()


_MOST_IN_A_ROW = 12


class AtLine:
    """Interrupts what is called when it comes to its line number `line`, counted from 0."""

    def __init__(self, line: int) -> None:
        self.left = line
        self.struck: str | None = None  # where
        self._inside: set[tuple[FrameType, int]] = set()  # bodies of `with` that are being run

    def __call__(self, call: Callable[[], T]) -> T:
        sys.settrace(self.in_frame)
        try:
            return call()
        finally:
            sys.settrace(None)
            unlock_logging()

    def in_frame(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._at_line if is_ours(frame) else None

    def _at_line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and self.struck is None and self._can_be_struck(frame):
            self.left -= 1
            if self.left < 0:
                self.struck = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._at_line

    def _can_be_struck(self, frame: FrameType) -> bool:
        """Whether CPython can take a signal before this line: it does so at calls and jumps back.

        It takes none between the body of a `with` and its end, when its line comes a second time.
        """
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if line.startswith("with "):
            place = frame, frame.f_lineno
            self._inside ^= {place}
            return place in self._inside
        return not delivers(frame)


class BySignal:
    """Interrupts what is called by real signals, one after the other, at random times."""

    def __init__(self, seed: int, most_s: float = 0.002) -> None:
        self._times = random.Random(seed)
        self._most_s = most_s
        self.sent = 0
        self.struck = 0
        self._armed = False
        self._in_a_row = 0

    def __call__(self, call: Callable[[], T]) -> T:
        # The handler stays: a signal that is under way must not meet the default, which ends us.
        signal.signal(signal.SIGALRM, self._handle)
        self._armed = True
        # So often in a row, and a call that takes its time must come to its end.
        if self._in_a_row < _MOST_IN_A_ROW:
            self._arm()
        try:
            result = call()
            self._in_a_row = 0
            return result
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            unlock_logging()

    def _arm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._times.random() ** 2 * self._most_s + 2e-6)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._armed:
            return
        self.sent += 1
        stack = []
        while frame is not None:
            stack.append(frame)
            frame = frame.f_back
        ours = [one for one in stack if is_ours(one)]
        if ours and not any(delivers(one) for one in ours):
            self.struck += 1
            self._in_a_row += 1
            raise KeyboardInterrupt
        self._arm()


Disturb = AtLine | BySignal
