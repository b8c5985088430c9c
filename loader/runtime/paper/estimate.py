"""What a host reads in an epoch of data that is too large to go through: from blocks and samples.

An order has *phases* in which any piece may be needed at any time: the windows of a `BlockShuffle`,
the whole epoch of a `Shuffle`. In each phase a host reads every piece of it that it needs at all,
once, and those again that were let go in between. How often that is, the schedule itself says, in
a phase of as many pieces, or a smaller one in the same proportions. Of other orders some stretches
are gone through as they are.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from loader.order.block_shuffle import BlockShuffle
from loader.order.orders import Shuffle
from loader.records.integers import Int64s
from loader.runtime.paper.layout import AskedLayout
from loader.runtime.paper.needs import Job, needs_of, requests_of
from loader.runtime.paper.replay import walk
from loader.sources.storage.stored_files import PIECE_BYTES

_PHASES, _STEPS, _STRETCHES = 48, 32, 8  # that are looked at
_POSITIONS = 2**14  # of a phase, to see which blocks it has
_SHARED = 1.2  # a piece is needed in so many phases
_MODEL_ERROR = 0.25
_PIECES, _PAIRS = 1000, 12_000  # of the model of a phase, and of a stretch


@dataclasses.dataclass(frozen=True)
class Amount:
    """A mean, and by how much it may be off: twice its standard error."""

    value: float
    error: float = 0.0

    @staticmethod
    def of(samples: Sequence[float] | np.ndarray, *, all_of_them: bool = False) -> "Amount":
        values = np.asarray(samples, float)
        spread = 0.0 if all_of_them or len(values) < 2 else values.std(ddof=1)
        return Amount(float(values.mean()), 2 * float(spread) / math.sqrt(len(values)))

    def times(self, other: "Amount | float") -> "Amount":
        other = other if isinstance(other, Amount) else Amount(other)
        value = self.value * other.value
        return Amount(value, abs(self.error * other.value) + abs(other.error * self.value))

    def plus(self, other: "Amount") -> "Amount":
        return Amount(self.value + other.value, math.hypot(self.error, other.error))


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Of one host and one epoch: pieces that its steps need, and what it reads."""

    needed: Amount
    fetched: Amount
    requests: Amount
    num_bytes: Amount


def estimate(job: Job, most_bytes: int | None, seed: int = 0) -> Estimate | None:
    """What a host reads in an epoch, with a cache of so many bytes, or none.

    `ValueError` if a step does not fit; None where it is not known what is read without a cache.
    """
    chosen = np.random.default_rng(seed)
    steps = np.unique(chosen.integers(0, job.plan.steps_per_epoch, _STEPS)).tolist()
    host = [int(chosen.integers(job.hosts))]
    if most_bytes is None:
        return _without_cache(job, steps, host)
    needed = [needs_of(job, range(step, step + 1), host)[0] for step in steps]
    for each in needed:  # refuses what does not fit
        next(walk(each, each.steps, job.layout.sizes, most_bytes))
    pairs = Amount.of([len(each.pieces) for each in needed])
    if isinstance(job.order, BlockShuffle | Shuffle):
        fetched, num_bytes = _in_phases(job, most_bytes, pairs, chosen)
    else:
        fetched, num_bytes = _in_stretches(job, most_bytes, pairs, host, chosen)
    piece = num_bytes.value / max(fetched.value, 1e-9)
    all_pairs = pairs.times(job.plan.steps_per_epoch)
    return Estimate(
        all_pairs, fetched, fetched.times(max(1, math.ceil(piece / PIECE_BYTES))), num_bytes
    )


def _without_cache(job: Job, steps: list[int], host: list[int]) -> Estimate | None:
    found = [requests_of(job, range(step, step + 1), host) for step in steps]
    if any(each is None for each in found):
        return None
    each = [one[0] for one in found if one is not None]
    count = job.plan.steps_per_epoch
    calls = Amount.of([int(calls.sum()) for calls, _ in each]).times(count)
    sizes = Amount.of([int(sizes.sum()) for _, sizes in each]).times(count)
    return Estimate(calls, calls, calls, sizes)


def _in_phases(
    job: Job, most_bytes: int, pairs: Amount, chosen: np.random.Generator
) -> tuple[Amount, Amount]:
    length = job.plan.num_records
    starts, all_of_them = [0], True
    if isinstance(job.order, BlockShuffle):
        starts, all_of_them = _phases(job.order, length, chosen)
    phases = [_Phase.of(job, start) for start in starts]
    records = Amount.of([phase.records for phase in phases], all_of_them=all_of_them)
    count = length / records.value
    distinct = Amount.of([phase.distinct for phase in phases], all_of_them=all_of_them)
    sizes = Amount.of([phase.read_bytes for phase in phases], all_of_them=all_of_them)
    whole = float(np.mean([phase.num_bytes for phase in phases]))
    again, layout = Amount(0.0), job.layout
    if most_bytes >= whole and distinct.value * count > _SHARED * len(layout.sizes):
        # Phases share pieces: some that a phase needs are there from the phases before.
        kept = min(1.0, most_bytes / max(1, layout.num_bytes))
        rate = _read_again(len(layout.sizes), distinct.value, kept, chosen)
        once = min(1.0, len(layout.sizes) / (distinct.value * count))  # each, at least
        part = rate.times(1 - once).plus(Amount(once))
        distinct, sizes = distinct.times(part), sizes.times(part)
    if most_bytes < whole:
        pieces = float(np.mean([phase.pieces for phase in phases]))
        rate = _read_again(round(pieces), pairs.value, most_bytes / whole, chosen)
        in_phase = pairs.times(job.plan.steps_per_epoch / count)
        again = rate.times(in_phase.plus(Amount(-distinct.value)))
        again = Amount(max(0.0, again.value), again.error)
    size = sizes.value / max(distinct.value, 1e-9)
    return distinct.plus(again).times(count), sizes.plus(again.times(size)).times(count)


