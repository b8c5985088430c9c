"""The trainer's side of a service: it asks the one actor that all jobs know by its name.

Steps are asked as they are wanted; where the result is comes back, and it is read from there. Who
makes them, and when one is too late, is the service's matter.
"""

import contextlib
import hashlib
import os
import socket
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from loader.records.jax_settings import deciding_settings
from loader.records.work import Work
from loader.runtime.host_pipeline import Made
from loader.runtime.workers.host_work import HostWork
from loader.runtime.workers.kinds import Answer, WorkerLost
from loader.runtime.workers.parcels import packed_source, packed_view
from loader.runtime.workers.ray.host import Flat, arrays, unflat, versions
from loader.runtime.workers.ray.job import Task
from loader.runtime.workers.ray.service import service_class
from loader.runtime.workers.ray.thread import RayThread, ServiceGone, noted
from loader.runtime.workers.same_data import seen_data

NAMESPACE = "gristmill"  # of Ray, in which services have their names
_STOP_S = 30.0


class ServiceJob:
    """Batches of a loader, as a service is asked for them."""

    def __init__(self, guest: "Guest", work: HostWork, data: Any) -> None:
        self.guest = guest
        self.work = work
        decides = work.known_by()
        of_source = decides["fingerprint"], decides["mixture"], decides["settings"]
        self.key = _digest(decides)
        self.who: dict[str, Any] = {
            "fingerprint": decides["fingerprint"],
            "source": _digest(of_source),
            "data": data,
            "versions": versions(),
        }
        self.is_known = False  # to the service
        self.teller: Task | None = None  # with which it is told: the others wait for that
        self.lost: dict[int, str] = {}  # steps whose results were not where they should be
        self.closed = False

    def submit(self, step: int, *, whole: bool = False) -> Future[Answer]:
        task = Task(self, step)
        self.guest.tell(task)
        return task.future

    def close(self) -> None:
        self.closed = True

    def parcels(self, without_source: bool) -> tuple[bytes, Flat | None]:
        view = packed_view(self.work)
        if without_source:
            return view, None
        data, buffers = packed_source(self.work.source)
        return view, (data, arrays(buffers))


def _digest(value: Any) -> str:
    """Of plain values, in an order that is always the same."""
    return hashlib.sha256(repr(value).encode()).hexdigest()


