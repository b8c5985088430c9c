"""What a run would read of its storage: from the plan alone, and no record is read.

Up to 10 million records every step is gone through, as the cache's own schedule does it. Beyond,
it is estimated from blocks and samples, with an error.
"""

import dataclasses
from typing import Any

import numpy as np

from loader.command.plan.replayed import EpochReads, Replayed, hosts_to_replay, replayed
from loader.data_loader import DataLoader
from loader.order.block_shuffle import Blocks, BlockShuffle
from loader.order.orders import Order, Sequential, Shuffle
from loader.records.words import bytes_in_words
from loader.runtime.paper.estimate import Estimate, estimate
from loader.runtime.paper.layout import layout_of, refuse_unknown
from loader.runtime.paper.needs import Job
from loader.runtime.paper.replay import Conditions
from loader.sources.reading import blocks, varies_by_epoch
from loader.sources.storage.cache.disk_cache import DiskCache

_EXACT = 10**7  # records
_TWO_EPOCHS = 10**6  # records of which a second epoch is gone through too
_COMPARED = 10**6  # records of which another order is gone through, on one host
_FIRST_RECORDS = 2**17  # that are gone through of a run that is estimated
_KEEPS_UP = 0.03  # of the time


@dataclasses.dataclass(frozen=True)
class OtherOrder:
    """What another order would read in the first epoch: so many times as much, or why it cannot."""

    order: str
    num_bytes: float | None
    times: float | None
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Planned:
    """A run on paper: what a host reads by epoch, and the steps that were gone through."""

    job: Job
    conditions: Conditions
    most_bytes: int | None
    exact: bool
    epochs: tuple[EpochReads, ...]
    steps: Replayed
    others: tuple[OtherOrder, ...]

    @property
    def least_step_s(self) -> float:
        """The time that input takes for a batch of the first epoch, on average."""
        told, reads = self.conditions, self.epochs[0]
        seconds = max(
            reads.num_bytes / told.bytes_per_s, reads.requests * told.latency_s / told.at_once
        )
        return seconds / self.job.plan.steps_per_epoch

    @property
    def keeps_up(self) -> bool | None:
        """Whether input keeps up with the step; None if it was not said how long that takes."""
        if not self.conditions.step_s:
            return None
        if self.exact:
            return self.steps.waiting_share < _KEEPS_UP
        return self.least_step_s <= self.conditions.step_s

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON data."""
        job, (step, waited_s) = self.job, self.steps.slowest
        return {
            "order": repr(job.order),
            "records": job.plan.num_records,
            "batch_size": job.plan.batch_size,
            "steps_per_epoch": job.plan.steps_per_epoch,
            "data_bytes": job.layout.num_bytes,
            "pieces": len(job.layout.sizes),
            "sizes_are_known": job.layout.sizes_are_known,
            "hosts": job.hosts,
            "hosts_gone_through": len(self.steps.hosts),
            "cache_bytes": self.most_bytes,
            "exact": self.exact,
            "epochs": [_epoch_to_json(reads, job.hosts) for reads in self.epochs],
            "cold_start_s": self.steps.cold_start_s,
            "slowest_step": {"step": step, "waits_s": waited_s},
            "waiting_share": self.steps.waiting_share,
            "least_step_s": self.least_step_s,
            "keeps_up": self.keeps_up,
            "other_orders": [dataclasses.asdict(other) for other in self.others],
        }


def plan(loader: DataLoader, hosts: int, cache: str | None, speeds: dict[str, Any]) -> Planned:
    """What each of so many hosts reads, with a cache of this size, or that of the source.

    `speeds` are fields of `Conditions`.
    """
    source, steps = loader.pipeline.source, loader.plan.fresh()
    layout = refuse_unknown(source, layout_of(source))
    most_bytes, conditions = layout.cache_bytes, Conditions(**speeds)
    if cache is not None:
        most_bytes = DiskCache(".", cache if not cache.isdigit() else int(cache)).size
    job = Job(loader.pipeline.order, steps, layout, hosts, varies_by_epoch(source))
    exact = steps.num_records <= _EXACT
    epochs = 2 if steps.num_records <= _TWO_EPOCHS else 1
    count = epochs * steps.steps_per_epoch
    if not exact:
        count = -(-_FIRST_RECORDS * hosts // steps.batch_size)
    whole = range(count if steps.end is None else min(count, steps.end))
    chosen = hosts_to_replay(job, whole) if exact else [0]
    through = replayed(job, whole, chosen, conditions, most_bytes)
    if exact:
        reads = tuple(through.epoch(number) for number in through.numbers)
    else:
        reads = (_estimated(job, most_bytes),)
    others = [_compared(other, job, most_bytes, reads[0]) for other in _other_orders(job, source)]
    return Planned(job, conditions, most_bytes, exact, reads, through, tuple(others))


def _epoch_to_json(reads: EpochReads, hosts: int) -> dict[str, Any]:
    """What a host reads in an epoch, and what all of them do."""
    return {
        "epoch": reads.epoch,
        "pieces_needed": reads.needed,
        "pieces_fetched": reads.fetched,
        "hits": reads.hits,
        "requests": reads.requests,
        "bytes": reads.num_bytes,
        "error": reads.error,
        "requests_of_all_hosts": reads.requests * hosts,
        "bytes_of_all_hosts": reads.num_bytes * hosts,
    }


def _estimated(job: Job, most_bytes: int | None) -> EpochReads:
    found: Estimate | None = estimate(job, most_bytes)
    assert found is not None, "what is not known was refused when steps were gone through"
    error = max(each.error / max(each.value, 1e-9) for each in (found.fetched, found.num_bytes))
    amounts = (found.needed, found.fetched, found.requests, found.num_bytes)
    return EpochReads(0, *(amount.value for amount in amounts), error=error)


def _other_orders(job: Job, source: Any) -> list[Order]:
    """An order of every other kind."""
    seed = getattr(job.order, "seed", 0)
    others: list[Order] = [Sequential(), Shuffle(seed)]
    starts = blocks(source)
    if starts is not None:
        others.append(BlockShuffle(seed).over(Blocks(starts, len(source))))
    return [other for other in others if type(other) is not type(job.order)]


def _compared(order: Order, job: Job, most_bytes: int | None, own: EpochReads) -> OtherOrder:
    """What another order would read, as far as one host shows it."""
    job = dataclasses.replace(job, order=order)
    try:
        if job.plan.num_records <= _COMPARED:
            steps = range(job.plan.steps_per_epoch)
            reads = replayed(job, steps, [0], Conditions(), most_bytes).epoch(0)
        else:
            reads = _estimated(job, most_bytes)
    except ValueError as error:
        return OtherOrder(repr(order), None, None, str(error).partition(":")[0])
    times = reads.num_bytes / own.num_bytes if own.num_bytes else None
    return OtherOrder(repr(order), reads.num_bytes, times)


def other_in_words(other: OtherOrder) -> str:
    """What another order would read, on a line."""
    if other.num_bytes is None:
        return f"{other.order} cannot be read so: {other.problem}"
    read = f"{bytes_in_words(other.num_bytes)} a host and epoch"
    if other.times is None:
        return f"{other.order} would read {read}"
    if np.isclose(other.times, 1, rtol=0.02):
        return f"{other.order} would read as much"
    number = f"{other.times:,.0f}" if other.times >= 10 else f"{other.times:.2g}"
    return f"{other.order} would read {number} times the bytes, {read}"