def _phases(
    order: BlockShuffle, length: int, chosen: np.random.Generator
) -> tuple[list[int], bool]:
    """Where some windows of an epoch begin, and whether these are all of them."""
    starts, start = [], 0
    while start < length and len(starts) <= _PHASES:
        starts.append(start)
        start = order.window_at(start, length)[1]
    if start >= length:
        return starts, True
    return [order.window_at(int(p), length)[0] for p in chosen.integers(0, length, _PHASES)], False


@dataclasses.dataclass(frozen=True)
class _Phase:
    """The pieces of a phase; of these a host needs `distinct`, and so many bytes."""

    records: int
    pieces: int
    num_bytes: int
    distinct: float
    read_bytes: float

    @staticmethod
    def of(job: Job, start: int) -> "_Phase":
        records, pieces = _pieces_of_phase(job, start)
        sizes = job.layout.sizes[pieces]
        # Of each piece, so many of the records of the phase; each is read by one of the hosts.
        shares = records * (sizes / max(1, int(sizes.sum())))
        needed = (
            -np.expm1(shares * np.log1p(-1 / job.hosts)) if job.hosts > 1 else np.ones(len(sizes))
        )
        return _Phase(
            records, len(pieces), int(sizes.sum()), float(needed.sum()), float(needed @ sizes)
        )


def _pieces_of_phase(job: Job, start: int) -> tuple[int, Int64s]:
    """How many records the phase that begins there has, and in which pieces they are."""
    order, length = job.order, job.plan.num_records
    if not isinstance(order, BlockShuffle):
        return length, np.arange(len(job.layout.sizes))
    first, last = order.window_at(start, length)
    positions = np.unique(
        np.linspace(first, last - 1, min(last - first, _POSITIONS)).astype(np.int64)
    )
    records = order.records(positions, length)
    if isinstance(job.layout, AskedLayout):
        return last - first, job.layout.pieces(np.sort(records), np.zeros_like(records))[1]
    if order.block_size is not None:
        begins = np.unique(records // order.block_size) * order.block_size
        ends = np.minimum(begins + order.block_size, length)
    else:
        assert order.blocks is not None
        own = np.unique(np.searchsorted(order.blocks.starts, records, side="right") - 1)
        begins, ends = order.blocks.starts[own], (order.blocks.starts + order.blocks.sizes)[own]
    return last - first, job.layout.between(begins, ends - 1)


def _read_again(pieces: int, pairs: float, kept: float, chosen: np.random.Generator) -> Amount:
    """Of the pieces that steps need, each one of `pieces`, the part that was let go before.

    The cache holds the part `kept` of them.
    """
    scale = min(1.0, _PIECES / pieces)
    count = max(2, round(pieces * scale))
    each = min(count, max(1, round(pairs * scale)))
    steps = max(40, _PAIRS // each)
    needs = [chosen.choice(count, each, replace=False).tolist() for _ in range(steps)]
    room = max(each, round(kept * count))
    fetched = np.zeros(steps)
    for fetches in walk(needs.__getitem__, range(steps), np.ones(count, np.int64), room):
        for step, _ in fetches:
            fetched[step] += 1
    settled = np.array_split(fetched[steps // 3 :] / each, _STRETCHES)
    found = Amount.of([part.mean() for part in settled])
    # A phase is not quite like its model: it has an end, and pieces of several sizes.
    return Amount(found.value, found.error + _MODEL_ERROR * found.value)


def _in_stretches(
    job: Job, most_bytes: int, pairs: Amount, host: list[int], chosen: np.random.Generator
) -> tuple[Amount, Amount]:
    """From some stretches of the epoch, each gone through with a cache that is empty at first."""
    total = job.plan.steps_per_epoch
    count = max(1, min(total, int(_PAIRS / _STRETCHES / max(1.0, pairs.value))))
    sizes, samples = job.layout.sizes, []
    for first in chosen.integers(0, total - count + 1, _STRETCHES).tolist():
        steps = range(first, first + count)
        (needs,) = needs_of(job, steps, host)
        # In the middle of a run, what the first step needs is there already.
        counted = steps if count == total else steps[1:] or steps
        pieces = [
            piece
            for fetches in walk(needs, steps, sizes, most_bytes)
            for step, piece in fetches
            if step in counted
        ]
        samples.append((len(pieces) / len(counted), int(sizes[pieces].sum()) / len(counted)))
    fetched, num_bytes = zip(*samples, strict=True)
    return Amount.of(fetched).times(total), Amount.of(num_bytes).times(total)
