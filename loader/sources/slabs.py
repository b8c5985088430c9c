"""Slabs of rows, read once and kept for a while: what several gathers share.

A *slab* is the rows of one array that lie in one chunk along its first axis; the slabs of an array
are numbered from 0. Each array has a buffer with some *slots* for slabs, made once, so that memory
is bounded and a batch is copied out of it in one go. Any number of threads may hold slabs at once:
a slab that one of them is reading is not read again by another, no more than `reads_in_flight`
reads are under way, and a read that failed is not kept.
"""

import contextlib
import dataclasses
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np


class Slab(NamedTuple):
    """Slab `number` of array `leaf`."""

    leaf: int
    number: int


class SlabError(Exception):
    """A slab could not be read; its cause says why."""

    def __init__(self, slab: Slab) -> None:
        super().__init__(slab)
        self.slab = slab


@dataclasses.dataclass(eq=False, slots=True)
class _Place:
    """Where a slab is, or will be when `ready` is done."""

    slot: int
    ready: Future[None] = dataclasses.field(default_factory=Future)
    users: int = 0
    filled: bool = False  # as `ready` says, but without its lock


class Slabs:
    """Slabs in memory. `read` begins to read one and gives a TensorStore future.

    `buffers[leaf]` has the shape (slots, rows of a slab, ...).
    """

    def __init__(
        self, read: Callable[[Slab], Any], buffers: Sequence[np.ndarray], reads_in_flight: int
    ) -> None:
        self._read = read
        self._buffers = buffers
        self._permits = threading.Semaphore(reads_in_flight)
        self._changed = threading.Condition()
        # For each array, the latest used at the end.
        self._places: list[OrderedDict[int, _Place]] = [OrderedDict() for _ in buffers]
        self._free = [list(range(len(buffer))) for buffer in buffers]
        self._busy = [0] * len(buffers)  # slots that a thread is using

    @contextlib.contextmanager
    def hold(self, slabs: Sequence[Slab]) -> Iterator[list[int]]:
        """The slots of these slabs, which hold them until the block ends.

        No more slabs of an array than it has slots. All are taken at once, when there is room for
        all of them: threads that wait hold nothing, so none waits for ever.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._room_for(slabs))
            places, missing = self._take(slabs)
        try:
            self._fill(missing)
            for slab, place in zip(slabs, places, strict=True):
                if not place.filled and (error := place.ready.exception()) is not None:
                    raise SlabError(slab) from error
            yield [place.slot for place in places]
        finally:
            with self._changed:
                for slab, place in zip(slabs, places, strict=True):
                    self._leave(slab, place)
                self._changed.notify_all()

    def read_past(self, read: Callable[[], Any]) -> Any:
        """What a read gives that is not of a slab, but counts as one under way."""
        with self._permits:
            return read().result()

    def _room_for(self, slabs: Sequence[Slab]) -> bool:
        wanted = [0] * len(self._buffers)
        for leaf, number in slabs:
            place = self._places[leaf].get(number)
            wanted[leaf] += place is None or place.users == 0
        return all(
            busy + more <= len(buffer)
            for busy, more, buffer in zip(self._busy, wanted, self._buffers, strict=True)
        )

    def _take(self, slabs: Sequence[Slab]) -> tuple[list[_Place], list[tuple[Slab, _Place]]]:
        """Places for all, counted as used, and those of them that are still to be filled."""
        places = [self._places[leaf].get(number) for leaf, number in slabs]
        for slab, place in zip(slabs, places, strict=True):
            if place is not None:
                self._use(slab, place)
        missing = []
        for index, slab in enumerate(slabs):
            if places[index] is None:
                place = self._places[slab.leaf][slab.number] = _Place(self._slot(slab.leaf))
                self._use(slab, place)
                places[index] = place
                missing.append((slab, place))
        return [place for place in places if place is not None], missing

    def _use(self, slab: Slab, place: _Place) -> None:
        self._busy[slab.leaf] += place.users == 0
        place.users += 1
        self._places[slab.leaf].move_to_end(slab.number)

    def _leave(self, slab: Slab, place: _Place) -> None:
        place.users -= 1
        if place.users == 0:
            self._busy[slab.leaf] -= 1
            if self._places[slab.leaf].get(slab.number) is not place:  # its read has failed
                self._free[slab.leaf].append(place.slot)

    def _slot(self, leaf: int) -> int:
        if self._free[leaf]:
            return self._free[leaf].pop()
        places = self._places[leaf]
        return places.pop(next(number for number, place in places.items() if not place.users)).slot

    def _fill(self, missing: Sequence[tuple[Slab, _Place]]) -> None:
        """Read what is missing, some slabs ahead of the one that is copied to its slot."""
        ahead: deque[tuple[Slab, _Place, Any]] = deque()
        try:
            for slab, place in missing:
                # A thread waits for others only while it has no read of its own to finish.
                while not self._permits.acquire(blocking=not ahead):
                    self._arrived(*ahead.popleft())
                try:
                    ahead.append((slab, place, self._read(slab)))
                except BaseException:
                    self._permits.release()
                    raise
            while ahead:
                self._arrived(*ahead.popleft())
        except BaseException as error:  # not of one read: others may wait for any of these slabs
            for slab, place in missing:
                if not place.ready.done():
                    self._failed(slab, place, error)
            for _ in ahead:
                self._permits.release()
            raise

    def _arrived(self, slab: Slab, place: _Place, future: Any) -> None:
        try:
            rows = future.result()
        except Exception as error:
            self._failed(slab, place, error)
        else:
            self._buffers[slab.leaf][place.slot, : len(rows)] = rows
            place.filled = True
            place.ready.set_result(None)
        finally:
            self._permits.release()

    def _failed(self, slab: Slab, place: _Place, error: BaseException) -> None:
        with self._changed:
            del self._places[slab.leaf][slab.number]
        place.ready.set_exception(error)
