"""A service: actors that several jobs share. This is what runs in the cluster.

One named actor, which nobody's end takes with it, looks after the others as a loader looks after
its own, by the same code. Jobs ask it for a step of work that they name by a key, and equal work
has one key. It keeps where the last steps of each work are, and tells whoever asks. So a batch is
made once for all jobs that are near each other, and goes from the actor that has made it to those
who want it, not through here.
"""

import asyncio
import collections
import pickle
import types
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, cast

import jax

from loader.records.jax_settings import set_all
from loader.runtime.workers.kinds import WorkerLost
from loader.runtime.workers.ray.actors import Actors
from loader.runtime.workers.ray.cluster import prepared
from loader.runtime.workers.ray.host import Flat, versions
from loader.runtime.workers.ray.job import ActorJob, Sent, Task
from loader.runtime.workers.ray.seat import Seat
from loader.state.fingerprint import differing_fields

_STEPS_KEPT = 32  # of each work, besides those that a job has asked for ahead
_WORKS_KEPT = 16  # such as those of other batch sizes


def service_class() -> type:
    """The class of that actor. It travels by value: where it arrives, this package may be missing.

    Calls wait for one another's batches, so there are as many at once as there are.
    """

    class GristmillService:
        def __init__(self, machine: str, path: list[str], *terms: Any) -> None:
            import os
            import socket
            import sys

            os.environ["JAX_PLATFORMS"] = "cpu"  # accelerators are the trainers'
            if socket.gethostname() == machine:
                sys.path.extend(place for place in path if place not in sys.path)
            self._terms, self._made = terms, []

        def _service(self) -> Any:
            if not self._made:
                from loader.runtime.workers.ray.service import Service

                self._made.append(Service(*self._terms))
            return self._made[0]

        async def ask(self, *arguments: Any) -> tuple[Any, ...]:
            """Where the result of a step is, or why it is not."""
            try:
                service = self._service()
            except ImportError as error:
                return "refused", f"cannot import what it needs: {error!r}"
            return await service.ask(*arguments)

        async def described(self) -> dict[str, Any]:
            return self._service().described()

        async def wait(self) -> None:
            """Until it is stopped."""
            import asyncio

            await asyncio.Event().wait()

    return GristmillService


class _Shared(Actors):
    """Actors whose results stay in the object store: an answer is where one is."""

    def count(self) -> int:
        return len(self._seats)

    def _next(self) -> Task | None:
        return self._waiting[0] if self._waiting else None  # so that each job has its turn

    def _step_of(self, seat: Seat) -> Callable[..., Any]:
        def step(view: int, number: int) -> Any:
            method = seat.actor.step_apart.options(num_returns=2)
            head, seat.result = method.remote(view, number)
            return head

        return step

    def _result(self, seat: Seat, parcel: Any, good: bool) -> Callable[[], Any]:
        where = (seat.name, good, seat.result)
        return lambda: where


class _Work:
    """Work of one key, and where its last steps are."""

    def __init__(self, job: ActorJob, kept: int) -> None:
        self.job = job
        self.kept = kept
        self._steps: collections.OrderedDict[int, Future[Any]] = collections.OrderedDict()

    def step(self, step: int, lost: str | None) -> tuple[Future[Any], bool]:
        """Where the step is, or will be, and whether it was there or under way; `lost` is where it
        is not."""
        known = self._steps.get(step)
        if known is not None and not _is_of_no_use(known, lost):
            return known, True
        future = self._steps[step] = self.job.submit(step)
        self._steps.move_to_end(step)
        for old in [n for n, each in self._steps.items() if each.done()][: -self.kept or None]:
            del self._steps[old]
        return future, False

    def is_idle(self) -> bool:
        return all(future.done() for future in self._steps.values())


def _is_of_no_use(future: Future[Any], lost: str | None) -> bool:
    """Whether a step must be made again: it has failed, or its result is not there any more."""
    if not future.done():
        return False
    if future.cancelled() or future.exception() is not None:
        return True
    _, good, ref = future.result()
    return not good or ref.hex() == lost


class Service:
    """All that a service knows. It is used by one thread."""

    def __init__(
        self, name: str, fingerprint: Mapping[str, str], terms: Mapping[str, Any], settings: Any
    ) -> None:
        jax.config.update("jax_platforms", "cpu")
        set_all(settings)
        self._name = name
        self._fingerprint = fingerprint
        self._terms = terms
        kind = types.SimpleNamespace(**terms, address=None, share=None)
        self._actors = _Shared(self, kind)
        self._actors.threads.start()
        self._works: collections.OrderedDict[str, _Work] = collections.OrderedDict()
        self._sources: weakref.WeakValueDictionary[str, Sent] = weakref.WeakValueDictionary()
        self._counts = {"asked": 0, "made": 0}

    async def ask(
        self, key: str, step: int, lost: str | None, who: Any = None, parcels: Any = ()
    ) -> tuple[Any, ...]:
        """Where a step is. `who` says what its job is; `parcels` are the work and its source."""
        if who is not None and (words := self._unlike(who)) is not None:
            return "refused", words
        work = self._works.get(key) or self._added(key, who, *parcels)
        if work is None:
            return "unknown", who is not None and who["source"] in self._sources
        self._works.move_to_end(key)
        if who is not None:
            work.kept = max(work.kept, _STEPS_KEPT + who["ahead"])
        future, shared = work.step(step, lost)
        self._counts["asked"] += 1
        self._counts["made"] += not shared
        try:
            by, _, ref = await asyncio.wrap_future(future)
        except WorkerLost as error:
            return "lost", str(error), error.why
        except Exception as error:  # of the actors themselves
            return "failed", str(error)
        return "made", by, [ref]

    def _unlike(self, who: Mapping[str, Any]) -> str | None:
        """How a job differs from the one that this service was started for; None if it does not."""
        if differ := differing_fields(self._fingerprint, who["fingerprint"]):
            return (
                f"serves other batches: {', '.join(differ)} of this loader differ from those of "
                "the loader that it was started for. Use another name, or end it with gristmill "
                f"serve --stop {self._name}"
            )
        here = versions()
        differ = [
            f"{name} {here[name]} instead of {theirs}"
            for name, theirs in who["versions"].items()
            if here.get(name) != theirs
        ]
        if differ:
            return f"has {', '.join(differ)}: start it again with the packages of this trainer"
        for name, asked in who["asked"].items():
            if asked is not None and asked != self._terms[name]:
                return (
                    f"was started with {name}={self._terms[name]!r}, not {asked!r}: leave "
                    f"out {name}, or end it with gristmill serve --stop {self._name}"
                )
        return None

    def _added(
        self, key: str, who: Any, view: bytes | None = None, source: Flat | None = None
    ) -> _Work | None:
        """Work that was not known, if it is here: kept here, for its job may end."""
        if who is None or view is None:
            return None
        sent = self._sources.get(who["source"])
        if sent is None:
            if source is None:
                return None
            data, memory = source
            buffers = [pickle.PickleBuffer(part) for part in cast("list[Any]", memory)]
            sent = Sent((data, buffers), who["data"])
            sent.refs(prepared())
            self._sources[who["source"]] = sent
        if len(self._works) >= _WORKS_KEPT:
            idle = [name for name, each in self._works.items() if each.is_idle()]
            for old in idle[:1]:
                del self._works[old]
        job = ActorJob(self._actors, sent, Sent((view, [])))
        self._works[key] = work = _Work(job, _STEPS_KEPT + who["ahead"])
        return work

    def described(self) -> dict[str, Any]:
        return {"actors": self._actors.count(), **self._counts}
