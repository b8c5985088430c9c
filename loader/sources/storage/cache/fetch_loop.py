"""What the thread of a cache does: it follows the schedule, and answers those who wait.

After each event (a plan begins or ends, a step is read, a piece is wanted, there or has failed) it
begins what the schedule gives out, and tells those who wait for what is there now.
"""

import copy
import itertools
import logging
import queue
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from loader.records.integers import Int64s
from loader.sources.storage.cache.disk_cache import DiskCache
from loader.sources.storage.cache.filling import POLL_S, Filling, Tell
from loader.sources.storage.cache.numbering import CachedFiles, Needed
from loader.sources.storage.cache.schedule import NEVER, Fetch, Schedule, TooSmall

logger = logging.getLogger(__name__)

_SHARE_S = 0.25  # so often it looks whether other processes want room
_IDLE_S = 3.0  # after which nothing is held any more
_GO_ON_S = 2.0  # that a reader waits for room that other processes have

Reply = queue.SimpleQueue[BaseException | None]


class Ended(Exception):
    """What was waited for is not wanted any more."""


class NoRoom(Exception):
    """Others need so much of the cache that a piece has no room: it is not fetched."""


class _Plan:
    def __init__(self, owner: weakref.ref[Any], first: int) -> None:
        self.owner = owner  # when it is gone, the plan ends
        self.first = first
        self.ready = first  # of all steps before this one, every piece is there
        self.waiters: dict[int, list[Reply]] = {}


