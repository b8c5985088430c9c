"""The thread that looks after actors: starts them, asks them, and replaces them.

Each actor has one thing to do at a time, so that a slow one holds up nothing but that. A step that
takes far longer than others is asked of a second actor too; the first answer counts.
"""

import collections
import contextlib
import functools
import logging
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from loader.records.jax_settings import deciding_settings
from loader.runtime.host_pipeline import Made
from loader.runtime.workers.kinds import Answer, WorkerLost
from loader.runtime.workers.ray import cluster as ray_cluster
from loader.runtime.workers.ray.host import maker, unflat, versions
from loader.runtime.workers.ray.job import Task
from loader.runtime.workers.ray.seat import Seat
from loader.runtime.workers.ray.thread import RayThread, noted
from loader.runtime.workers.same_data import other_data

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0  # to find a place, import what is needed, and load
_HELD_UP_S = 1.0  # between two looks at the actors, what is longer is not charged to them
_SLOW, _SLOW_S = 3, 1.0  # a slow step takes so many times the median, and so long
_REMEMBERED = 100  # steps of which the median is taken


class Actors(RayThread):
    """Looks after the actors of a kind, until it is stopped or its owner is gone."""

    def __init__(self, owner: Any, kind: Any) -> None:
        self._settings = deciding_settings()
        self._versions = versions()
        self._seats: list[Seat] = []
        self._took_s: collections.deque[float] = collections.deque(maxlen=_REMEMBERED)
        self._failed_starts = 0
        self._looked = time.monotonic()  # when it was last seen who takes too long
        self._warned = False
        super().__init__(owner, kind)

    def _begin(self) -> None:
        count = self._kind.count or ray_cluster.cpus()
        self._starts = self._kind.restarts * count
        self._make = maker(self._ray, self._kind.options or {})
        self._seats = [self._started(f"actor {number}") for number in range(count)]

    def _started(self, name: str) -> Seat:
        path = [os.path.abspath(place) for place in sys.path]
        seat = Seat(name, self._make(socket.gethostname(), path, self._settings))
        self._ask_ready(seat)
        return seat

    def _ask_ready(self, seat: Seat) -> None:
        seat.forget()
        # With retries: it is answered as soon as the actor is there, after a restart too.
        ask = seat.actor.ready.options(max_task_retries=-1).remote
        self._ask(seat, "start", ask, seat.name)

    def _ask(self, seat: Seat, doing: str, method: Any, *arguments: Any) -> None:
        turn = seat.begin(doing)
        try:
            seat.ref = method(*arguments)
        except self._ray.exceptions.RayError as error:  # it is known to be dead
            self._events.put(("answer", seat, turn, None, error))
            return
        noted(self._events, seat.ref, seat, turn)

    def _go_on(self) -> None:
        self._hand_out()
        self._end_the_late()

    def _under_way(self) -> Iterable[Task]:
        return [seat.task for seat in self._seats if seat.task is not None]

    def _hand_out(self) -> None:
        """Give a step to each actor that has nothing to do; the earliest first."""
        for seat in self._seats:
            if seat.doing is not None:
                continue
            task = self._next() or self._slow()
            if task is None:
                return
            seat.job = task.job
            source, view = task.job.source, task.job.view
            if (old := seat.learns("source", source.number)) is not None:
                refs = source.refs(self._ray)
                self._ask(seat, "source", seat.actor.ask.remote, "source", old, source.number, refs)
            elif (old := seat.learns("view", view.number)) is not None:
                parcel = old, view.number, view.refs(self._ray), source.number
                self._ask(seat, "view", seat.actor.ask.remote, "view", *parcel)
            else:
                if task in self._waiting:
                    self._waiting.remove(task)
                seat.task = task
                task.seats.append(seat)
                self._ask(seat, "step", self._step_of(seat), view.number, task.step)

    def _next(self) -> Task | None:
        return min(self._waiting, key=lambda task: task.step, default=None)

    def _step_of(self, seat: Seat) -> Any:
        """What makes a step, as Ray calls it."""
        return functools.partial(seat.actor.ask.remote, "step")

    def _slow(self) -> Task | None:
        """A step that takes far longer than others, and was asked of one actor only."""
        median_s = statistics.median(self._took_s) if self._took_s else 0.0
        latest = time.monotonic() - max(_SLOW * median_s, _SLOW_S)
        slow = [
            seat.task
            for seat in self._seats
            if seat.task is not None and seat.since < latest and seat.task.seats == [seat]
        ]
        wanted = [task for task in slow if not task.is_over()]
        return min(wanted, key=lambda task: task.step, default=None)

    def _heard(self, seat: Seat, turn: int, answer: Any, error: BaseException | None) -> None:
        """See what an actor has said, or that it has ended."""
        if turn != seat.turn:  # of before it was replaced
            return
        doing, task, took_s = seat.doing, seat.task, time.monotonic() - seat.since
        if error is not None:
            self._ended_one(seat, error)
            return
        seat.rest()
        kind, *rest = answer
        if kind == "unknown":  # it was started anew
            if task is not None and task.lost_by(seat):
                self._waiting.append(task)
            self._ask_ready(seat)
        elif kind == "refused":
            where, why, text = (seat.where, *rest) if doing != "start" else rest
            self._refuse(seat, f"{where} {why}", text)
        elif kind == "ready":
            self._is_ready(seat, *rest)
        elif kind == "loaded":
            self._has_loaded(seat, rest[0])
        else:
            self._took_s.append(took_s)
            self._answer(seat, task, self._result(seat, *rest))

    def _result(self, seat: Seat, parcel: Any, good: bool) -> Callable[[], Answer]:
        """What reads an answer."""
        return functools.partial(unflat, parcel)

    def _answer(self, seat: Seat, task: Task | None, result: Callable[[], Answer]) -> None:
        """Hand a result, or an error of the user's code, to the one who has asked."""
        self._failed_starts = 0
        self._hand_out()  # while this is read, the actor goes on
        if task is None or task.is_over() or not task.begin_answer():
            return
        try:
            answer = result()
        except Exception as error:  # of unpickling: the loop must see it
            task.future.set_exception(error)
            return
        if isinstance(answer, Made):
            answer.by = seat.name
        task.future.set_result(answer)

    def _is_ready(self, seat: Seat, where: str, found: Mapping[str, str]) -> None:
        seat.where = where
        differ = [
            f"{name} {found.get(name)} instead of {mine}"
            for name, mine in self._versions.items()
            if found.get(name) != mine
        ]
        if differ:
            words = "give all nodes the trainer's packages, or name them in runtime_env"
            self._refuse(seat, f"{where} has {', '.join(differ)}: {words}")

    def _has_loaded(self, seat: Seat, there: Mapping[str, str] | None) -> None:
        """If that is other data than the trainer's, no batch of this actor is used."""
        here = {} if seat.job is None else seat.job.source.data
        if there is not None and (words := other_data(here, there)) is not None:
            self._refuse(seat, f"{seat.where} {words}")

    def _refuse(self, seat: Seat, why: str, text: str = "") -> None:
        """An actor cannot do what it is needed for: say so to all who wait for it."""
        if "No module named" in why:
            why += (
                ". Install it on that node, or name it in "
                "options={'runtime_env': {'pip': [...], 'working_dir': '.'}}"
            )
        self._fail(RuntimeError(f"{why}\n{text}".rstrip()), seat.job)
        self._ask_ready(seat)  # the cause may be gone by then

    def _ended_one(self, seat: Seat, error: BaseException) -> None:
        """An actor has ended, or its node has, or its answer was lost."""
        errors = self._ray.exceptions
        why = _in_words(error)
        if isinstance(error, errors.RayTaskError):  # what it does has failed, not the actor
            seat.rest()
            self._refuse(seat, f"{seat.where} has failed: {error}")
        elif isinstance(error, errors.ActorDiedError | errors.RuntimeEnvSetupError):
            if seat.doing == "start":
                self._failed_starts += 1
                if self._failed_starts >= self._starts:
                    self._failed_starts = 0
                    self._fail(RuntimeError(f"no Ray actor manages to start: {error}"))
            self._replace(seat, why)
        else:  # Ray starts it anew
            self._lost(seat, why)
            self._ask_ready(seat)

    def _lost(self, seat: Seat, why: str) -> None:
        task = seat.task
        words = f"{seat.where} ended: {why}"
        seat.rest()
        if task is None:
            logger.warning("%s", words)
        elif task.lost_by(seat) and task.begin_answer():
            task.future.set_exception(WorkerLost(words, why))

    def _replace(self, seat: Seat, why: str) -> None:
        self._lost(seat, why)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(seat.actor, no_restart=True)
        seat.turn += 1  # what it may still say is not heard
        self._seats[self._seats.index(seat)] = self._started(seat.name)

    def _end_the_late(self) -> None:
        """Replace who takes too long. Time in which this process was held up does not count."""
        now, last = time.monotonic(), self._looked
        self._looked = now
        held_up_s = max(0.0, now - last - _HELD_UP_S)
        for seat in list(self._seats):
            seat.since += held_up_s
            if seat.doing == "step" and now - seat.since > self._kind.timeout_s:
                self._replace(seat, f"more than {self._kind.timeout_s:g} s for one answer")
            elif seat.doing in ("source", "view") and now - seat.since > START_TIMEOUT_S:
                self._replace(seat, f"more than {START_TIMEOUT_S:g} s to load the {seat.doing}")
            elif seat.doing == "start" and now - seat.since > START_TIMEOUT_S:
                self._not_started(seat)

    def _not_started(self, seat: Seat) -> None:
        """Perhaps the cluster has no place for it, now or ever: it is left waiting for one."""
        seat.since = time.monotonic()
        free = self._ray.available_resources()
        words = (
            f"{seat.name} has not started within {START_TIMEOUT_S:g} s. It asks for "
            f"{ {'num_cpus': 1, **(self._kind.options or {})} }; the cluster has "
            f"{_shown(self._ray.cluster_resources())}, of which are free {_shown(free)}"
        )
        if all(other.doing == "start" for other in self._seats):
            self._fail(RuntimeError(words))
        elif not self._warned:
            self._warned = True
            logger.warning("%s. The others go on without it", words)

    def _finish(self) -> None:
        for seat in self._seats:
            with contextlib.suppress(Exception):  # the user may have left the cluster
                self._ray.kill(seat.actor, no_restart=True)
        self._seats = []


def _in_words(error: BaseException) -> str:
    """What has happened, the same for all cases of a kind."""
    return {
        "ActorUnavailableError": "its process has ended, or cannot be reached",
        "ActorDiedError": "it was ended, or its node has gone",
    }.get(type(error).__name__, type(error).__name__)


def _shown(resources: Mapping[str, float]) -> dict[str, float]:
    """Without Ray's own labels of nodes."""
    return {name: amount for name, amount in sorted(resources.items()) if ":" not in name}
