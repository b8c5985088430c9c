"""What the steps of some work read through caches is fetched before they are made.

A line tells the caches its plan: they fetch in its order, and let go what is needed last. A step
waits for what it needs, and says when it was made. None of this decides what is read.
"""

from concurrent.futures import CancelledError
from typing import Any

from loader.records.work import Work
from loader.sources.reading import has_stored_pieces
from loader.sources.storage.cache.caches import caches_of
from loader.sources.storage.cache.fetch_loop import Ended
from loader.sources.storage.cache.fetching import Fetching, fetching_of


class FetchAhead:
    """The plan of one line, from a step on, as long as this is there."""

    def __init__(self, work: Work, first: int) -> None:
        self._work = work
        self._plans: list[tuple[Fetching, int]] = []
        if has_stored_pieces(work.source) and (caches := caches_of(work.source)):
            needs = work.planned().stored_pieces
            for fetching in map(fetching_of, caches):
                name = fetching.begin(self, needs, first, work.end)
                self._plans.append((fetching, name))

    def __bool__(self) -> bool:
        """Whether anything is read through a cache."""
        return bool(self._plans)

    def make(self, step: int) -> Any:
        """The result of a step, once what it needs is there."""
        try:
            self.wait(step)
            return self._work.make(step)
        finally:
            self.was_made(step)

    def wait(self, step: int) -> None:
        """Wait for what a step needs; raises what was wrong with it."""
        try:
            for fetching, name in self._plans:
                fetching.wait(name, step)
        except Ended:
            raise CancelledError("the line has ended") from None

    def is_ready(self, step: int) -> bool:
        """Whether all that a step needs is there."""
        return all(fetching.is_ready(name, step) for fetching, name in self._plans)

    def was_made(self, step: int) -> None:
        """What only this step has needed may go."""
        for fetching, name in self._plans:
            fetching.was_read(name, step)

    def stop(self) -> None:
        """Fetch no more. Called by the loop, too: it takes no lock."""
        for fetching, name in self._plans:
            fetching.stop(name)
