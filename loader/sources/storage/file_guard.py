"""A file mapped into memory must not become shorter: reading past its end kills the process.

Nothing but the operating system can prevent that, but before most reads it can be noticed.
"""

import mmap
import os
import weakref
from typing import Any

import numpy as np

from loader.records.errors import StorageError


class FileGuard:
    """An open file, with the size and time of change that it had when it was opened."""

    def __init__(self, path: str) -> None:
        self.path = path
        # Kept open: a new file of that name is another. Closed when nobody needs it any more.
        self.descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)
        stat = os.fstat(self.descriptor)
        self.size = stat.st_size
        self.mtime_ns = stat.st_mtime_ns

    def refuse_if_cut_off(self) -> None:
        """Raise `ValueError` if the file has become shorter since it was opened."""
        size = os.fstat(self.descriptor).st_size
        if size < self.size:
            raise StorageError(
                f"{self.path} had {self.size} bytes when it was opened and has {size} now: it is "
                "being written anew; wait for that, and open the source again"
            )

    def is_unchanged(self) -> bool:
        stat = os.fstat(self.descriptor)
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)


def map_end(array: Any) -> int | None:
    """The size that a file needs for this array, which is a memory map of it; None if it is not."""
    mapped = _map_under(array)
    if mapped is None or not isinstance(array, np.memmap):
        return None
    start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    refuse_cut_map(array, start + len(mapped))
    return start + len(mapped)


def refuse_cut_map(array: np.ndarray, end: int) -> None:
    """Raise `ValueError` if the file under a memory map has become shorter than this."""
    mapped = _map_under(array)  # None in another process, which has a copy
    if mapped is not None and mapped.size() < end:
        raise StorageError(
            f"the file of a memory map has {mapped.size()} bytes, and {end} were mapped: it was "
            "cut off, or is being written anew; wait for that, and map it again"
        )


def _map_under(array: Any) -> mmap.mmap | None:
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, mmap.mmap) else None
