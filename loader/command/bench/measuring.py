"""A loader in a loop like that of training, and how long each part of the loop took.

A *lap* asks for a batch, waits until it is on its device, takes a step, and waits for what the step
gives. The first laps of all, and the first after each start of the loader, are not counted.
"""

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from loader.data_loader import DataLoader
from loader.records.words import cores
from loader.runtime.workers.kinds import RemoteKind, WorkerKind
from loader.runtime.workers.threads import Threads

Step = Callable[[dict[str, Any]], Any]


@dataclasses.dataclass(frozen=True)
class Look:
    """What was seen of a loop. Times are milliseconds per batch."""

    worker_kind: str
    workers: int  # of this kind, at work at once
    prefetch: int
    batches: int
    rows_per_s: float
    bytes_per_s: float
    masked_share: float
    stages_ms: Mapping[str, float]  # added over workers
    waiting_ms: float  # of the loop, for its next batch; dispatch is part of it
    arriving_ms: float  # after that, until the batch is on its device
    step_ms: float | None  # None: there is no step
    cores: int
    busy_cores: float | None  # processor time by time passed; None: workers are elsewhere

    @property
    def helpers(self) -> int:
        """How many workers make batches beside the loop."""
        return self.workers if self.prefetch else 0

    @property
    def lap_ms(self) -> float:
        return max(1e-6, self.waiting_ms + self.arriving_ms + (self.step_ms or 0.0))

    @property
    def waiting_share(self) -> float:
        """The part of the time in which the loop has no batch that it could use."""
        return (self.waiting_ms + self.arriving_ms) / self.lap_ms


def measure(loader: DataLoader, step: Step | None, seconds: float) -> Look:
    """Warm up, then look at the loader's loop for so long."""
    laps = laps_of(loader, step)
    _warm_up(loader, laps, seconds / 2)
    stats, kind = loader.stats(), kind_at_work(loader)
    workers = max(kind.helpers, getattr(kind, "count", None) or len(stats.workers))
    began, processor = time.perf_counter(), time.process_time()
    taken = [next(laps) for _ in range(workers + 1)]
    while time.perf_counter() < began + seconds:
        taken.append(next(laps))
    busy = (time.process_time() - processor) / (time.perf_counter() - began)
    stats = loader.stats() - stats
    loader.close()
    # Workers begin together, so the first batch of each is waited for, or comes with the first.
    # A run may be so short that it has no other laps.
    counted = [lap for number, *lap in taken if number >= workers]
    times_ms = 1e3 * np.array(counted or [lap for _, *lap in taken])
    waiting, arriving, in_step = times_ms.mean(axis=0).tolist()
    batches = max(1, stats.batches)
    batches_per_s = 1e3 * len(times_ms) / max(float(times_ms.sum()), 1e-6)
    return Look(
        worker_kind=type(kind).__name__,
        workers=workers,
        prefetch=loader.prefetch,
        batches=len(times_ms),
        rows_per_s=stats.rows / batches * batches_per_s,
        bytes_per_s=stats.bytes / batches * batches_per_s,
        masked_share=stats.masked_rows / max(1, stats.rows + stats.masked_rows),
        stages_ms={name: 1e3 * own / batches for name, own in stats.stages_s.items()},
        waiting_ms=waiting,
        arriving_ms=arriving,
        step_ms=None if step is None else in_step,
        cores=cores(),
        busy_cores=None if isinstance(kind, RemoteKind) else busy,
    )


def kind_at_work(loader: DataLoader) -> WorkerKind:
    """The workers of a loader, with the number of threads that was chosen."""
    chosen = loader._employer.chosen
    return loader.workers if chosen is None else Threads(chosen.count)


def _warm_up(loader: DataLoader, laps: Iterator[Any], seconds: float) -> None:
    """Start workers, compile, open files; then use up what was made ahead meanwhile. Where the
    number of threads is chosen, give it the time for that.
    """
    for _ in range(2):
        next(laps)
    kind, until = kind_at_work(loader), time.perf_counter() + seconds
    ahead = kind.window(99) if isinstance(kind, RemoteKind) else 2 * kind.helpers
    count = sys.maxsize if loader._employer.chosen is not None else loader.prefetch + ahead
    for _ in range(count):
        if time.perf_counter() >= until:
            break
        next(laps)


def laps_of(loader: DataLoader, step: Step | None) -> Iterator[tuple[int, float, float, float]]:
    """Of each lap its number since a start, and seconds: waiting, arriving, in the step."""
    if loader.plan.end == 0:
        raise ValueError("the loader has no batches, so there is nothing to time")
    while True:
        iter(loader)  # which may be after its last batch, and end without another
        for number in itertools.count():
            asked = time.perf_counter()
            try:
                batch = next(loader)
            except StopIteration:
                break
            given = time.perf_counter()
            jax.block_until_ready(batch)
            arrived = time.perf_counter()
            if step is not None:
                jax.block_until_ready(step(batch))
            yield number, given - asked, arrived - given, time.perf_counter() - arrived
