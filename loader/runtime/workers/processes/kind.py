"""Host work in processes of this machine that are looked after."""

import dataclasses
import itertools
import pickle
import sys
from typing import Any

from loader.records.integers import checked_int
from loader.records.work import Work
from loader.runtime.workers.kinds import RemoteKind
from loader.runtime.workers.long_work import LongWorkKind
from loader.runtime.workers.parcels import packed_source, packed_view
from loader.runtime.workers.processes.shared_memory import Parcel
from loader.runtime.workers.processes.supervisor import ProcessJob, Sent, Supervisor
from loader.runtime.workers.same_data import seen_data

_SOURCES_KEPT = 2  # whose memory stays shared after their loop has ended


@dataclasses.dataclass(frozen=True)
class Processes(RemoteKind, LongWorkKind):
    """Batches are made by `count` processes, which gain where Python functions do the work.

    A process that is killed, or takes longer than `timeout_s` for one batch, is replaced, and its
    batch is made by another. A batch that has cost `restarts` processes ends the run. `ahead` steps
    are under way at once, by default two for each process.
    """

    count: int
    ahead: int | None = None
    timeout_s: float = 60.0
    restarts: int = 3

    def __post_init__(self) -> None:
        checked_int("Processes: count", self.count, 1)
        checked_int("Processes: restarts", self.restarts, 1)
        if self.ahead is not None:
            checked_int("Processes: ahead", self.ahead, 1)
        if not self.timeout_s > 0:
            raise ValueError(f"Processes: timeout_s must be above 0, got {self.timeout_s!r}")

    def window(self, answered: int = 0) -> int:
        return 2 * self.count if self.ahead is None else self.ahead

    def begin(self) -> "ProcessCrew":
        if sys.platform != "linux" or not sys.executable:
            raise RuntimeError(
                "Processes needs Linux and a Python that can be started again "
                f"(sys.executable), and this is {sys.platform} with {sys.executable!r}: use "
                "workers=Threads(n), or workers=On(executor)"
            )
        return ProcessCrew(self)


class ProcessCrew:
    """The processes of one loader. They end with this object."""

    def __init__(self, kind: Processes) -> None:
        self._numbers = itertools.count()
        self._sources: list[tuple[Any, Sent]] = []
        self._supervisor = Supervisor(
            self, kind.count, kind.timeout_s, kind.restarts, kind.window()
        )
        self._supervisor.threads.start()

    def job(self, work: Work) -> ProcessJob:
        source = self._sent(work.source)
        view = Sent(next(self._numbers), Parcel(pickle.dumps(packed_view(work))))
        return ProcessJob(self._supervisor, source, view)

    def _sent(self, source: Any) -> Sent:
        for known, sent in self._sources:
            if known is source:
                return sent
        sent = Sent(next(self._numbers), Parcel(*packed_source(source)), seen_data(source))
        self._sources = [*self._sources, (source, sent)][-_SOURCES_KEPT:]
        return sent

    def is_alive(self) -> bool:
        """Whether the processes can be asked: not in a process that was forked from this one."""
        return self._supervisor.threads.alive()

    def close(self) -> str | None:
        self._supervisor.stop()
        return self._supervisor.threads.join()
