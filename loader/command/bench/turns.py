"""The turns that can be tried at once, because they change no batch: `threads` and `prefetch`."""

import dataclasses
import math
from collections.abc import Mapping

from loader.command.bench.bottleneck import HIDDEN, HOST_STAGES, Look, size
from loader.command.bench.measuring import Knobs
from loader.data_loader import DataLoader

GAIN = 1.1  # what a turn must bring, at least, to be worth it
_DEEPEST = 32  # batches ahead: each of them is memory of the devices
_FREE_CORES = 0.5


@dataclasses.dataclass(frozen=True)
class Case:
    """What the rules look at."""

    look: Look
    loader: DataLoader
    bottleneck: str
    operators_ms: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def slow_operator(self) -> str | None:
        return max(self.operators_ms, key=self.operators_ms.__getitem__, default=None)


@dataclasses.dataclass(frozen=True)
class Proposal:
    """What could be turned, and why that should help; with `knobs`, to be tried."""

    words: str
    knobs: Knobs | None = None


def line(old: Knobs, new: Knobs) -> str:
    """The turn from one to the other as a line for [loader] of a config."""
    if old.threads != new.threads:
        return f"threads = {new.threads}"
    return f"prefetch = {new.prefetch}"


def overlap(case: Case) -> Proposal | None:
    look = case.look
    overlap = min(look.lap_ms - look.loop_ms, look.loop_ms) / look.lap_ms
    if look.knobs.prefetch or overlap < HIDDEN:
        return None
    return Proposal(
        "without prefetch the loop makes each batch itself, and nothing overlaps",
        dataclasses.replace(look.knobs, prefetch=2),
    )


def bridge(case: Case) -> Proposal | None:
    look = case.look
    if not look.in_bursts:
        return None
    more = math.ceil(look.longest_waiting_ms / max(look.loop_ms, 1e-3))
    depth = min(_DEEPEST, look.knobs.prefetch + more)
    if depth <= look.knobs.prefetch:
        return None
    more_bytes = (depth - look.knobs.prefetch) * look.bytes_per_batch
    return Proposal(
        f"more batches ahead bridge the slow ones, for {size(more_bytes)} more on the devices",
        dataclasses.replace(look.knobs, prefetch=depth),
    )


def share_among_threads(case: Case) -> Proposal | None:
    look = case.look
    threads = max(2, 2 * look.knobs.threads)
    if case.bottleneck not in (*HOST_STAGES, "place") or look.cores - look.busy_cores < _FREE_CORES:
        return None
    if look.lap_ms < GAIN * max(look.making_ms(threads), look.loop_ms):
        return None
    return Proposal(
        f"{look.busy_cores:.1f} of {look.cores} cores are busy, so batches can be made side by "
        "side",
        dataclasses.replace(look.knobs, threads=threads),
    )
