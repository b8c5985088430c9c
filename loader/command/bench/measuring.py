"""A loader in a loop like that of training, and how long each part of the loop took.

A *lap* of the loop asks for a batch, waits until it is on its device, takes a step with it, and
waits for what the step gives. Two kinds of laps are not counted: the first ones of all, in which
things are compiled and opened, and the first after each start of the loader, for which nothing can
be ready yet. A loader that ends is started again. What the machine has read before it may read
faster again: of data larger than memory, a short run sees the better side.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from loader.data_loader import DataLoader
from loader.runtime.stats import Stats

Step = Callable[[dict[str, Any]], Any]


@dataclasses.dataclass(frozen=True)
class Knobs:
    """What can be turned without changing a batch."""

    threads: int
    prefetch: int


class Lap(NamedTuple):
    """Seconds of one lap. `number` counts from a start of the loader."""

    number: int
    waiting_s: float
    arriving_s: float  # until the batch is on its device, and device operators are done with it
    step_s: float


@dataclasses.dataclass(frozen=True)
class Window:
    """The laps that count of some stretch of time, and what the loader noted during all of it."""

    laps: Sequence[Lap]
    stats: Stats
    busy_cores: float  # of this process: processor time by time passed


def rows_per_s(windows: Sequence[Window]) -> float:
    """What the loop gets through: rows of any batch, by the time of the laps that count."""
    laps = [lap for window in windows for lap in window.laps]
    seconds = sum(lap.waiting_s + lap.arriving_s + lap.step_s for lap in laps)
    rows = sum(window.stats.rows for window in windows)
    batches = sum(window.stats.batches for window in windows)
    return rows / batches * len(laps) / max(seconds, 1e-9)


class Loop:
    """A loader in a loop that can be left, and gone on with."""

    def __init__(self, loader: DataLoader, knobs: Knobs, step: Step | None) -> None:
        self.loader = loader
        self.knobs = knobs
        self.step = step
        self._warm = False
        # Threads begin together: the first batch of each is waited for, or comes with the first.
        self._starting = max(1, knobs.threads)

    def run(self, seconds: float) -> Window:
        """Go on for so long. The first time, warm up before."""
        endless = self._endless()
        if not self._warm:
            self._warm_up(endless, seconds)
        before, processor = self.loader.stats(), time.process_time()
        began = time.perf_counter()
        laps: list[Lap] = []
        while time.perf_counter() < began + seconds or len(laps) <= self._starting:
            laps.append(next(endless))
        busy = (time.process_time() - processor) / (time.perf_counter() - began)
        stats = self.loader.stats() - before
        self.loader.close()
        # A run may be so short that it has no other laps than the first.
        return Window([lap for lap in laps if lap.number >= self._starting] or laps, stats, busy)

    def _warm_up(self, endless: Iterator[Lap], seconds: float) -> None:
        """Compile, open files, and use up what was made ahead meanwhile, if that is soon done."""
        for _ in range(2):
            next(endless)
        until = time.perf_counter() + seconds / 2
        for _ in range(self.knobs.prefetch + 2 * self.knobs.threads):
            if time.perf_counter() < until:
                next(endless)
        self._warm = True

    def _endless(self) -> Iterator[Lap]:
        """One lap after the other; a loader that has ended starts again."""
        if self.loader.plan.end == 0:
            raise ValueError("the loader has no batches, so there is nothing to time")
        while True:
            iter(self.loader)  # which may be behind its last batch, and end without another
            number = 0
            while (lap := self._lap(number)) is not None:
                yield lap
                number += 1

    def _lap(self, number: int) -> Lap | None:
        """The lap of one batch; None at the end of the run."""
        asked = time.perf_counter()
        try:
            batch = next(self.loader)
        except StopIteration:
            return None
        given = time.perf_counter()
        jax.block_until_ready(batch)
        arrived = time.perf_counter()
        if self.step is not None:
            jax.block_until_ready(self.step(batch))
        return Lap(number, given - asked, arrived - given, time.perf_counter() - arrived)
