"""Slabs of rows, read once and kept for a while: what several gathers share.

A *slab* is the rows of one array that are in one chunk along its first axis; the slabs of an array
are numbered from 0. Each array has a buffer with some *slots* for slabs, made once, so that memory
is bounded and warm: TensorStore reads straight into a slot, and a batch is copied out of the buffer
in one go. Any number of threads may hold slabs at once: a slab that one of them is reading is not
read again by another, no more than `reads_in_flight` reads are under way, and a read that failed is
not kept. A slot whose read was given up is not used again before that read has ended.
"""

import contextlib
import dataclasses
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

_GIVEN_UP_CHECK_S = 0.05


Slab = tuple[int, int]  # which array, and the number of the slab in it


class SlabError(Exception):
    """A slab could not be read; its cause says why."""

    def __init__(self, slab: Slab) -> None:
        super().__init__(slab)
        self.slab = slab


@dataclasses.dataclass(eq=False, slots=True)
class _Place:
    """Where a slab is, or will be."""

    slot: int
    users: int = 0
    reading: Any = None  # the read into the slot, from when it begins
    filled: bool = False
    error: BaseException | None = None


class Slabs:
    """Slabs in memory. `read(slab, slot)` begins to read one into a slot, and gives a future.

    `slots[leaf]` is how many slots the buffer of an array has.
    """

    def __init__(
        self, read: Callable[[Slab, int], Any], slots: Sequence[int], reads_in_flight: int
    ) -> None:
        self._read = read
        self._slots = slots
        self._permits = threading.Semaphore(reads_in_flight)
        self._changed = threading.Condition()
        # For each array, the latest used at the end.
        self._places: list[OrderedDict[int, _Place]] = [OrderedDict() for _ in slots]
        self._free = [list(range(count)) for count in slots]
        self._busy = [0] * len(slots)  # slots that a thread is using, or a read given up
        self._given_up: list[tuple[Slab, _Place]] = []

    @contextlib.contextmanager
    def hold(self, slabs: Sequence[Slab]) -> Iterator[list[int]]:
        """The slots of these slabs, which hold them until the block ends.

        No more slabs of an array than it has slots. All are taken at once, when there is room for
        all of them: threads that wait hold nothing, so none waits for ever.
        """
        with self._changed:
            while (taken := self._take(slabs)) is None:
                self._changed.wait(_GIVEN_UP_CHECK_S if self._given_up else None)
        places, missing = taken
        try:
            if missing:
                self._fill(missing)
            if not all(place.filled for place in places):
                with self._changed:  # some are read by other threads
                    self._changed.wait_for(lambda: all(p.filled or p.error for p in places))
                for slab, place in zip(slabs, places, strict=True):
                    if place.error is not None:
                        raise SlabError(slab) from place.error
            yield [place.slot for place in places]
        finally:
            with self._changed:
                for slab, place in zip(slabs, places, strict=True):
                    place.users -= 1
                    if not place.users:
                        self._leave(slab, place)
                self._changed.notify_all()

    def read_past(self, read: Callable[[], Any]) -> Any:
        """What a read gives that is not of a slab, but counts as one under way."""
        with self._permits:
            return read().result()

    def _take(self, slabs: Sequence[Slab]) -> tuple[list[_Place], list[tuple[Slab, _Place]]] | None:
        """Places for all, counted as used, and those of them that are still to be filled.

        None if there is no room for them now.
        """
        places = [self._places[leaf].get(number) for leaf, number in slabs]
        if None in places and not self._room_for(slabs, places):
            return None
        for (leaf, number), place in zip(slabs, places, strict=True):
            if place is not None:
                self._busy[leaf] += place.users == 0
                place.users += 1
                self._places[leaf].move_to_end(number)
        missing = []
        for index, place in enumerate(places):
            if place is None:  # those that are there are in use by now: none of them makes room
                leaf, number = slabs[index]
                place = places[index] = _Place(self._slot(leaf), users=1)
                self._busy[leaf] += 1
                self._places[leaf][number] = place
                missing.append((slabs[index], place))
        return cast("list[_Place]", places), missing

    def _room_for(self, slabs: Sequence[Slab], places: Sequence[_Place | None]) -> bool:
        for slab, place in [pair for pair in self._given_up if pair[1].reading.done()]:
            self._given_up.remove((slab, place))
            self._release(slab, place)
        wanted = list(self._busy)
        for (leaf, _), place in zip(slabs, places, strict=True):
            wanted[leaf] += place is None or place.users == 0
        return all(count <= most for count, most in zip(wanted, self._slots, strict=True))

    def _leave(self, slab: Slab, place: _Place) -> None:
        """Nobody uses it any more."""
        if place.filled or place.reading is None or place.reading.done():
            self._release(slab, place)
        else:
            self._given_up.append((slab, place))

    def _release(self, slab: Slab, place: _Place) -> None:
        leaf, number = slab
        self._busy[leaf] -= 1
        if self._places[leaf].get(number) is not place:  # its read has failed
            self._free[leaf].append(place.slot)

    def _slot(self, leaf: int) -> int:
        if self._free[leaf]:
            return self._free[leaf].pop()
        places = self._places[leaf]
        return places.pop(next(number for number, place in places.items() if not place.users)).slot

    def _fill(self, missing: Sequence[tuple[Slab, _Place]]) -> None:
        """Read what is missing, some slabs ahead of the one that is waited for."""
        ahead: deque[tuple[Slab, _Place]] = deque()
        try:
            for slab, place in missing:
                # A thread waits for others only while it has no read of its own to finish.
                while not self._permits.acquire(blocking=not ahead):
                    self._wait_for(*ahead.popleft())
                try:
                    place.reading = self._read(slab, place.slot)
                except BaseException:
                    self._permits.release()
                    raise
                ahead.append((slab, place))
            while ahead:
                self._wait_for(*ahead.popleft())
        except BaseException as error:  # not of one read: others may wait for any of these slabs
            for slab, place in missing:
                if not place.filled and place.error is None:
                    self._failed(slab, place, error)
            for _ in ahead:
                self._permits.release()
            raise
        finally:
            with self._changed:
                self._changed.notify_all()

    def _wait_for(self, slab: Slab, place: _Place) -> None:
        try:
            place.reading.result()
            place.filled = True
        except Exception as error:
            self._failed(slab, place, error)
        finally:
            self._permits.release()

    def _failed(self, slab: Slab, place: _Place, error: BaseException) -> None:
        with self._changed:
            leaf, number = slab
            del self._places[leaf][number]
            place.error = error
