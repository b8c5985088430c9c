"""Rows of several batches that a second thread reads together, while others are made.

numpy copies rows without the interpreter, so one thread can copy while another makes batches. But
to be handed something, and to have the interpreter back after a copy, a thread waits 20 µs and
more. So the thread is given *groups*, the rows of several batches to be read by one call, and the
next one before it has done with the last. Who makes the batches reads those between two groups
itself: the more, the more often a group is not there in time. Batches of a group are parts of the
same memory.

This is for a consumer that makes its batches itself. Where a thread already makes them ahead of it,
one more gains nothing.
"""

import atexit
import collections
import functools
import itertools
import os
import queue
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from loader.records.integers import Int64s
from loader.records.memory import align_rows, stays_aligned
from loader.runtime.host_pipeline import HostPipeline
from loader.runtime.prefetch import CLOSE_TIMEOUT_S
from loader.sources.reading import read_rows

# Bytes, measured on two cores. Less is read sooner than handed over; more gains little.
_LEAST_BATCH, _LEAST_GROUP, _MOST_OF_GROUP = 2**18, 2**21, 2**24
_MOST_BATCHES, _MOST_RECORDS = 32, 2**14  # of a group, however small they are
_GROUPS = 2  # one that the thread reads, and one that it goes on with
_MOST_BETWEEN = 4  # times as many as a group has
_CONSUMER, _THREAD = "consumer", "thread"


