"""Workers that are started when they are needed, and kept until their loader closes."""

import functools
import os
from collections.abc import Callable
from typing import Any

from loader.records.stacking import copied
from loader.records.work import Work
from loader.runtime.fetch_ahead import FetchAhead
from loader.runtime.host_pipeline import Made
from loader.runtime.line import Line
from loader.runtime.workers.asking import Asking
from loader.runtime.workers.auto import Auto, HelperCount
from loader.runtime.workers.host_work import HostWork
from loader.runtime.workers.kinds import Crew, RemoteKind, WorkerKind
from loader.runtime.workers.parcels import refuse_what_cannot_travel


class Employer:
    """Holds a crew, or how many threads were chosen; has work done."""

    def __init__(self, kind: WorkerKind, prefetch: int = 1) -> None:
        self._kind = kind
        chooses = isinstance(kind, Auto) and prefetch > 0
        self.chosen = HelperCount() if chooses else None
        # Their loops do other work than the loader's own, and so wait for another part of it.
        self.chosen_in_passes = HelperCount() if chooses else None
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
        chosen: HelperCount | None = None,
    ) -> Line[Any]:
        """The results of work from a step on, made here or by the crew."""
        kind, make, on_stop = self._kind, work.make, None
        ahead = FetchAhead(work, first)
        if ahead:
            make, on_stop = ahead.make, ahead.stop
        helpers = kind.helpers
        if chosen is not None and isinstance(work, HostWork):
            chosen.one_because = work.in_one_thread()
            helpers = chosen.count
        if isinstance(kind, RemoteKind):
            if self._crew is None or self._pid != os.getpid() or not self._crew.is_alive():
                self._crew, self._pid = kind.begin(), os.getpid()
            asking = Asking(self._crew.job(work), kind, work, asked_again, ahead)
            make, on_stop = asking.make, asking.stop
            if kind.shares_memory and place is None:
                make = functools.partial(_with_its_own_memory, make)
        return Line(
            make,
            place,
            first=first,
            end=work.end,
            ahead=prefetch,
            helpers=helpers if prefetch else 0,
            any_thread=work.thread_safe and not isinstance(kind, RemoteKind),
            on_stop=on_stop,
        )

    def close(self) -> str | None:
        """End the workers. Says what still runs, if anything."""
        crew, self._crew = self._crew, None
        return crew.close() if crew is not None and self._pid == os.getpid() else None


def _with_its_own_memory(make: Callable[[int], Any], step: int) -> Any:
    """A result whose arrays the loop may write to. What is placed is only read."""
    made = make(step)
    if isinstance(made, Made):
        made.batch = copied(made.batch)
    return made


class Lent(Employer):
    """The workers of another loader, which closes them itself."""

    def __init__(self, employer: Employer) -> None:
        super().__init__(employer._kind)
        self.chosen = self.chosen_in_passes = employer.chosen_in_passes
        self.line = employer.line

    def close(self) -> str | None:
        return None
