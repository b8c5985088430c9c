"""A thread that talks to Ray: it alone does, and what it must know comes through one queue.

Steps that are wanted, and answers, are told to it. It lives as long as the crew that owns it, and
sees when the cluster goes away.
"""

import collections
import contextlib
import logging
import queue
import weakref
from collections.abc import Iterable
from concurrent.futures import InvalidStateError
from typing import Any

from loader.runtime.helper_threads import HelperThreads
from loader.runtime.workers.ray import cluster as ray_cluster
from loader.runtime.workers.ray.job import Task

logger = logging.getLogger(__name__)

_TICK_S = 0.25


class ServiceGone(Exception):
    """A service was stopped."""


_EXPECTED = ray_cluster.ClusterGone | ServiceGone | ValueError | ConnectionError


class RayThread:
    """Works until it is stopped or its owner is gone. A kind of it says what it does with tasks."""

    def __init__(self, owner: Any, kind: Any) -> None:
        self._owner = weakref.ref(owner)
        self._kind = kind
        self._ray: Any = None
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stopped = False
        self._error: BaseException | None = None  # once the thread has ended
        self._waiting: collections.deque[Task] = collections.deque()
        self.threads = HelperThreads(1, self._run, self.stop, "gristmill-ray", uses_jax=False)

    # Called by others

    def tell(self, task: Task) -> None:
        self._events.put(("wanted", task))
        if self._error is not None:  # nobody may take it from there
            with contextlib.suppress(InvalidStateError):
                task.future.set_exception(self._error)

    def stop(self) -> None:
        """Tell the thread to end, and do not wait."""
        self._stopped = True
        self._events.put(("stop",))

    # What a kind of it says

    def _begin(self) -> None:
        raise NotImplementedError

    def _heard(self, whose: Any, what: Any, answer: Any, error: BaseException | None, /) -> None:
        """See what has come."""
        raise NotImplementedError

    def _go_on(self) -> None:
        """Do something with the tasks that wait. Called after whatever was heard, and often."""
        raise NotImplementedError

    def _under_way(self) -> Iterable[Task]:
        """The tasks that do not wait."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Leave nothing behind on a cluster that is there."""

    # The thread

    def _run(self) -> None:
        error: BaseException | None = None
        joined = False
        try:
            address = ray_cluster.join(self._kind.address, self._kind.count, self._kind.share)
            joined, head = True, ray_cluster.Head(address, self._kind.timeout_s)
            self._ray = ray_cluster.prepared(self._kind.address)
            self._begin()
            while not self._stopped and self._owner() is not None:
                self._hear()
                self._go_on()
                head.look()
        except BaseException as caught:  # those who wait for an answer must see it
            error = caught
            if not isinstance(error, _EXPECTED):
                logger.exception("the thread that talks to Ray has failed")
        finally:
            self._end(error, joined)

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

    def _fail(self, error: BaseException, job: Any = None) -> None:
        """Answer all that nobody works at with an error, or those of a job."""
        for task in [task for task in self._waiting if job is None or task.job is job]:
            self._waiting.remove(task)
            if task.begin_answer():
                task.future.set_exception(error)

    def _end(self, error: BaseException | None, joined: bool) -> None:
        self._error = error = error or RuntimeError("the Ray actors have ended")
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                if event[0] == "wanted":
                    self._waiting.append(event[1])
        self._waiting.extend(self._under_way())
        self._fail(error)
        if isinstance(error, ray_cluster.ClusterGone):
            ray_cluster.abandon()
            return
        self._finish()
        if joined:
            ray_cluster.leave()


def noted(events: queue.SimpleQueue[Any], ref: Any, whose: Any, what: Any) -> None:
    """Have the answer told when it comes. It is read by a thread of Ray's, where it is."""

    def note(future: Any) -> None:
        error = future.exception()
        events.put(("answer", whose, what, None if error else future.result(), error))

    ref.future().add_done_callback(note)