class ReadAhead:
    """Rows of batches, asked for by their steps: those that lie ready are given.

    They are the batches of a run that ends at step `end`, of the rows asked for, read in groups of
    `size` batches. Who makes this is the consumer.
    """

    def __init__(
        self, work: HostPipeline, rows: Int64s | None, aligned: bool, end: int, size: int
    ) -> None:
        self._work = work
        self._rows = rows
        self._aligned = aligned
        self._end = end
        self._size = size
        self._between = -(-size // 2)  # how many batches from one group to the next
        self._consumer = threading.get_ident()
        self._thread = _thread()
        self._groups: collections.deque[_Group] = collections.deque()  # under way, in order
        self._ready: dict[int, Any] = {}  # what is left of the group before them, by step

    def rows_of(self, step: int) -> Any:
        """The rows of the batch of this step; None if they are still to be read."""
        if self._thread is not _thread():  # this is a fork, without what the thread was given
            self._thread = _thread()
            self._groups.clear()
        while self._groups and step > self._groups[0].steps[-1]:
            self._groups.popleft()  # nobody has asked for it: not of all batches are there rows
        if self._groups and step in self._groups[0].steps:
            self._turn_to(self._groups[0])
        elif not self._groups and not self._ready:
            self._begin_after(step)
        return self._ready.pop(step, None)

    def _turn_to(self, group: "_Group") -> None:
        """Give out the rows of this group, the first under way, and begin another."""
        if not group.ended:
            self._between = min(self._between + 1, _MOST_BETWEEN * self._size)
        elif all(other.ended for other in self._groups):  # the thread has nothing to do
            self._between = max(self._between - 1, 0)
        self._ready = group.parts()
        self._groups.popleft()
        self._begin_after((self._groups[-1] if self._groups else group).steps[-1])

    def _begin_after(self, step: int) -> None:
        """Have as many groups under way as may be, the next of them somewhere after this step."""
        if threading.get_ident() != self._consumer or self._thread is None:
            return
        while len(self._groups) < (_GROUPS if self._size > 1 else 1):  # or large ones add up
            start = step + 1 + self._between
            steps = range(start, min(start + self._size, self._end))
            if not steps:
                return
            try:
                indices = [self._work.indices(step, self._rows) for step in steps]
            except Exception:  # whatever is wrong, who makes those batches will see it in its turn
                return
            group = _Group(steps, indices, self._work.source, self._aligned)
            self._groups.append(group)
            self._thread.begin(group)
            step = steps[-1]

    def close(self) -> str | None:
        """End what was begun, and wait, but not for long. Says what still runs, if anything."""
        groups, self._groups = self._groups, collections.deque()
        if self._thread is not _thread():
            return None
        for group in groups:
            if not group.claim(_CONSUMER) and not group.wait(CLOSE_TIMEOUT_S):
                return f"rows of steps {group.steps[0]} to {group.steps[-1]} are still being read"
        return None


class _Group:
    """The rows of some steps, to be read by one call of whoever claims it first.

    What is shared with the thread is changed by single calls into C, so that an interrupt in the
    consumer leaves nothing half done, and no lock behind.
    """

    def __init__(self, steps: range, indices: Sequence[Int64s], source: Any, aligned: bool) -> None:
        self.steps = steps
        self.ended = False
        self._ends = list(itertools.accumulate(map(len, indices)))
        self._indices = np.concatenate(indices)
        self._source = source
        self._aligned = aligned
        self._rows: Any = None  # once they are read, if they could be
        self._owner: dict[str, str] = {}
        self._end: queue.SimpleQueue[None] = queue.SimpleQueue()

    def claim(self, who: str) -> bool:
        """Whether it is theirs to read; it is if nobody else has claimed it before."""
        return self._owner.setdefault("owner", who) == who

    def read(self) -> None:
        """Read what was claimed."""
        try:
            align_rows(self._aligned)
            rows, there = read_rows(self._source, self._indices)
            if there is None and all(len(r) == self._ends[-1] for r in jax.tree.leaves(rows)):
                self._rows = rows
        except BaseException:  # who reads these batches again will see what is wrong
            self._rows = None
        self.ended = True
        self._end.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has been read, after no longer than that."""
        if not self.ended:
            try:
                self._end.get(timeout=timeout_s)
            except queue.Empty:
                return False
        return True

    def parts(self) -> dict[int, Any]:
        """The rows by their steps, once they are there; none if they were not read."""
        if self.claim(_CONSUMER) or not self.wait() or self._rows is None:
            return {}
        leaves, tree = jax.tree.flatten(self._rows)
        return {
            step: tree.unflatten([leaf[start:end] for leaf in leaves])
            for step, start, end in zip(self.steps, [0, *self._ends], self._ends, strict=False)
        }


def read_ahead(
    work: HostPipeline, rows: Int64s | None, aligned: bool, end: int
) -> ReadAhead | None:
    """What reads the rows of a run ahead; None where it may not, or would not gain anything."""
    if not work.reads_thread_safe or _thread() is None:
        return None
    count = work.plan.batch_size if rows is None else len(rows)
    size = _batches_in_a_group(count, work.read_bytes(count), aligned)
    return ReadAhead(work, rows, aligned, end, size) if size else None


def _batches_in_a_group(rows: int, leaf_bytes: Sequence[int], aligned: bool) -> int:
    """How many, where a batch has so many rows and leaves of these sizes; 0 if too small."""
    size = sum(leaf_bytes)
    if size < _LEAST_BATCH:
        return 0
    # Of batches in the same memory, all must begin where JAX takes them as they are.
    together = not aligned or all(map(stays_aligned, leaf_bytes))
    most = min(_MOST_OF_GROUP // size, _MOST_RECORDS // rows, _MOST_BATCHES) if together else 1
    count = max(1, most)
    return count if count * size >= _LEAST_GROUP else 0


class _ReadThread:
    """A thread that reads groups, in the order in which it is given them."""

    def __init__(self) -> None:
        self._groups: queue.SimpleQueue[weakref.ref[_Group] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_serve, args=(self._groups,), name="gristmill-read", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)

    def begin(self, group: _Group) -> None:
        """Have it read, unless it is claimed or forgotten before its turn comes."""
        self._groups.put(weakref.ref(group))

    def close(self) -> None:
        """End the thread and wait, but not for long."""
        self._groups.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)


def _serve(groups: "queue.SimpleQueue[weakref.ref[_Group] | None]") -> None:
    while (given := groups.get()) is not None:
        group = given()
        if group is not None and group.claim(_THREAD):
            group.read()
        del group  # it is the consumer's


@functools.cache
def _thread() -> _ReadThread | None:
    """The thread of this process; None where there is but one core, or no thread to be had."""
    if _cores() == 1:
        return None
    try:
        return _ReadThread()
    except RuntimeError:
        return None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_thread.cache_clear)  # which has none yet
