"""Interrupts at chosen lines of our packages, as Ctrl-C could strike there."""

import contextlib
import sys
from collections.abc import Iterator

from tests.attack.interrupts import AtLine, unlock_logging


@contextlib.contextmanager
def interrupted_at(number: int) -> Iterator[list[str]]:
    """Raises KeyboardInterrupt at the line of this number, counted from here, in this thread.

    What it gives is empty if so many lines were not run; else it says where it has struck.
    """
    struck: list[str] = []
    interrupt = AtLine(number - 1)
    sys.settrace(interrupt.in_frame)
    try:
        yield struck
    finally:
        sys.settrace(None)
        unlock_logging()
        struck += [interrupt.struck] if interrupt.struck else []