class Guest(RayThread):
    """Asks a service, which is started if it is not there."""

    def _begin(self) -> None:
        self._asked: set[Task] = set()
        self._service: Any = None

    def _go_on(self) -> None:
        for task in list(self._waiting):
            if task.job.is_known or task.job.teller is None:
                self._waiting.remove(task)
                self._ask(task)

    def _under_way(self) -> Iterable[Task]:
        return getattr(self, "_asked", ())

    def _ask(self, task: Task, *parcels: Any) -> None:
        job: ServiceJob = task.job
        self._asked.add(task)
        if self._service is None:
            self._service = self._found_or_started(job)
        who = None if job.is_known else self._who(job)
        job.teller = None if job.is_known else task
        arguments = job.key, task.step, job.lost.get(task.step), who, parcels
        # With retries: after a restart of the service it says that it does not know the work.
        ask = self._service.ask.options(max_task_retries=-1).remote
        self._told(task, "asked", lambda: ask(*arguments))

    def _told(self, task: Task, doing: str, begin: Any) -> None:
        try:
            noted(self._events, begin(), task, doing)
        except self._ray.exceptions.RayError as error:  # it is known to be dead
            self._events.put(("answer", task, doing, None, error))

    def _who(self, job: ServiceJob) -> dict[str, Any]:
        asked = {"count": self._kind.count, "options": self._kind.options}
        return {**job.who, "asked": asked, "ahead": self._kind.window()}

    def _found_or_started(self, job: ServiceJob) -> Any:
        kind = self._kind
        terms = {name: getattr(kind, name) for name in ("count", "options", "timeout_s")}
        terms["restarts"] = kind.restarts
        path = [os.path.abspath(place) for place in sys.path]
        named = kind.share, job.who["fingerprint"], terms, deciding_settings()
        affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        here = self._ray.get_runtime_context().get_node_id()
        actor = self._ray.remote(service_class()).options(
            name=kind.share,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=1 << 14,
            scheduling_strategy=affinity(here, soft=True),
        )
        return actor.remote(socket.gethostname(), path, *named)

    def _heard(self, task: Task, doing: str, answer: Any, error: BaseException | None) -> None:
        self._asked.discard(task)
        if task.job.teller is task:
            task.job.teller = None
        if task.is_over():
            return
        if error is not None:
            self._has_failed(task, doing, error)
        elif doing == "fetched":
            task.job.lost.pop(task.step, None)
            self._answer(task, answer)
        else:
            kind, *rest = answer
            getattr(self, f"_{kind}")(task, *rest)

    def _unknown(self, task: Task, has_source: bool) -> None:
        task.job.is_known = False  # or not any more, after a restart
        if task.job.teller is None:
            self._ask(task, *task.job.parcels(without_source=has_source))
        else:
            self._waiting.append(task)

    def _made(self, task: Task, by: str, refs: list[Any]) -> None:
        task.job.is_known = True
        task.by, task.ref = by, refs[0]
        self._asked.add(task)
        self._told(task, "fetched", lambda: refs[0])

    def _lost(self, task: Task, words: str, why: str) -> None:
        self._raise(task, WorkerLost(words, why))

    def _refused(self, task: Task, words: str) -> None:
        self._raise(task, ValueError(f"the service {self._kind.share!r} {words}"))

    def _failed(self, task: Task, words: str) -> None:
        self._raise(task, RuntimeError(f"the service {self._kind.share!r}: {words}"))

    def _raise(self, task: Task, error: Exception) -> None:
        if task.begin_answer():
            task.future.set_exception(error)

    def _answer(self, task: Task, parcel: Flat) -> None:
        if not task.begin_answer():
            return
        try:
            answer: Answer = unflat(parcel)
        except Exception as error:  # of unpickling: the loop must see it
            task.future.set_exception(error)
            return
        if isinstance(answer, Made):
            answer.by = task.by
        task.future.set_result(answer)

    def _has_failed(self, task: Task, doing: str, error: BaseException) -> None:
        errors = self._ray.exceptions
        if doing == "fetched":
            task.job.lost[task.step] = task.ref.hex()
            words = "the node that had the result has gone"
            self._raise(task, WorkerLost(f"{words}: {type(error).__name__}", words))
        elif isinstance(error, errors.RayTaskError):
            self._failed(task, str(error))
        elif isinstance(error, errors.ActorDiedError):
            self._asked.add(task)
            raise ServiceGone(
                f"the service {self._kind.share!r} was stopped, or could not start. The loader is "
                "where it was: iterate again to start the service anew, save its state, or go on "
                f"with workers=Threads(n). Ray says: {error}"
            )
        else:  # it is being started anew, and does not know the work then
            self._raise(task, WorkerLost(f"the service ended: {error}", "the service ended"))


class ServiceCrew:
    """What a loader has of a service. That stays when this object ends."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._data: tuple[Any, Any] = (None, None)  # of the source of the last job
        self._guest = Guest(self, kind)
        self._guest.threads.start()

    def job(self, work: Work) -> ServiceJob:
        if not isinstance(work, HostWork) or work.fingerprint is None:
            raise ValueError(
                "Ray(share=...) is for the batches of a loader; for long work that is done once, "
                "leave out share"
            )
        if self._data[0] is not work.source:
            self._data = work.source, seen_data(work.source)
        return ServiceJob(self._guest, work, self._data[1])

    def is_alive(self) -> bool:
        return self._guest.threads.alive()

    def close(self) -> str | None:
        self._guest.stop()
        return self._guest.threads.join()


# Services by name, for who has joined their cluster


def services(ray: Any) -> dict[str, Any]:
    """The handles of those that are there."""
    there = ray.util.list_named_actors(all_namespaces=True)
    found = {}
    for name in sorted(each["name"] for each in there if each["namespace"] == NAMESPACE):
        with contextlib.suppress(ValueError):  # it has just ended
            found[name] = ray.get_actor(name, namespace=NAMESPACE)
    return found


def stop_service(ray: Any, name: str) -> None:
    """End a service and its actors. `ValueError` if there is none of this name."""
    there = services(ray)
    if name not in there:
        words = f"there are {', '.join(there)}" if there else "there is none on this cluster"
        raise ValueError(f"there is no service {name!r}: {words}")
    ray.kill(there[name], no_restart=True)
    until = time.monotonic() + _STOP_S
    while name in services(ray) and time.monotonic() < until:
        time.sleep(0.05)
