"""What a benchmark consists of: contestants, what they must deliver, and what was measured.

A *contestant* makes an endless iterator of batches, dicts with a leaf `label` that numbers the
records. A *contest* is some of them on the same data, the *limit* (bare numpy, the bare reader)
first; a *turn* is one contestant delivering a number of batches while all others stand still.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

Batches = Iterator[dict[str, Any]]


class Refused(Exception):
    """A contestant does not deliver what the others do, so its speed says nothing."""


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A name, and a function that makes the batches; called in a process of its own.

    `family` is what "at its best" picks from. Batches are on `devices` devices, 0 for the host.
    `ahead` is how many batches it may have made when it is asked for one. One with `labels_only`
    is no rival: it shows what the machine can do.
    """

    name: str
    make: Callable[[], Batches]
    family: str
    package: str | None = None  # to be imported; a contestant without it is left out
    devices: int = 0
    ahead: int = 0
    labels_only: bool = False


@dataclasses.dataclass(frozen=True)
class Promise:
    """What every contestant must deliver: the records of an epoch, each once.

    Of more than `looked_at` records only so many are looked at: no two of them may be the same.
    With `rows`, a function from labels to leaves, all bytes are compared.
    """

    num_records: int
    shapes: Mapping[str, tuple[tuple[int, ...], str]]  # of a record: leaf to shape and dtype
    rows: Callable[[np.ndarray], Mapping[str, np.ndarray]] | None = None
    looked_at: int = 2_000_000

    def check(self, batches: Batches) -> None:
        """Raise `Refused` if the first epoch is anything else."""
        wanted = min(self.num_records, self.looked_at)
        seen: list[np.ndarray] = []
        count, number = 0, 0
        while count < wanted:
            labels = self._labels(next(batches), number)
            seen.append(labels)
            count, number = count + len(labels), number + 1
        self._refuse_lost_records(np.concatenate(seen)[:wanted])

    def of_labels(self) -> "Promise":
        """The same of the labels alone."""
        return dataclasses.replace(self, shapes={"label": self.shapes["label"]}, rows=None)

    def _labels(self, batch: dict[str, Any], number: int) -> np.ndarray:
        leaves = {name: np.asarray(leaf) for name, leaf in batch.items()}
        for name, (shape, dtype) in self.shapes.items():
            leaf = leaves.get(name)
            if leaf is None or leaf.shape[1:] != shape or leaf.dtype != dtype:
                came = "nothing" if leaf is None else f"{leaf.dtype}{leaf.shape[1:]}"
                raise Refused(f"leaf {name!r} of batch {number} is {came}, not {dtype}{shape}")
        labels = leaves["label"]
        valid = leaves.get("valid_mask", np.ones(len(labels), bool))
        if self.rows is not None:
            for name, expected in self.rows(labels[valid]).items():
                if not np.array_equal(leaves[name][valid], expected):
                    raise Refused(f"leaf {name!r} of batch {number} is not that of its records")
        return labels[valid].copy()

    def _refuse_lost_records(self, labels: np.ndarray) -> None:
        distinct = np.unique(labels)
        inside = distinct[(distinct >= 0) & (distinct < self.num_records)]
        if len(inside) < len(labels):
            raise Refused(
                f"{len(labels) - len(inside)} of the {len(labels):,} records of an epoch were lost "
                "and others came instead"
            )


@dataclasses.dataclass(frozen=True)
class Turn:
    """One contestant for a while: what it delivered, and what that took of the machine."""

    batches: int
    rows: int
    wall_s: float
    cpu_s: float  # of the process and all that it has started


@dataclasses.dataclass(frozen=True)
class Measured:
    """The turns of one contestant, in the order of the rounds."""

    contestant: Contestant
    turns: tuple[Turn, ...]
    peak_bytes: int  # more than the process had when it was forked

    @property
    def us_per_batch(self) -> float:
        return statistics.median(self._us_per_batch)

    @property
    def spread_us(self) -> float:
        return half_spread(self._us_per_batch)

    @property
    def rows_per_s(self) -> float:
        return statistics.median(turn.rows / turn.wall_s for turn in self.turns)

    @property
    def cpu_s_per_1000(self) -> float:
        rows = sum(turn.rows for turn in self.turns)
        return 1000 * sum(turn.cpu_s for turn in self.turns) / rows

    @property
    def _us_per_batch(self) -> list[float]:
        return [1e6 * turn.wall_s / turn.batches for turn in self.turns]

    def speed_over(self, other: "Measured") -> tuple[float, float]:
        """How many times the other's rows per second, and the spread of that.

        Turn by turn within a round, so that what slowed the machine for a while slowed both.
        """
        pairs = zip(self.turns, other.turns, strict=True)
        ratios = [(a.rows / a.wall_s) / (b.rows / b.wall_s) for a, b in pairs]
        return statistics.median(ratios), half_spread(ratios)


def half_spread(values: list[float]) -> float:
    """Half of the range of the middle half."""
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return (third - first) / 2


@dataclasses.dataclass(frozen=True)
class Contest:
    """Contestants on one workload; the limit comes first."""

    title: str
    contestants: tuple[Contestant, ...]
    promise: Promise
    whole_epochs: bool = False  # turns are epochs: batches of one differ in what they cost
    warm_up: int = 0  # batches in one go before the turns: loaders choose their threads by them


@dataclasses.dataclass(frozen=True)
class Facts:
    """Figures that are no contest: each with its unit in its name."""

    title: str
    values: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Result:
    """What came out of a contest, and who took no part in it and why."""

    title: str
    measured: Mapping[str, Measured]
    absent: Mapping[str, str]
    refused: Mapping[str, str]
    counts: bool  # neither the limit nor this loader was refused

    @property
    def limit(self) -> Measured:
        return next(iter(self.measured.values()))

    def best_of(self, family: str) -> Measured | None:
        """The fastest contestant of a family that took part."""
        members = [m for m in self.measured.values() if m.contestant.family == family]
        return max(members, key=lambda m: m.rows_per_s, default=None)
