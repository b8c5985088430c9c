"""The thread that looks after actors: starts them, asks them, and replaces them.

It alone talks to Ray, and what it must know comes through one queue: steps that are wanted, and
answers. Each actor has one thing to do at a time, so that a slow one holds up nothing but that. A
step that takes far longer than others is asked of a second actor too; the first answer counts.
"""

import collections
import contextlib
import functools
import logging
import os
import queue
import socket
import statistics
import sys
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Any

from loader.records.jax_settings import deciding_settings
from loader.runtime.helper_threads import HelperThreads
from loader.runtime.host_pipeline import Made
from loader.runtime.workers import ray_cluster
from loader.runtime.workers.kinds import Answer, WorkerLost
from loader.runtime.workers.ray_host import maker, unflat, versions
from loader.runtime.workers.ray_job import ActorJob, Task
from loader.runtime.workers.ray_seat import Seat
from loader.runtime.workers.same_data import other_data

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0  # to find a place, import what is needed, and load
_TICK_S = 0.25
_HELD_UP_S = 1.0  # between two looks at the actors, what is longer is not charged to them
_SLOW, _SLOW_S = 3, 1.0  # a slow step takes so many times the median, and so long
_REMEMBERED = 100  # steps of which the median is taken


class Actors:
    """Looks after the actors of a kind, until it is stopped or its owner is gone."""

    def __init__(self, owner: Any, kind: Any) -> None:
        self._owner = weakref.ref(owner)
        self._kind = kind
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stopped = False
        self._error: BaseException | None = None  # once the thread has ended
        self._settings = deciding_settings()
        self._versions = versions()
        self._waiting: collections.deque[Task] = collections.deque()
        self._seats: list[Seat] = []
        self._took_s: collections.deque[float] = collections.deque(maxlen=_REMEMBERED)
        self._failed_starts = 0
        self._looked = time.monotonic()  # when it was last seen who takes too long
        self._warned = False
        self.threads = HelperThreads(1, self._run, self.stop, "gristmill-ray", uses_jax=False)

    # Called by others

    def tell(self, task: Task) -> None:
        self._events.put(("wanted", task))
        if self._error is not None:  # nobody may take it from there
            with contextlib.suppress(InvalidStateError):
                task.future.set_exception(self._error)

    def stop(self) -> None:
        """Tell the thread to end the actors, and do not wait."""
        self._stopped = True
        self._events.put(("stop",))

    # The thread

    def _run(self) -> None:
        error: BaseException | None = None
        joined = False
        try:
            address = ray_cluster.join(self._kind.address, self._kind.count)
            joined, head = True, ray_cluster.Head(address, self._kind.timeout_s)
            self._begin()
            while not self._stopped and self._owner() is not None:
                self._hear()
                self._hand_out()
                self._end_the_late()
                head.look()
        except BaseException as caught:  # those who wait for an answer must see it
            error = caught
            if not isinstance(error, ray_cluster.ClusterGone | ValueError | ConnectionError):
                logger.exception("the thread that looks after Ray actors has failed")
        finally:
            self._end(error, joined)

    def _begin(self) -> None:
        self._ray = ray = ray_cluster.prepared()
        count = self._kind.count or ray_cluster.cpus()
        self._starts = self._kind.restarts * count
        self._make = maker(ray, self._kind.options or {})
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
        seat.ref.future().add_done_callback(functools.partial(_noted, self._events, seat, turn))

    def _hear(self) -> None:
        """See what has come, and wait a little if nothing has."""
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=_TICK_S)
            while True:
                kind, *rest = event
                if kind == "wanted":
                    self._waiting.append(rest[0])
                elif kind == "answer":
                    self._heard(*rest)
                event = self._events.get_nowait()
        for task in [task for task in self._waiting if task.is_over()]:
            self._waiting.remove(task)
            task.future.cancel()

    def _hand_out(self) -> None:
        """Give a step to each actor that has nothing to do; the earliest first."""
        for seat in self._seats:
            if seat.doing is not None:
                continue
            task = min(self._waiting, key=lambda task: task.step, default=None) or self._slow()
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
                self._ask(seat, "step", seat.actor.ask.remote, "step", view.number, task.step)

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
            self._answer(seat, task, rest[0])

    def _answer(self, seat: Seat, task: Task | None, parcel: Any) -> None:
        """Hand a result, or an error of the user's code, to the one who has asked."""
        self._failed_starts = 0
        self._hand_out()  # while this is read, the actor goes on
        if task is None or task.is_over() or not task.begin_answer():
            return
        try:
            answer: Answer = unflat(parcel)
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

    def _fail(self, error: BaseException, job: ActorJob | None = None) -> None:
        for task in [task for task in self._waiting if job is None or task.job is job]:
            self._waiting.remove(task)
            if task.begin_answer():
                task.future.set_exception(error)

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

    def _end(self, error: BaseException | None, joined: bool) -> None:
        self._error = error = error or RuntimeError("the Ray actors have ended")
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                if event[0] == "wanted":
                    self._waiting.append(event[1])
        self._waiting.extend(seat.task for seat in self._seats if seat.task is not None)
        self._fail(error)
        if isinstance(error, ray_cluster.ClusterGone):
            ray_cluster.abandon()
            return
        for seat in self._seats:
            with contextlib.suppress(Exception):  # the user may have left the cluster
                self._ray.kill(seat.actor, no_restart=True)
        self._seats = []
        if joined:
            ray_cluster.leave()


def _noted(events: queue.SimpleQueue[Any], seat: Seat, turn: int, future: Future[Any]) -> None:
    """Called by a thread of Ray's: the answer is read where it is."""
    error = future.exception()
    events.put(("answer", seat, turn, None if error else future.result(), error))


def _in_words(error: BaseException) -> str:
    """What has happened, the same for all cases of a kind."""
    return {
        "ActorUnavailableError": "its process has ended, or cannot be reached",
        "ActorDiedError": "it was ended, or its node has gone",
    }.get(type(error).__name__, type(error).__name__)


def _shown(resources: Mapping[str, float]) -> dict[str, float]:
    """Without Ray's own labels of nodes."""
    return {name: amount for name, amount in sorted(resources.items()) if ":" not in name}
