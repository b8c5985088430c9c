"""The workers of a loader: started when they are needed, kept until the loader closes."""

import functools
import os
from collections.abc import Callable

from loader.records.integers import Int64s
from loader.runtime.host_pipeline import HostPipeline, Made
from loader.runtime.line import Line
from loader.runtime.workers.asking import Asking
from loader.runtime.workers.kinds import Crew, RemoteKind, WorkerKind
from loader.runtime.workers.parcels import refuse_what_cannot_travel


class Employer:
    """Holds the crew of a loader; has its batches made."""

    def __init__(self, kind: WorkerKind) -> None:
        self._kind = kind
        self._crew: Crew | None = None
        self._pid = 0

    def refuse_what_cannot_travel(self, pipeline: HostPipeline) -> None:
        """`TypeError` for what cannot be sent to the workers, where it must be."""
        if isinstance(self._kind, RemoteKind):
            refuse_what_cannot_travel(pipeline)

    def line(
        self,
        pipeline: HostPipeline,
        rows: Int64s | None,
        place: Callable[[Made], Made] | None,
        first: int,
        prefetch: int,
        asked_again: dict[str, int],
    ) -> Line[Made]:
        """The batches of a pipeline from a step on, made here or by the crew."""
        kind, make, on_stop = self._kind, functools.partial(pipeline.make, rows=rows), None
        if isinstance(kind, RemoteKind):
            if self._crew is None or self._pid != os.getpid() or not self._crew.is_alive():
                self._crew, self._pid = kind.begin(), os.getpid()
            job = self._crew.job(pipeline, rows)
            asking = Asking(job, kind, pipeline, asked_again)
            make, on_stop = asking.make, asking.stop
        return Line(
            make,
            place,
            first=first,
            end=pipeline.plan.end,
            ahead=prefetch,
            helpers=kind.helpers if prefetch else 0,
            any_thread=pipeline.thread_safe and on_stop is None,
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
