"""Long work that is done once, such as a pass over a source, by workers of its own."""

import contextlib
from collections.abc import Generator
from typing import Any

from loader.records.stacking import copied
from loader.records.work import Work
from loader.runtime.workers.employer import Employer
from loader.runtime.workers.kinds import WorkerKind

_AHEAD = 2  # results that wait until they are taken


class LongWorkKind(WorkerKind):
    """A kind that does long work too: it is a `Workers` of `loader/records/work.py`."""

    def results(self, work: Work) -> Generator[Any, None, None]:
        """What each step gives, in their order, made ahead as the batches of a loader are."""
        assert work.end is not None, "long work has an end"
        with contextlib.closing(Employer(self)) as employer:
            employer.refuse_what_cannot_travel(work)
            with contextlib.closing(employer.line(work, None, 0, _AHEAD, {})) as line:
                for step in range(work.end):
                    # What a process has made is in a file, which is open as long as anything
                    # refers to it. Of all that a pass keeps there would soon be too many.
                    yield copied(line.take(step))
