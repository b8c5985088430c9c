"""Memory for large rows, kept and used again once nothing refers to it.

malloc gives large pieces back to the system, which hands them out again page by page, zeroed, as
they are first written to. For rows of several MiB that takes half as long as copying them, and on a
virtual machine now and then a hundred times as long. So the last few pieces are kept here.
"""

import collections
import weakref

import numpy as np

_MOST_KEPT = 2**26  # bytes that nobody uses
_kept: collections.deque[bytearray] = collections.deque()  # the last one freed is the first taken


class Memory(np.ndarray):
    """Bytes under rows that were made here or in `rows.py`, and under nothing else."""


def kept_memory(size: int) -> Memory:
    """So many bytes, of any value."""
    piece = _taken(size) or bytearray(size)
    memory = Memory(size, np.uint8, piece)
    weakref.finalize(memory, _keep, piece).atexit = False
    return memory


# Memory may be freed in any thread, and in the middle of anything: no lock, but steps that are
# each done at once.


def _taken(size: int) -> bytearray | None:
    """A piece that is no smaller, and little larger, if one is kept."""
    for _ in range(len(_kept)):
        try:
            piece = _kept.pop()
        except IndexError:
            return None
        if size <= len(piece) <= 1.25 * size:
            return piece
        _kept.appendleft(piece)
    return None


def _keep(piece: bytearray) -> None:
    _kept.append(piece)
    while _kept and sum(map(len, tuple(_kept))) > _MOST_KEPT:
        try:
            _kept.popleft()
        except IndexError:
            return
