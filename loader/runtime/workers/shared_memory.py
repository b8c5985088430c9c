"""Objects with large arrays, through memory that two processes share.

A *slot* is a file of the trainer without a name (memfd): nothing of it is left when those who hold
it have ended, however they end. A worker writes a pickle into it, arrays first, each where JAX
takes it as it is. The trainer reads the arrays where they are. Their memory is used again when
nothing refers to the mapping any more: not the loop, and not JAX, which may still read it after the
array that it was given is gone.
"""

import io
import mmap
import os
import pickle
import queue
import weakref
from typing import Any

import cloudpickle
import numpy as np

_ALIGNMENT = 64  # see loader/records/memory.py
_POPULATE = mmap.MAP_SHARED | mmap.MAP_POPULATE  # all pages at once, not one fault for each


def write(fd: int, obj: Any) -> tuple[int, int]:
    """Write an object into a slot. Gives where its pickle begins, and where it ends."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
    except (pickle.PicklingError, AttributeError, TypeError):  # of a class of `__main__`, perhaps
        buffers = []
        data = cloudpickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
    return _write(fd, data, [buffer.raw() for buffer in buffers])


def _write(fd: int, data: bytes, buffers: list[memoryview]) -> tuple[int, int]:
    ends = np.cumsum([0, *(len(b) + -len(b) % _ALIGNMENT for b in buffers)])
    layout = pickle.dumps([(int(at), len(b)) for at, b in zip(ends, buffers, strict=False)])
    begin, end = int(ends[-1]), int(ends[-1]) + len(layout) + len(data)
    if os.fstat(fd).st_size < end:
        os.ftruncate(fd, end)
    with mmap.mmap(fd, end, flags=_POPULATE) as memory:
        for at, buffer in zip(ends, buffers, strict=False):
            memory[at : at + len(buffer)] = buffer
        memory[begin:end] = layout + data
    return begin, end


def _read(memory: mmap.mmap, begin: int, end: int) -> Any:
    """The object that was written; its arrays are in the memory."""
    view = memoryview(memory)
    file = io.BytesIO(view[begin:end])
    layout = pickle.load(file)
    return pickle.load(file, buffers=[view[at : at + length] for at, length in layout])


def read_parcel(fd: int, begin: int, end: int) -> Any:
    """What is in a parcel. Its arrays cannot be written to: other workers have the same ones."""
    return _read(mmap.mmap(fd, end, prot=mmap.PROT_READ), begin, end)


class Parcel:
    """A pickle and its buffers in a file without a name, for any number of processes to read."""

    def __init__(self, data: bytes, buffers: list[pickle.PickleBuffer] | None = None) -> None:
        self.fd = os.memfd_create("gristmill-parcel", os.MFD_CLOEXEC)
        self.place = _write(self.fd, data, [buffer.raw() for buffer in buffers or []])
        weakref.finalize(self, os.close, self.fd)


class Slots:
    """The slots of a trainer: taken one by one, free again when nothing refers to their arrays."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._used: dict[weakref.ref[mmap.mmap], int] = {}
        # A weak reference calls this when its mapping is gone: one call into C, from any thread.
        self._gone: queue.SimpleQueue[weakref.ref[mmap.mmap]] = queue.SimpleQueue()

    def take(self) -> int:
        """A slot that nothing refers to."""
        while not self._gone.empty():
            self.give_back(self._used.pop(self._gone.get()))
        if self._free:
            return self._free.pop()
        return os.memfd_create("gristmill-batch", os.MFD_CLOEXEC)

    def give_back(self, fd: int) -> None:
        """A slot that was not read."""
        self._free.append(fd)

    def read(self, fd: int, begin: int, end: int) -> Any:
        """What a worker has written. The slot is taken until nothing refers to it."""
        memory = mmap.mmap(fd, end, flags=_POPULATE)
        self._used[weakref.ref(memory, self._gone.put)] = fd
        return _read(memory, begin, end)

    def keep(self, most: int) -> None:
        """Give the memory of all free slots but so many back to the system."""
        while len(self._free) > most:
            os.close(self._free.pop(0))

    def close(self) -> None:
        """Close the files. Arrays that are still referred to stay as they are."""
        self.keep(0)
        for fd in self._used.values():
            os.close(fd)
        self._used.clear()