class FetchLoop:
    """The state of that thread. `ready` is looked at by others, too."""

    def __init__(self, cache: DiskCache, tell: Tell) -> None:
        self._cache = cache
        self._tell = tell
        self.ready: dict[int, int] = {}  # of each plan, the first step that is not there
        self._given_up: dict[int, TooSmall] = {}  # plans that cannot be followed
        self._forget()

    def _forget(self) -> None:
        """Begin anew, with nothing that anybody needs."""
        self._filling: Filling | None = None
        self._schedule = Schedule(self._cache.size, [])
        self._plans: dict[int, _Plan] = {}
        self._wanted: deque[int] = deque()  # outside of any plan, and not begun yet
        self._takers: dict[int, list[Reply]] = {}
        self._shared_s = 0.0
        self._has_more_to_see = False

    def _opened(self) -> Filling:
        if self._filling is None:
            self._filling = Filling(self._cache, self._tell, self._finished)
            self._schedule = Schedule(self._cache.size, self._filling.pieces.sizes)
        return self._filling

    def close(self) -> None:
        """Hold nothing any more."""
        if self._filling is not None:
            self._filling.close()
        self._forget()

    def pause_s(self) -> float | None:
        """How long to wait for the next event."""
        if self._filling is None:
            return None
        if self._has_more_to_see:
            return 0.0
        if self._filling.theirs or self._filling.full:
            return POLL_S
        return _SHARE_S if self._plans else _IDLE_S

    def idle(self) -> None:
        """There was no event."""
        filling = self._filling
        if filling is None or self._has_more_to_see:
            return
        if not (self._plans or self._takers or filling.is_busy):
            self.close()

    # Events.

    def begin(
        self,
        name: int,
        owner: weakref.ref[Any],
        needs: Callable[[int], Needed],
        first: int,
        end: int | None,
        reply: Reply,
    ) -> None:
        """Follow a plan."""

        def numbers(step: int) -> list[int]:
            ours = [self._numbers(*part) for part in needs(step) if part[0].cache == self._cache]
            return list(dict.fromkeys(itertools.chain(*ours)))

        try:
            self._opened()
            self._schedule.begin(name, numbers, first, end)
        except Exception as error:  # also of what is the user's
            reply.put(error)
            return
        self._plans[name] = _Plan(owner, first)
        # The first step does not wait: its reader fetches no more than it needs.
        self.ready[name] = first + 1
        reply.put(None)

    def wait(self, name: int, step: int, reply: Reply) -> None:
        """Answer when a step is there."""
        plan = self._plans.get(name)
        if plan is None:
            known = name in self.ready  # it is not followed any more, and nothing is waited for
            reply.put(None if known else self._given_up.get(name, Ended()))
        elif step < self._schedule.read(name):  # it is made again
            reply.put(None)
        else:
            plan.waiters.setdefault(step, []).append(reply)
            for piece in self._schedule.pieces(name, step):
                if self._opened().failed.pop(piece, None) is not None:
                    self._schedule.lost(piece)  # it is tried again, as somebody waits for it

    def was_read(self, name: int, step: int) -> None:
        self._schedule.was_read(name, step)

    def gone(self, owner: weakref.ref[Any]) -> None:
        """The owner of a plan is no more."""
        for name in [name for name, plan in self._plans.items() if plan.owner is owner]:
            self.stop(name)

    def stop(self, name: int) -> None:
        self._given_up.pop(name, None)
        self.ready.pop(name, None)
        if name in self._plans:
            self._end_plan(name, Ended())

    def take(self, files: CachedFiles, piece: int, reply: Reply) -> None:
        """Fetch a piece that is not there, and answer when it is."""
        try:
            filling = self._opened()
            (number,) = self._numbers(files, np.array([piece]))
        except Exception as error:
            reply.put(error)
            return
        if filling.pieces.sizes[number] > self._cache.size:
            reply.put(_too_small(self._cache, filling.pieces.sizes[number]))
            return
        self._takers.setdefault(number, []).append(reply)
        if number in self._schedule.there and not filling.is_coming(number):
            failed = filling.failed.pop(number, None) is not None
            if failed or not filling.is_whole(number):
                filling.drop(number)
                self._schedule.lost(number)
        self._wanted.append(number)

    def failed(self, error: Exception) -> None:
        """An event has failed: plans are not followed any more, and nobody waits for them."""
        logger.warning("fetching ahead has failed: %s: %s", type(error).__name__, error)
        for name in [*self._plans]:
            self._end_plan(name, None)
            self.ready[name] = NEVER  # what is read from now on is asked for by itself
        for piece in [*self._takers]:
            self._answer_takers(piece, error)
        self._wanted.clear()
        self._has_more_to_see = False

    # After each event.

    def go_on(self) -> None:
        """Begin what can be begun, and answer those whose pieces are there."""
        filling = self._filling
        if filling is None:
            return
        self._look_at_others(filling)
        self._has_more_to_see = False
        while len(filling.under_way) < self._cache.at_once:
            fetch = self._next(filling)
            if fetch is None:
                self._has_more_to_see = self._schedule.is_behind
                break
            filling.let_go(fetch.let_go)
            filling.begin(fetch.piece)
        if not self._has_more_to_see and 2 * self._schedule.used > self._cache.size:
            self._has_more_to_see = self._schedule.look_ahead()
        for name, plan in [*self._plans.items()]:
            self._announce(filling, name, plan)
        if (self._wanted or filling.full) and self._is_stuck(filling):
            for piece in [*self._wanted, *filling.full]:
                self._answer_takers(piece, NoRoom())
            self._wanted.clear()
        filling.count(self._schedule.hits)

    def _next(self, filling: Filling) -> Fetch | None:
        for _ in range(len(self._wanted)):
            piece = self._wanted.popleft()
            if piece in self._schedule.there:
                if not filling.is_coming(piece):
                    self._answer_takers(piece, None)
                continue
            if not self._schedule.is_due(piece):
                fetch = self._schedule.take(piece)
                if fetch is not None:
                    return fetch
            self._wanted.append(piece)
        try:
            return self._schedule.next()
        except TooSmall as error:
            name = int(error.stream)
            self._end_plan(name, error)
            self._given_up[name] = error
            return None

    def _announce(self, filling: Filling, name: int, plan: _Plan) -> None:
        """Tell those who wait for a step that it is there."""
        schedule = self._schedule
        read, ready = schedule.read(name), min(plan.ready, schedule.front(name))
        ready = max(ready, read)
        coming = {*filling.under_way, *filling.theirs, *filling.full, *filling.failed}
        while schedule.is_arranged(name, ready) and coming.isdisjoint(schedule.pieces(name, ready)):
            ready += 1
        plan.ready = ready
        self.ready[name] = max(ready, plan.first + 1)
        for step in [step for step in plan.waiters if step < self.ready[name]]:
            _answer(plan.waiters.pop(step), None)
        if ready == read and ready in plan.waiters and self._is_stuck(filling):
            _answer(plan.waiters.pop(ready), None)  # it is read without the cache

    def _is_stuck(self, filling: Filling) -> bool:
        """Whether nothing is to come for which it would help to wait."""
        if filling.under_way or filling.theirs or self._has_more_to_see:
            return False
        now = time.monotonic()
        return all(now - since > _GO_ON_S for since in filling.full.values())

    def _look_at_others(self, filling: Filling) -> None:
        filling.look_at_others()
        if filling.full:
            self._keep_to_share(filling)
        now = time.monotonic()
        if self._plans and now - self._shared_s >= _SHARE_S:
            self._shared_s = now
            if filling.num_processes == 1:
                self._schedule.allowed = self._cache.size
            elif filling.others_want:
                self._keep_to_share(filling)

    def _keep_to_share(self, filling: Filling) -> None:
        """There is not room for all that the processes would hold: keep to a part of it."""
        share = self._cache.size // max(1, filling.num_processes)
        least = max(share, self._schedule.least_bytes)
        self._schedule.allowed = min(self._cache.size, least)
        filling.let_go(self._schedule.shrink())

    def _end_plan(self, name: int, error: Exception | None) -> None:
        self._schedule.end(name)
        self.ready.pop(name, None)
        for replies in self._plans.pop(name).waiters.values():
            _answer(replies, error)

    def _numbers(self, files: CachedFiles, pieces: Int64s) -> list[int]:
        return self._opened().numbers(files, pieces, self._schedule.add)

    def _finished(self, piece: int, error: BaseException | None) -> None:
        """A piece is there, or has failed."""
        self._schedule.fetched(piece)
        if error is not None:
            if not self._takers.get(piece):
                logger.warning("a piece that was fetched ahead has failed: %s", error)
            for name, plan in self._plans.items():
                for step in [*plan.waiters]:
                    if piece in self._schedule.pieces(name, step):
                        _answer(plan.waiters.pop(step), error)
        self._answer_takers(piece, error)

    def _answer_takers(self, piece: int, error: BaseException | None) -> None:
        _answer(self._takers.pop(piece, []), error)


def _answer(replies: Iterable[Reply], error: BaseException | None) -> None:
    for reply in replies:
        reply.put(copy.copy(error))  # each raises its own


def _too_small(cache: DiskCache, size: int) -> ValueError:
    return ValueError(
        f"the cache holds {cache.size:,} bytes, and a piece that is read has {size:,}: give "
        f"DiskCache(folder, most_bytes={size}) or more"
    )
