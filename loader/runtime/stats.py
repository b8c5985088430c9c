"""What happened: rows, bytes, waiting, and where the time went.

A `Recorder` is always on: a few readings of a clock for each batch. `loader.stats()` is what it has
recorded so far; the difference of two such `Stats` is what happened in between.

Stages of host work may run in several threads at once, so their times may add up to more than the
time that has passed. In a trace of `jax.profiler` they show up as `gristmill/read` and so on.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from loader.runtime.bad_records import BadRecords, Mask
from loader.runtime.filter_note import FilterNote
from loader.runtime.host_pipeline import Made
from loader.runtime.workers.auto import HelperCount
from loader.sources.storage import requests
from loader.sources.storage.cache.progress import cache_counts

#: read: from the source; mapped: operators of `Mapped` sources; operators: on the host; batch:
#: stack, pad, mask; place: onto devices; dispatch: of device operators, by the consumer.
STAGES: tuple[str, ...] = ("read", "mapped", "operators", "batch", "place", "dispatch")


@dataclasses.dataclass(frozen=True)
class Stats:
    """Sums over the batches delivered so far; `stages_s` is where their time went."""

    batches: int = 0
    rows: int = 0  # that are not padding
    masked_rows: int = 0
    bytes: int = 0  # of host batches of this process
    elapsed_s: float = 0.0  # while iterating, the loop's own steps included
    waiting_s: float = 0.0  # of the loop, for its next batch, or while it makes that itself
    queue_depth_sum: int = 0  # batches that lay ready when one was asked for
    stages_s: Mapping[str, float] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(STAGES, 0.0)
    )
    workers: Mapping[str, int] = dataclasses.field(default_factory=dict)  # batches by each
    asked_again: Mapping[str, int] = dataclasses.field(default_factory=dict)  # steps, by reason
    bad_records: int = 0  # different ones, whose rows are masked
    threads: str = ""  # how many `workers="auto"` has chosen, and why
    # What this process has asked of stores, and done for caches; 0 for what it has not.
    storage: Counter[str] = dataclasses.field(default_factory=Counter)

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def waiting_share(self) -> float:
        """The part of the time that the loop spent waiting for input."""
        return self.waiting_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def queue_depth(self) -> float:
        """How many batches lay ready, on the average, when one was asked for."""
        return self.queue_depth_sum / self.batches if self.batches else 0.0

    def __sub__(self, earlier: "Stats") -> "Stats":
        """What has happened since an earlier moment."""
        names = [field.name for field in dataclasses.fields(self)]
        return Stats(**{n: _difference(getattr(self, n), getattr(earlier, n)) for n in names})

    def scalars(self) -> dict[str, float]:
        """The figures that a dashboard shows."""
        return {
            "rows_per_s": self.rows_per_s,
            "bytes_per_s": self.bytes_per_s,
            "waiting_share": self.waiting_share,
            "waiting_ms_per_batch": self._ms_per_batch(self.waiting_s),
            "queue_depth": self.queue_depth,
            "masked_rows": float(self.masked_rows),
            "bad_records": float(self.bad_records),
            **{f"{n}_ms_per_batch": self._ms_per_batch(s) for n, s in self.stages_s.items()},
        }

    def log_to(self, writer: Any, step: int, prefix: str = "input/") -> None:
        """Write the figures to a CLU metric writer, or to a TensorBoard summary writer."""
        named = {f"{prefix}{name}": value for name, value in self.scalars().items()}
        if hasattr(writer, "write_scalars"):
            writer.write_scalars(step, named)
        elif hasattr(writer, "add_scalar"):
            for name, value in named.items():
                writer.add_scalar(name, value, step)
        else:
            raise TypeError(
                "a writer needs write_scalars(step, scalars), as CLU's have, or add_scalar(name, "
                f"value, step), as TensorBoard's have: {type(writer).__name__} has neither"
            )

    def _ms_per_batch(self, seconds: float) -> float:
        return 1e3 * seconds / self.batches if self.batches else 0.0

    def __str__(self) -> str:
        stages = ", ".join(f"{n} {self._ms_per_batch(s):.2f}" for n, s in self.stages_s.items())
        return (
            f"{self.batches} batches, {self.rows} rows and {self.masked_rows} masked ones, "
            f"{self.rows_per_s:,.0f} rows/s, {self.bytes_per_s / 1e6:,.1f} MB/s, waiting "
            f"{self.waiting_share:.1%} of the time, {self.queue_depth:.1f} batches ready; "
            f"ms per batch: {stages}{_in_words('batches by', self.workers)}"
            f"{_in_words('asked again', self.asked_again)}"
            f"{f'; {self.bad_records} bad records' if self.bad_records else ''}"
            f"{f'; {self.threads}' if self.threads else ''}"
            f"{_in_words('storage', self.storage)}"
        )


def _in_words(what: str, counts: Mapping[str, int]) -> str:
    each = ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))
    return f"; {what} {each}" if counts else ""


def _storage() -> Counter[str]:
    return Counter({**requests.counts(), **cache_counts()})


def _difference(later: Any, earlier: Any) -> Any:
    if isinstance(later, str):
        return later
    if isinstance(later, Counter) or not isinstance(later, Mapping):
        return later - earlier
    return {name: value - earlier.get(name, 0) for name, value in later.items()}


class Recorder:
    """Where a running loader notes what happens, in the consumer's thread alone."""

    def __init__(self, on_error: Mask | None = None, note: FilterNote | None = None) -> None:
        self.bad = BadRecords(on_error)
        self.note = FilterNote() if note is None else note
        self._stages_ns: dict[str, int] = dict.fromkeys(STAGES, 0)
        self._sums = [0, 0, 0, 0, 0, 0, 0]  # in the order of the fields of Stats
        self._workers: dict[str, int] = {}
        self.asked_again: dict[str, int] = {}  # a helper thread counts here
        self._storage = _storage()  # what others have asked for before
        self._last_ns: int | None = None  # when the last batch of this iteration was delivered

    def add(self, times_ns: Mapping[str, int]) -> None:
        """Note where the time of a batch went."""
        for stage, ns in times_ns.items():
            self._stages_ns[stage] += ns

    def delivered(
        self, asked_ns: int, made: Made, size: int, ready: int, chosen: HelperCount | None
    ) -> bool:
        """Note a batch of so many bytes that was asked for then and is delivered now.

        Whether there is to be another number of threads from here on.
        """
        self.add(made.times_ns)
        now, last = time.perf_counter_ns(), self._last_ns
        since = asked_ns if last is None else last
        self._last_ns = now
        sums = self._sums
        sums[0] += 1
        sums[1] += made.applied
        sums[2] += made.masked
        sums[3] += size
        sums[4] += now - since
        sums[5] += now - asked_ns
        sums[6] += ready
        if made.by:
            self._workers[made.by] = self._workers.get(made.by, 0) + 1
        self.note.add(made.applied + made.filtered, made.filtered)
        if chosen is None or last is None:  # the first batch of a loop is always waited for
            return False
        return chosen.delivered(now - last, now - asked_ns, time.process_time_ns())

    def paused(self) -> None:
        """Note that iteration has ended or was broken off: what follows is not part of it."""
        self._last_ns = None
        self.note.tell()

    def stats(self, chosen: HelperCount | None) -> Stats:
        """What has been noted so far."""
        batches, rows, masked, size, elapsed, waiting, depth = self._sums
        stages = {name: ns / 1e9 for name, ns in self._stages_ns.items()}
        sums = batches, rows, masked, size, elapsed / 1e9, waiting / 1e9, depth
        by = dict(self._workers), dict(self.asked_again)
        threads = str(chosen) if chosen is not None and batches else ""
        storage = _storage() - self._storage  # without what is 0
        return Stats(*sums, stages, *by, len(self.bad), threads, storage)
