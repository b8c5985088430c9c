"""Workers that are started when they are needed, and kept until their loader closes."""

import os
from collections.abc import Callable
from typing import Any

from loader.records.work import Work
from loader.runtime.line import Line
from loader.runtime.workers.asking import Asking
from loader.runtime.workers.kinds import Crew, RemoteKind, WorkerKind
from loader.runtime.workers.parcels import refuse_what_cannot_travel


class Employer:
    """Holds a crew; has work done."""

    def __init__(self, kind: WorkerKind) -> None:
        self._kind = kind
        self._crew: Crew | None = None
        self._pid = 0

    def refuse_what_cannot_travel(self, work: Work) -> None:
        """`TypeError` for what cannot be sent to the workers, where it must be."""
        if isinstance(self._kind, RemoteKind):
            refuse_what_cannot_travel(work)

    def line(
        self,
        work: Work,
        place: Callable[[Any], Any] | None,
        first: int,
        prefetch: int,
        asked_again: dict[str, int],
    ) -> Line[Any]:
        """The results of work from a step on, made here or by the crew."""
        kind, make, on_stop = self._kind, work.make, None
        if isinstance(kind, RemoteKind):
            if self._crew is None or self._pid != os.getpid() or not self._crew.is_alive():
                self._crew, self._pid = kind.begin(), os.getpid()
            asking = Asking(self._crew.job(work), kind, work, asked_again)
            make, on_stop = asking.make, asking.stop
        return Line(
            make,
            place,
            first=first,
            end=work.end,
            ahead=prefetch,
            helpers=kind.helpers if prefetch else 0,
            any_thread=work.thread_safe and on_stop is None,
            on_stop=on_stop,
        )

    def close(self) -> str | None:
        """End the workers. Says what still runs, if anything."""
        crew, self._crew = self._crew, None
        return crew.close() if crew is not None and self._pid == os.getpid() else None


class Lent(Employer):
    """The workers of another loader, which closes them itself."""

    def __init__(self, employer: Employer) -> None:
        super().__init__(employer._kind)
        self.line = employer.line

    def close(self) -> str | None:
        return None
