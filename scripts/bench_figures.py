"""The figures that the benchmark must show, and how to read them off the results.

Ratios are rows per second, ours over theirs, in one run. "At its best" is the fastest contestant of
a family that took part; what was not measured is said to be open, never met.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bench_contest import Facts, Result

Outcome = Result | Facts


@dataclasses.dataclass(frozen=True)
class Reached:
    """A figure as it came out."""

    workload: str
    what: str
    bound: str
    value: float | None  # None if it was not measured
    spread: float | None
    met: bool | None
    rival: str = ""  # the fastest of those that it was held against

    @property
    def verdict(self) -> str:
        return "open" if self.met is None else "met" if self.met else "NOT MET"


@dataclasses.dataclass(frozen=True)
class Speed:
    """At least so many times the rows per second of the best of a family."""

    workload: str
    ours: str
    family: str
    against: str
    at_least: float

    def read(self, outcomes: Mapping[str, Outcome]) -> Reached:
        result = outcomes.get(self.workload)
        value = spread = None
        rival = ""
        if isinstance(result, Result):
            ours, theirs = result.measured.get(self.ours), result.best_of(self.family)
            if ours is not None and theirs is not None:
                value, spread = ours.speed_over(theirs)
                rival = "" if self.family == "limit" else theirs.contestant.name
        met = None if value is None else value >= self.at_least
        what, bound = f"over {self.against}", f"≥ {self.at_least}"
        return Reached(self.workload, what, bound, value, spread, met, rival)


@dataclasses.dataclass(frozen=True)
class Fact:
    """A value of some facts, at most so much."""

    workload: str
    name: str
    at_most: float

    def read(self, outcomes: Mapping[str, Outcome]) -> Reached:
        facts = outcomes.get(self.workload)
        value = facts.values.get(self.name) if isinstance(facts, Facts) else None
        met = None if value is None else value <= self.at_most
        return Reached(self.workload, self.name, f"≤ {self.at_most:g}", value, None, met)


@dataclasses.dataclass(frozen=True)
class MicrosecondsPerBatch:
    """The time of a batch of one contestant, at most so much."""

    workload: str
    ours: str
    at_most: float

    def read(self, outcomes: Mapping[str, Outcome]) -> Reached:
        result = outcomes.get(self.workload)
        ours = result.measured.get(self.ours) if isinstance(result, Result) else None
        value, spread = (None, None) if ours is None else (ours.us_per_batch, ours.spread_us)
        met = None if value is None else value <= self.at_most
        what = f"µs per batch, {self.ours}"
        return Reached(self.workload, what, f"≤ {self.at_most:g}", value, spread, met)


@dataclasses.dataclass(frozen=True)
class Growth:
    """What the largest costs more than the smallest: in time per batch, or in memory."""

    workload: str
    small: str
    large: str
    at_most: float
    of_memory: bool = False

    def read(self, outcomes: Mapping[str, Outcome]) -> Reached:
        result = outcomes.get(self.workload)
        value = spread = None
        if isinstance(result, Result) and {self.small, self.large} <= set(result.measured):
            small, large = result.measured[self.small], result.measured[self.large]
            if self.of_memory:
                value = (large.peak_bytes - small.peak_bytes) / 1e6
            else:
                value, spread = small.speed_over(large)
        what = "more memory, MB" if self.of_memory else "times the time per batch"
        met = None if value is None else value <= self.at_most
        named = f"{what}, {self.large} over {self.small}"
        return Reached(self.workload, named, f"≤ {self.at_most:g}", value, spread, met)


_PYTHON = "workers, Python, batch 64"
_MANY = "files, 1000 x 100, batch 256"
_DEVICE = "memory, one device, batch 256"
_OURS = "gristmill, defaults"
_CROPS = "crops, host, batch 32"
_WAIT = "steps, JPEG beside a wait of 10 ms"
_BUSY = "steps, JPEG beside 10 ms of Python"
_CHOSEN = ("JPEG", "token windows", "arrays in memory", "packed text")
_CACHED = "gristmill, from the cache"
_SCALE = ("scale, host, batch 250", "10^4 records", "10^9 records")
FIGURES = (
    Speed("memory, host, batch 1024", "gristmill", "limit", "numpy gather", 0.85),
    Speed("memory, host, batch 256", "gristmill", "limit", "numpy gather", 0.65),
    Speed("memory, host, batch 256", "gristmill", "grain", "Grain at its best", 40),
    Speed(_DEVICE, "gristmill", "tf.data", "tf.data", 3),
    Speed(_DEVICE, "gristmill", "torch", "torch at its best", 2),
    Speed(_DEVICE, "gristmill", "datarax", "datarax", 1.2),
    Speed("memory, mesh of eight, batch 1024", "gristmill", "grain", "Grain on devices", 25),
    Speed("tables, host, batch 4096", "gristmill", "limit", "numpy takes", 1.0),
    Speed("tables, host, batch 4096", "gristmill", "torch", "torch at its best", 1.5),
    Speed("parquet, 128 int32 a row", "gristmill", "limit", "pyarrow, front to back", 0.5),
    Speed("parquet, 128 int32 a row", "gristmill", "full shuffle", "a full shuffle", 50),
    Speed("hugging face, 128 int32 a row", "gristmill", "limit", "the same arrays", 0.5),
    Speed("hugging face, 128 int32 a row", "gristmill", "datasets", "datasets, numpy format", 5),
    Speed("tfrecord, 3 KB examples", "gristmill", "limit", "a sequential read", 0.8),
    Speed("tfrecord, 3 KB examples", "gristmill", "tf.data", "tf.data with a buffer", 2),
    Speed("tar, 3 KB members", "gristmill", "limit", "webdataset's own reader", 1.0),
    Speed("arrayrecord, host, batch 256", "gristmill", "limit", "bare reader, stacked", 0.8),
    Speed("arrayrecord, host, batch 256", "gristmill", "grain", "Grain at its best", 6),
    Speed(_MANY, "gristmill", "limit", "a loop over the readers", 0.9),
    Speed(_MANY, "gristmill", "grain", "Grain at its best", 1.5),
    Speed("files, 50 x 5000, batch 256", "gristmill", "torch", "torch, __getitems__", 1.0),
    Speed("zarr, host, batch 256", "gristmill, BlockShuffle", "limit", "contiguous read", 0.5),
    Speed("zarr, host, batch 256", "gristmill, BlockShuffle", "random", "TensorStore", 8),
    Fact("storage, an epoch", "requests, block over full", 0.005),
    Fact("storage, an epoch", "MB asked for, block over full", 0.004),
    Speed("storage, from a cache, batch 256", _CACHED, "limit", "local files", 0.95),
    Speed("jpeg, host, batch 32", "gristmill, Threads(2)", "limit", "one thread", 1.7),
    Speed("jpeg, host, batch 32", "gristmill, Threads(2)", "grain", "Grain at its best", 1.1),
    Speed(_CROPS, _OURS, "tf.data", "tf.data", 0.9),
    Speed(_CROPS, _OURS, "torch", "torch with two workers", 1.5),
    Speed(_CROPS, _OURS, "grain", "Grain at its best", 1.3),
    Speed(_WAIT, _OURS, "tf.data", "tf.data", 1.0),
    Speed(_WAIT, _OURS, "torch", "torch with two workers", 1.3),
    Speed(_BUSY, "gristmill, Processes(2)", "tf.data", "tf.data", 1.0),
    *(Speed(f"auto, {name}", _OURS, "fixed", "the best fixed choice", 0.85) for name in _CHOSEN),
    Speed("images, 256 x 256 to 224, linear", "gristmill", "limit", "cv2.resize", 0.9),
    Speed("images, 256 x 256 to 224, area", "gristmill", "limit", "cv2.resize", 0.9),
    Speed("images, 1200 x 1600 to 256, linear", "gristmill", "limit", "cv2.resize", 0.9),
    Speed("images, 1200 x 1600 to 256, area", "gristmill", "limit", "cv2.resize", 0.9),
    Speed("operators, ColorJitter", "gristmill", "albumentations", "Albumentations", 0.9),
    Speed("operators, RandomAffine", "gristmill", "albumentations", "Albumentations", 0.9),
    Speed("operators, GaussianBlur", "gristmill", "albumentations", "Albumentations", 0.9),
    Speed(_PYTHON, "gristmill, Processes(2)", "limit", "one thread", 1.6),
    Speed(_PYTHON, "gristmill, Processes(2)", "grain", "Grain with two processes", 1.0),
    Speed(_PYTHON, "gristmill, Processes(2)", "torch", "torch with two workers", 1.0),
    Speed("workers, batches of 1 MiB", "gristmill, Processes(2)", "grain", "Grain's two", 5),
    Speed("workers, batches of 16 MiB", "gristmill, Processes(2)", "grain", "Grain's two", 5),
    Fact("workers, first batch", "over grain", 1.2),
    Fact("workers, beside 5 ms of Python a step", "Processes(1), times the step alone", 1.1),
    Fact("packing", "file, time over memory", 2),
    Fact("packing", "kept, time over memory", 2),
    Fact("overlap", "prefetch=2, wall over the longer", 1.05),
    MicrosecondsPerBatch("overhead, one device, batch 256", "gristmill", 150),
    Fact("resume, Shuffle", "at 1e9 over at 0", 1.2),
    Fact("resume, Sequential", "at 1e9 over at 0", 1.2),
    Fact("resume, Shuffle", "state, bytes", 1024),
    Growth(*_SCALE, at_most=1.2),
    Growth(*_SCALE, at_most=5, of_memory=True),
)


def figures_of(outcomes: Mapping[str, Outcome]) -> list[Reached]:
    """All figures of the workloads that were run."""
    return [figure.read(outcomes) for figure in FIGURES if figure.workload in outcomes]


def as_data(outcome: Outcome) -> dict[str, Any]:
    """An outcome for a JSON file."""
    if isinstance(outcome, Facts):
        return dict(outcome.values)
    rows = {}
    for name, measured in outcome.measured.items():
        ratio, ratio_spread = measured.speed_over(outcome.limit)
        rows[name] = {
            "family": measured.contestant.family,
            "us_per_batch": measured.us_per_batch,
            "spread_us": measured.spread_us,
            "rows_per_s": measured.rows_per_s,
            "ratio_to_limit": ratio,
            "ratio_spread": ratio_spread,
            "cpu_s_per_1000_records": measured.cpu_s_per_1000,
            "peak_mb": measured.peak_bytes / 1e6,
            "turns": len(measured.turns),
        }
    return {"contestants": rows, "absent": {**outcome.absent}, "refused": {**outcome.refused}}
