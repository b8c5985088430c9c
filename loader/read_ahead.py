"""Rows that a second thread reads, while batches are made of others.

numpy copies rows without the interpreter, so one thread can copy while another makes batches. But
handing something over costs 20 µs and more, and after every copy a thread wants the interpreter
back. So the thread is handed the rows of several batches, to be read by one call. Who makes the
batches reads every other group itself, batch by batch, and whatever the thread has not begun by the
time it is needed. Batches whose rows were read together are parts of the same memory.

This is for a consumer that makes its batches itself. Where a thread already makes them ahead of it,
one more gains nothing.
"""

import concurrent.futures
import functools
import itertools
import os
import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from loader.host_work import HostWork
from loader.permutation import Int64s
from loader.prefetch import CLOSE_TIMEOUT_S
from loader.rows import align_rows, stays_aligned
from loader.sources.source import read_rows

_LEAST_BATCH = 2**18  # bytes: less is read sooner than handed over
_LEAST_GROUP, _MOST_OF_GROUP = 2**21, 2**23  # bytes, measured on two cores


class ReadAhead:
    """Rows of batches, asked for by their steps: those that lie ready are given.

    They are the batches of a run that ends at step `end`, of the rows asked for, read in groups of
    `size` batches. Who makes this is the consumer.
    """

    def __init__(
        self, work: HostWork, rows: Int64s | None, aligned: bool, end: int, size: int
    ) -> None:
        self._work = work
        self._rows = rows
        self._aligned = aligned
        self._end = end
        self._size = size
        self._consumer = threading.get_ident()
        self._steps = range(0)  # one group read by the consumer, and one read ahead
        self._group: _Group | None = None

    def rows_of(self, step: int) -> Any:
        """The rows of the batch of this step; None if they are still to be read."""
        if step not in self._steps:
            self._steps, self._group = range(0), None  # lets go of memory before more is taken
            if threading.get_ident() == self._consumer:
                own = self._size - self._size // 5  # the thread does nothing else: it reads more
                self._steps = range(step, min(step + own + self._size, self._end))
                self._group = self._begun(self._steps[own:])
        return None if self._group is None else self._group.rows_of(step)

    def _begun(self, steps: range) -> "_Group | None":
        thread = _thread()
        if not steps or thread is None:
            return None
        try:
            indices = [self._work.indices(step, self._rows) for step in steps]
            reading = thread.submit(
                _read, self._work.source, np.concatenate(indices), self._aligned
            )
        except Exception:  # whatever is wrong, who makes those batches will see it in its turn
            return None
        return _Group(steps, list(map(len, indices)), thread, reading)

    def close(self) -> str | None:
        """End what was begun, and wait, but not for long. Says what still runs, if anything."""
        group, self._group = self._group, None
        return None if group is None else group.close()


class _Group:
    """The rows of some steps, which a thread reads together."""

    def __init__(
        self,
        steps: range,
        sizes: Sequence[int],
        thread: concurrent.futures.Executor,
        reading: "concurrent.futures.Future[Any]",
    ) -> None:
        self._steps = steps
        self._starts = [0, *itertools.accumulate(sizes)]
        self._thread = thread
        self._reading = reading

    def rows_of(self, step: int) -> Any:
        """The rows of one of the steps; None if it is none of them, or they were not read."""
        if step not in self._steps or self._thread is not _thread():  # a fork has left it behind
            return None
        if self._reading.cancel() or self._reading.exception() is not None:
            return None  # not begun, or who reads it again will see what is wrong
        at = step - self._steps.start
        part = slice(self._starts[at], self._starts[at + 1])
        return jax.tree.map(lambda leaf: leaf[part], self._reading.result())

    def close(self) -> str | None:
        if self._reading.cancel() or self._thread is not _thread():
            return None
        if concurrent.futures.wait([self._reading], CLOSE_TIMEOUT_S).done:
            return None
        return f"rows of steps {self._steps[0]} to {self._steps[-1]} are still being read"


def read_ahead(work: HostWork, rows: Int64s | None, aligned: bool, end: int) -> ReadAhead | None:
    """What reads the rows of a run ahead; None where it may not, or would not gain anything."""
    if not work.read_by_anyone or _thread() is None:
        return None
    leaf_bytes = work.read_bytes(work.plan.batch_size if rows is None else len(rows))
    size = _batches_in_a_group(leaf_bytes, aligned)
    return ReadAhead(work, rows, aligned, end, size) if size else None


def _batches_in_a_group(leaf_bytes: Sequence[int], aligned: bool) -> int:
    """How many, where leaves of a batch have these sizes; 0 if they are too small."""
    size = sum(leaf_bytes)
    if size < _LEAST_BATCH:
        return 0
    # Of batches in the same memory, all must begin where JAX takes them as they are.
    together = not aligned or all(map(stays_aligned, leaf_bytes))
    count = max(1, _MOST_OF_GROUP // size) if together else 1
    return count if count * size >= _LEAST_GROUP else 0


def _read(source: Any, indices: Int64s, aligned: bool) -> Any:
    align_rows(aligned)
    rows, there = read_rows(source, indices)
    assert there is None, f"{source} gathers records, and has not all of them"
    return rows


@functools.cache
def _thread() -> concurrent.futures.Executor | None:
    """The thread of this process; None where there is but one core."""
    return concurrent.futures.ThreadPoolExecutor(1, "gristmill-read") if _cores() > 1 else None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_thread.cache_clear)  # which has none yet
