"""Batches of a loader on their devices, one after the other, in a thread or without one."""

import dataclasses
import time
from typing import Any

import numpy as np

from loader.records.jax_settings import thread_settings
from loader.records.spec import VALID_MASK
from loader.runtime.host_pipeline import HostPipeline
from loader.runtime.prefetch import Ahead
from loader.runtime.stats import Recorder, traced
from loader.runtime.workers.threads import HostStream
from loader.sharding.device_operators import OperatedPlacement
from loader.sharding.placement import Placement


class PlacedStream:
    """Placed batches one after the other, each with its step and its numbers of rows."""

    def __init__(
        self,
        stream: HostStream,
        placement: Placement | OperatedPlacement,
        work: HostPipeline,
        prefetch: int,
    ) -> None:
        self.placement = placement
        self.settings = thread_settings()
        self._make = _PlaceNext(stream, placement, work)
        self._stream = stream
        self._recorder = work.recorder
        self._ahead = None
        if prefetch:
            self._ahead = Ahead(
                self._make,
                stream.close,
                prefetch,
                "gristmill-prefetch",
                thread_safe=stream.thread_safe,
            )

    def __next__(self) -> tuple[int, Any, int, int]:
        made = self._make() if self._ahead is None else self._ahead.take()
        step, placed, applied, masked = made
        return step, finish_batch(placed, self.placement, self._recorder), applied, masked

    @property
    def ready(self) -> int:
        """How many batches lie ready now."""
        return 0 if self._ahead is None else self._ahead.ready

    def close(self) -> str | None:
        if self._ahead is not None:
            return self._ahead.close()
        return self._stream.close()


@dataclasses.dataclass(frozen=True)
class _PlaceNext:
    """Makes batches for a thread. It knows nothing of the loader, which may be forgotten."""

    stream: HostStream
    placement: Placement | OperatedPlacement
    work: HostPipeline

    def __call__(self) -> tuple[int, Any, int, int]:
        step, host_batch = next(self.stream)
        counts = rows_applied_and_masked(host_batch, self.work)
        return step, place_batch(host_batch, step, self.placement, self.work), *counts


def place_batch(
    host_batch: Any, step: int, placement: Placement | OperatedPlacement, work: HostPipeline
) -> Any:
    """What of this batch goes onto the devices, there."""

    def record_of(row: int) -> str | None:
        start, stop = work.plan.span(step)
        return work.record_at(start + row) if row < stop - start else None

    began = time.perf_counter_ns()
    with traced("place"):
        if isinstance(placement, OperatedPlacement):
            host_batch = placement.with_draws(host_batch, work.plan.span(step)[0])
        placed = placement.place(host_batch, record_of)
    work.recorder.add(("place", time.perf_counter_ns() - began))
    return placed


def finish_batch(placed: Any, placement: Placement | OperatedPlacement, recorder: Recorder) -> Any:
    """The batch as the loop sees it. Device operators are dispatched here, by the consumer."""
    if not isinstance(placement, OperatedPlacement):
        return placed
    began = time.perf_counter_ns()
    with traced("dispatch"):
        batch = placement.finish(placed)
    recorder.add(("dispatch", time.perf_counter_ns() - began))
    return batch


def rows_applied_and_masked(batch: Any, work: HostPipeline) -> tuple[int, int]:
    mask = batch.get(VALID_MASK) if isinstance(batch, dict) else None
    if mask is None:
        return work.plan.batch_size, 0
    applied = int(np.count_nonzero(mask))
    return applied, mask.size - applied
