"""Host work on actors of a Ray cluster: the CPUs of other machines."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from loader.records.integers import checked_int
from loader.records.work import Work
from loader.runtime.workers.kinds import Crew, RemoteKind, WorkerLost
from loader.runtime.workers.long_work import LongWorkKind
from loader.runtime.workers.parcels import packed_source, packed_view
from loader.runtime.workers.ray.actors import Actors
from loader.runtime.workers.ray.cluster import ClusterGone, cpus, prepared
from loader.runtime.workers.ray.job import ActorJob, Sent
from loader.runtime.workers.ray.share import ServiceCrew
from loader.runtime.workers.ray.thread import ServiceGone
from loader.runtime.workers.same_data import seen_data

_SOURCES_KEPT = 2  # that stay in the object store after their loop has ended


@dataclasses.dataclass(frozen=True)
class Ray(RemoteKind, LongWorkKind):
    """Batches are made by `count` actors of a Ray cluster, by default one for each of its CPUs.

    The cluster is the one at `address` (or `RAY_ADDRESS`), or that which this process has joined
    already; else one is started on this machine, for this machine only, and ended after use.
    `options` are those of the actors, such as `{"num_cpus": 2, "runtime_env": {...}}`. An actor
    that dies, or takes longer than `timeout_s` for one batch, is replaced, and its batch is made by
    another. A batch that has cost `restarts` actors ends the run. `ahead` steps are under way at
    once, by default two for each actor.

    Jobs that `share` a name use the same actors, which stay until they are stopped: of equal
    batches, those near each other are made once. The first of them says what the actors are.
    """

    count: int | None = None
    address: str | None = None
    options: Mapping[str, Any] | None = None
    ahead: int | None = None
    timeout_s: float = 60.0
    restarts: int = 3
    share: str | None = None

    def __post_init__(self) -> None:
        for name in ("count", "ahead"):
            if getattr(self, name) is not None:
                checked_int(f"Ray: {name}", getattr(self, name), 1)
        checked_int("Ray: restarts", self.restarts, 1)
        if not self.timeout_s > 0:
            raise ValueError(f"Ray: timeout_s must be above 0, got {self.timeout_s!r}")
        if self.address is not None and (
            not isinstance(self.address, str) or self.address.startswith("ray://")
        ):
            raise ValueError(
                "Ray: address is 'auto' or 'host:port' of a cluster that this machine belongs to, "
                f"got {self.address!r}; Ray Client (ray://) would copy each batch: run the trainer "
                "on a node of the cluster"
            )
        _refuse_options(self.options)
        if self.share is not None and not (isinstance(self.share, str) and self.share):
            raise ValueError(f"Ray: share is the name of a service, got {self.share!r}")

    shares_memory = True

    def window(self, answered: int = 0) -> int:
        return self.ahead or 2 * (self.count or cpus())

    def explained(self, error: BaseException, step: str) -> BaseException:
        if isinstance(error, ClusterGone):
            return WorkerLost(f"{step} was not made: {error}", "the cluster has gone")
        if isinstance(error, ServiceGone):
            return WorkerLost(f"{step} was not made: {error}", "the service was stopped")
        return error

    def begin(self) -> Crew:
        prepared(self.address)
        return ActorCrew(self) if self.share is None else ServiceCrew(self)


# What decides how the actors are asked is not for others to set.
_OURS = ("max_restarts", "max_task_retries", "max_concurrency", "lifetime", "name", "namespace")


def _refuse_options(options: Any) -> None:
    if options is None:
        return
    wrong = [key for key in _OURS if key in options] if isinstance(options, Mapping) else options
    if wrong or not isinstance(options, Mapping):
        raise ValueError(
            "Ray: options are those that say where an actor runs, such as {'num_cpus': 2, "
            f"'resources': {{'decode': 1}}, 'runtime_env': {{...}}}}; they cannot be {wrong!r}"
        )


class ActorCrew:
    """The actors of one loader. They end with this object."""

    def __init__(self, kind: Ray) -> None:
        self._sources: list[tuple[Any, Sent]] = []
        self._actors = Actors(self, kind)
        self._actors.threads.start()

    def job(self, work: Work) -> ActorJob:
        data = packed_view(work)
        return ActorJob(self._actors, self._sent(work.source), Sent((data, [])))

    def _sent(self, source: Any) -> Sent:
        for known, sent in self._sources:
            if known is source:
                return sent
        sent = Sent(packed_source(source), seen_data(source))
        self._sources = [*self._sources, (source, sent)][-_SOURCES_KEPT:]
        return sent

    def is_alive(self) -> bool:
        return self._actors.threads.alive()

    def close(self) -> str | None:
        self._actors.stop()
        return self._actors.threads.join()
