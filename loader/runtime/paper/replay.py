"""A host's run on paper: the schedule of its cache, step by step, and the time that it takes.

The requests of a host are begun in the order of the schedule, so many at a time, each as soon as
there is room for it. Each takes the latency, and together they take the bandwidth. A batch is made
when all of its pieces are there, at most `prefetch` steps before the loop gets it.
"""

import dataclasses
import heapq
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from loader.records.integers import Int64s
from loader.runtime.paper.needs import HostNeeds
from loader.sources.storage.cache.schedule import Schedule
from loader.sources.storage.cache.stream import Needs
from loader.sources.storage.stored_files import PIECE_BYTES

_READS_AT_ONCE = 128  # without a cache: the requests of one batch


@dataclasses.dataclass(frozen=True)
class Conditions:
    """How fast a host's way to the storage is, and its loop."""

    latency_s: float = 0.03
    bytes_per_s: float = 1e9
    step_s: float = 0.0
    prefetch: int = 2
    at_once: int = 32  # requests


@dataclasses.dataclass
class Run:
    """What a host has read, a number for each step, and how long its loop has waited for it."""

    steps: range
    needed: Int64s  # pieces
    fetched: Int64s  # of these, those that were not in the cache
    requests: Int64s
    num_bytes: Int64s
    waited_s: np.ndarray
    ended_s: float
    pieces: list[int]  # in the order in which they were fetched

    @property
    def waiting_share(self) -> float:
        """The part of the time that the loop waited, the first batch aside."""
        after_s = self.ended_s - self.waited_s[0]
        return float(self.waited_s[1:].sum() / after_s) if after_s > 0 else 0.0


def replay(needs: HostNeeds, sizes: Int64s, most_bytes: int, conditions: Conditions) -> Run:
    """The run of a host with a cache. `ValueError` if a step does not fit into it."""
    run, clock = _empty(needs.steps), _Clock(conditions)
    run.needed[:] = np.diff(needs.begins)
    # A cache numbers pieces as they are asked for, and fetches those of a step in that order.
    numbers, first, ranks = np.unique(needs.pieces, return_index=True, return_inverse=True)
    asked = first.argsort()
    each = sizes[numbers[asked]].tolist()
    needs = dataclasses.replace(needs, pieces=asked.argsort()[ranks])
    there_s: dict[int, float] = {}  # when the last piece of a step has come
    begun_s = 0.0  # when there was room for what is fetched now
    for place, fetches in enumerate(walk(needs, needs.steps, each, most_bytes)):
        for step, piece in fetches:
            size = each[piece]
            calls = -(-size // PIECE_BYTES)
            come_s = clock.requested(begun_s, calls, size)
            there_s[step] = max(come_s, there_s.get(step, 0.0))
            number = step - needs.steps.start
            run.fetched[number] += 1
            run.requests[number] += calls
            run.num_bytes[number] += size
            run.pieces.append(int(numbers[asked[piece]]))
        begun_s = clock.made(place, there_s.pop(needs.steps[place], 0.0), run)
    run.ended_s = clock.ended_s
    return run


def walk(
    needs: Needs, steps: range, sizes: Sequence[int] | Int64s, most_bytes: int
) -> Iterator[list[tuple[int, int]]]:
    """Of each step, what the schedule has given out before that step is read: the step that a piece
    is for, and the piece. `ValueError` if a step does not fit into the cache."""
    schedule = Schedule(most_bytes, cast(Any, sizes))
    schedule.begin("", needs, steps.start, steps.stop)
    for step in steps:
        fetches = []
        # Until there is room, nothing is to be asked.
        while step > schedule.has_room_after and (
            (fetch := schedule.next()) is not None or schedule.is_behind
        ):
            if fetch is not None and fetch.step is not None:
                schedule.fetched(fetch.piece)
                fetches.append((fetch.step, fetch.piece))
        yield fetches
        schedule.was_read("", step)


def replay_without_cache(
    steps: range, requests: Int64s, num_bytes: Int64s, conditions: Conditions
) -> Run:
    """The run of a host that reads what each batch needs, and keeps nothing."""
    run, clock = _empty(steps), _Clock(dataclasses.replace(conditions, at_once=_READS_AT_ONCE))
    run.requests[:], run.num_bytes[:] = requests, num_bytes
    begun_s = 0.0
    for place, (calls, size) in enumerate(zip(requests.tolist(), num_bytes.tolist(), strict=True)):
        begun_s = clock.may_begin(place, begun_s)
        begun_s = clock.made(place, clock.requested(begun_s, calls, size), run)
    run.ended_s = clock.ended_s
    return run


def _empty(steps: range) -> Run:
    needed, fetched, requests, num_bytes = np.zeros((4, len(steps)), np.int64)
    return Run(steps, needed, fetched, requests, num_bytes, np.zeros(len(steps)), 0.0, [])


class _Clock:
    """When what has come, and when the loop was at which step."""

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._free_s: list[float] = []  # when the requests under way have ended
        self._line_s = 0.0  # when all bytes that were asked for have come
        self._began_s: list[float] = []  # of the steps
        self.ended_s = 0.0  # of the last step

    def requested(self, now_s: float, calls: int, size: int) -> float:
        """When it has come what is asked for at this time, by so many requests."""
        come_s, told = now_s, self._conditions
        for _ in range(calls):
            begin_s = now_s
            if len(self._free_s) >= told.at_once:
                begin_s = max(now_s, heapq.heappop(self._free_s))
            self._line_s = (
                max(self._line_s, begin_s + told.latency_s) + size / calls / told.bytes_per_s
            )
            come_s = self._line_s
            heapq.heappush(self._free_s, come_s)
        return come_s

    def may_begin(self, place: int, now_s: float) -> float:
        """When the batch of a step may be begun: so many are made ahead of the loop."""
        before = place - 1 - self._conditions.prefetch
        return max(now_s, self._began_s[before]) if before >= 0 else now_s

    def made(self, place: int, there_s: float, run: Run) -> float:
        """When the batch of a step is made, of which all was there at this time."""
        made_s = self.may_begin(place, there_s)
        if self._began_s:
            made_s = max(made_s, self._made_s)
        self._made_s = made_s
        began_s = max(made_s, self.ended_s)
        run.waited_s[place] = began_s - self.ended_s
        self._began_s.append(began_s)
        self.ended_s = began_s + self._conditions.step_s
        return made_s
