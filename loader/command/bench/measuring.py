"""A loader in a loop like that of training, and how long each part of the loop took.

A *lap* asks for a batch, waits until it is on its device, takes a step, and waits for what the step
gives. The first laps of all, and the first after each start of the loader, are not counted.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from loader.data_loader import DataLoader
from loader.records.words import cores
from loader.sources.reading import read_rows
from loader.transforms.bound_transform import apply_transforms

Step = Callable[[dict[str, Any]], Any]
HOST_STAGES = ("read", "operators", "batch")  # those that helper threads share among them
HIDDEN = 0.1  # a loop that waits for a smaller part of the time is not held up by its input


@dataclasses.dataclass(frozen=True)
class Knobs:
    """What can be turned without changing a batch. `threads`: 0 and 1 are the same."""

    threads: int
    prefetch: int

    @property
    def helpers(self) -> int:
        return max(1, self.threads) if self.prefetch else 0


@dataclasses.dataclass(frozen=True)
class Look:
    """What was seen of some stretch of time. Times are milliseconds per batch."""

    knobs: Knobs
    batches: int
    rows_per_s: float
    rows_per_batch: float
    bytes_per_batch: float
    masked_share: float
    queue_depth: float
    stages_ms: Mapping[str, float]  # added over threads
    waiting_ms: float  # of the loop, for its next batch; dispatch is part of it
    arriving_ms: float  # after that, until the batch is on its device
    step_ms: float | None  # None: there is no step
    cores: int
    busy_cores: float  # of this process: processor time by time passed

    @property
    def lap_ms(self) -> float:
        return max(1e-6, self.waiting_ms + self.arriving_ms + (self.step_ms or 0.0))

    @property
    def waiting_share(self) -> float:
        """The part of the time in which the loop has no batch that it could use."""
        return (self.waiting_ms + self.arriving_ms) / self.lap_ms

    @property
    def loop_ms(self) -> float:
        """What the loop does with a batch itself, besides making it."""
        return self.stages_ms["dispatch"] + self.arriving_ms + (self.step_ms or 0.0)

    def making_ms(self, helpers: int | None = None) -> float:
        """What a batch takes to make with so many helpers, if none gets in another's way."""
        helpers = self.knobs.helpers if helpers is None else helpers
        host, place = sum(self.stages_ms[stage] for stage in HOST_STAGES), self.stages_ms["place"]
        return max(host / helpers, place) if helpers > 1 else host + place


class Loop:
    """A loader in a loop that can be left, and gone on with."""

    def __init__(self, loader: DataLoader, knobs: Knobs, step: Step | None) -> None:
        self.loader, self.knobs, self.step = loader, knobs, step
        self._warm = False
        # Helpers begin together: the first batch of each is waited for, or comes with the first.
        self._starting = max(1, knobs.helpers)

    def run(self, seconds: float, cores_: int = 0) -> Look:
        """Go on for so long. The first time, warm up before."""
        laps, until = self._laps(), time.perf_counter() + seconds / 2
        if not self._warm:  # compile, open files, and use up what was made ahead meanwhile
            for lap in range(2 + self.knobs.prefetch + 2 * self.knobs.helpers):
                if lap < 2 or time.perf_counter() < until:
                    next(laps)
        self._warm, stats = True, self.loader.stats()
        began, processor = time.perf_counter(), time.process_time()
        taken = [next(laps) for _ in range(self._starting + 1)]
        while time.perf_counter() < began + seconds:
            taken.append(next(laps))
        busy = (time.process_time() - processor) / (time.perf_counter() - began)
        stats = self.loader.stats() - stats
        self.loader.close()
        # A run may be so short that it has no other laps than the first.
        counted = [lap for number, *lap in taken if number >= self._starting]
        times = 1e3 * np.array(counted or [lap for _, *lap in taken])
        batches, (waiting, arriving, step) = max(1, stats.batches), times.mean(axis=0).tolist()
        return Look(
            knobs=self.knobs,
            batches=len(times),
            rows_per_s=1e3 * stats.rows / batches * len(times) / max(float(times.sum()), 1e-6),
            rows_per_batch=stats.rows / batches,
            bytes_per_batch=stats.bytes / batches,
            masked_share=stats.masked_rows / max(1, stats.rows + stats.masked_rows),
            queue_depth=stats.queue_depth,
            stages_ms={name: 1e3 * own / batches for name, own in stats.stages_s.items()},
            waiting_ms=waiting,
            arriving_ms=arriving,
            step_ms=None if self.step is None else step,
            cores=cores_ or cores(),
            busy_cores=busy,
        )

    def _laps(self) -> Iterator[tuple[int, float, float, float]]:
        """Of each lap its number since a start, and seconds: waiting, arriving, in the step."""
        if self.loader.plan.end == 0:
            raise ValueError("the loader has no batches, so there is nothing to time")
        while True:
            iter(self.loader)  # which may be after its last batch, and end without another
            for number in itertools.count():
                times = [time.perf_counter()]
                try:
                    batch = next(self.loader)
                except StopIteration:
                    break
                times.append(time.perf_counter())
                jax.block_until_ready(batch)
                times.append(time.perf_counter())
                jax.block_until_ready(None if self.step is None else self.step(batch))
                times.append(time.perf_counter())
                waiting, arriving, step = np.diff(times).tolist()
                yield number, waiting, arriving, step


def operators_ms(loader: DataLoader) -> dict[str, float]:
    """Milliseconds of each host operator for a batch, on its own; the loader does not move."""
    pipeline = loader.pipeline
    labels = [operator.label for operator in loader.operators if operator.on == "host"]
    shortest = [float("inf")] * len(labels)
    for step in range(min(3, loader.plan.end or 3)):
        positions = np.arange(*loader.plan.span(step))
        records = pipeline.order.records(positions, loader.plan.num_records)
        rows, there = read_rows(pipeline.source, records, ragged=True)
        positions = positions if there is None else positions[there]
        for place, stage in enumerate(pipeline.transforms):
            began = time.perf_counter()
            if positions.size:  # else a filter has let nothing pass
                rows, kept = apply_transforms([stage], rows, positions)
                positions = positions if kept is None else positions[kept]
            shortest[place] = min(shortest[place], 1e3 * (time.perf_counter() - began))
    pairs = list(zip(labels, shortest, strict=True))  # two may have the same label
    return {label: sum(ms for other, ms in pairs if other == label) for label in labels}
