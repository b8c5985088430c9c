"""Objects with large arrays, through memory that two processes share.

A *slot* is a file of the trainer without a name (memfd): nothing of it is left when those who hold
it have ended, however they end. A worker writes a pickle into it, arrays first, each where JAX
takes it as it is. The trainer reads the arrays where they are. Their memory is used again when
nothing refers to it any more: not the loop, and not JAX, which may still read it after the array
that it was given is gone.

Both sides keep the slots that they use mapped: to map 16 MiB costs 2 to 50 ms, to copy it 0.7 ms.
"""

import io
import mmap
import os
import pickle
import queue
import weakref
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np

_ALIGNMENT = 64  # see loader/records/memory.py
_POPULATE = mmap.MAP_SHARED | mmap.MAP_POPULATE  # all pages at once, not one fault for each
_UNUSED = 64  # answers without a slot, after which a worker forgets it


class Desk:
    """The slots that a worker writes into."""

    def __init__(self) -> None:
        self._mapped: dict[int, tuple[mmap.mmap, int]] = {}  # and the last answer it was used for
        self._answers = 0

    def write(self, fd: int, obj: Any) -> tuple[int, int]:
        """Write an object into a slot. Gives where its pickle begins, and where it ends."""
        buffers: list[pickle.PickleBuffer] = []
        try:
            data = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
        except (pickle.PicklingError, AttributeError, TypeError):  # a class of `__main__`, perhaps
            buffers = []
            data = cloudpickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
        return _write(lambda size: self._memory(fd, size), data, buffers)

    def _memory(self, fd: int, size: int) -> mmap.mmap:
        """The memory of a slot, at least so large."""
        self._answers += 1
        file = os.fstat(fd).st_ino  # which no other file has while this one is mapped
        memory, _ = self._mapped.pop(file, (None, 0))
        if memory is None or len(memory) < size:
            memory = _mapped(fd, size)
        self._mapped[file] = memory, self._answers
        for other, (_, used) in list(self._mapped.items()):
            if used <= self._answers - _UNUSED:
                del self._mapped[other]
        return memory


def _mapped(fd: int, size: int) -> mmap.mmap:
    """A file in memory, which is made so large if it is smaller."""
    if os.fstat(fd).st_size < size:
        os.ftruncate(fd, size)
    return mmap.mmap(fd, size, flags=_POPULATE)


def _write(
    memory_of: Callable[[int], mmap.mmap], data: bytes, pickled: list[pickle.PickleBuffer]
) -> tuple[int, int]:
    buffers = [buffer.raw() for buffer in pickled]
    ends = np.cumsum([0, *(len(b) + -len(b) % _ALIGNMENT for b in buffers)])
    layout = pickle.dumps([(int(at), len(b)) for at, b in zip(ends, buffers, strict=False)])
    begin, end = int(ends[-1]), int(ends[-1]) + len(layout) + len(data)
    memory = memory_of(end)
    for at, buffer in zip(ends, buffers, strict=False):
        memory[at : at + len(buffer)] = buffer
    memory[begin:end] = layout + data
    return begin, end


def _read(memory: Any, begin: int, end: int) -> Any:
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
        self.fd = fd = os.memfd_create("gristmill-parcel", os.MFD_CLOEXEC)
        self.place = _write(lambda size: _mapped(fd, size), data, buffers or [])
        weakref.finalize(self, os.close, fd)


class _Answer(np.ndarray):
    """The memory of one answer. All that reads it refers to this array, which can be watched."""


class _Watch(weakref.ref[_Answer]):
    """Notes when the answer in a slot is gone."""

    __slots__ = ("slot",)
    slot: int


class Slots:
    """The slots of a trainer: taken one by one, free again when nothing refers to their arrays."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._mapped: dict[int, mmap.mmap] = {}
        self._used: dict[int, _Watch] = {}
        # A weak reference calls this when its answer is gone: one call into C, from any thread.
        self._gone: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def take(self) -> int:
        """A slot that nothing refers to."""
        while not self._gone.empty():
            slot = self._gone.get().slot
            del self._used[slot]
            self.give_back(slot)
        if self._free:
            return self._free.pop()
        return os.memfd_create("gristmill-batch", os.MFD_CLOEXEC)

    def give_back(self, fd: int) -> None:
        """A slot that was not read."""
        self._free.append(fd)

    def read(self, fd: int, begin: int, end: int) -> Any:
        """What a worker has written. The slot is taken until nothing refers to it."""
        memory = self._mapped.get(fd)
        if memory is None or len(memory) < end:
            memory = self._mapped[fd] = _mapped(fd, end)
        answer = np.frombuffer(memory, np.uint8).view(_Answer)
        watch = self._used[fd] = _Watch(answer, self._gone.put)
        watch.slot = fd
        return _read(answer, begin, end)

    def keep(self, most: int) -> None:
        """Give the memory of all free slots but so many back to the system."""
        while len(self._free) > most:
            self._close(self._free.pop(0))

    def close(self) -> None:
        """Close the files. Arrays that are still referred to stay as they are."""
        self.keep(0)
        for fd in self._used:
            self._close(fd)
        self._used.clear()

    def _close(self, fd: int) -> None:
        self._mapped.pop(fd, None)  # unmapped when nothing refers to it
        os.close(fd)
