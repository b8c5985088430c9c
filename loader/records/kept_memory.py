"""Memory for large rows, kept and used again once nothing refers to it.

malloc gives large pieces back to the system, which hands them out again page by page, zeroed, as
they are first written to. For rows of several MiB that takes half as long as copying them, and on a
virtual machine now and then a hundred times as long. So the last few pieces are kept here.

Whether a piece is free is seen from the number of references to it, when one is needed. Nothing is
done when rows are freed: that happens in any thread, in the middle of anything, and an interrupt
that strikes there is lost.
"""

import itertools
import sys

import numpy as np

MOST_KEPT = 2**24 + 64  # bytes of a piece; larger ones are malloc's
_pieces: list[bytearray] = [bytearray()] * 8  # the last ones made, whether they are free or not
_places = itertools.cycle(range(len(_pieces)))


class Memory(np.ndarray):
    """Bytes under rows that were made here or in `rows.py`, and under nothing else."""


def kept_memory(size: int) -> Memory:
    """So many bytes, of any value."""
    for place in range(len(_pieces)):
        if (memory := _memory_at(place, size)) is not None:
            return memory
    piece = bytearray(size)
    _pieces[next(_places)] = piece
    return Memory(size, np.uint8, piece)


def _memory_at(place: int, size: int) -> Memory | None:
    """The memory there, if it is free, no smaller, and little larger."""
    # Whoever looks refers to it too, so of two who look at once at least one sees the other.
    piece = _pieces[place]
    if not size <= len(piece) <= 1.25 * size or sys.getrefcount(piece) != _REFERENCES_WHEN_FREE:
        return None
    return Memory(size, np.uint8, piece)


def _references_when_free() -> int:
    """Of a piece that is in the list, and in a variable of who asks."""
    pieces = [bytearray(1)]
    piece = pieces[0]
    return sys.getrefcount(piece)


_REFERENCES_WHEN_FREE = _references_when_free()
