"""How host work is run. It changes the speed, never the batches."""

import dataclasses
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any, Self

import grain

from loader.records.integers import Int64s
from loader.records.memory import align_rows
from loader.runtime.host_pipeline import HostPipeline
from loader.runtime.prefetch import CLOSE_TIMEOUT_S, still_running
from loader.runtime.read_ahead import ReadAhead, read_ahead


class HostBatches(grain.MapDataset[Any]):
    """Host work as a Grain dataset: element k is the batch of step k, of the rows asked for.

    `aligned` says that they are for CPU devices.
    """

    def __init__(
        self, work: HostPipeline, rows: Int64s | None = None, aligned: bool = False
    ) -> None:
        super().__init__()
        self._work = work
        self._rows = rows
        self._aligned = aligned

    def __len__(self) -> int:
        end = self._work.plan.end
        return sys.maxsize if end is None else end

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        count = len(self)
        if not count:
            raise IndexError("a run of no steps has no batches")
        return self.make(index % count)

    def make(self, step: int, read_ahead: Callable[[int], Any] | None = None) -> Any:
        """The batch of a step of the run."""
        align_rows(self._aligned)
        try:
            return self._work.batch(step, self._rows, read_ahead)
        except StopIteration as error:  # which would look like the end of the run
            raise RuntimeError(f"batch {step}: a source or an operator raised it") from error

    @property
    def thread_safe(self) -> bool:
        """Whether it makes no difference which thread makes a batch."""
        return self._work.thread_safe

    def read_ahead(self) -> ReadAhead | None:
        """What reads rows for `make`, where another thread may and it pays."""
        return read_ahead(self._work, self._rows, self._aligned, len(self))

    def __str__(self) -> str:
        return f"HostBatches({self._work.source!r}, batch_size={self._work.plan.batch_size})"


@dataclasses.dataclass(frozen=True)
class Threads:
    """Batches are made by `count` threads of Grain's; with 0, by the thread that asks for them."""

    count: int = 0

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 0:
            raise ValueError(f"Threads: count must be an int of at least 0, got {self.count!r}")

    def stream(self, batches: HostBatches, step: int, *, ahead: bool) -> "HostStream":
        """The batches from this step on. Whether rows may be read before they are asked for."""
        if self.count:
            return _ThreadedStream(batches, step, self.count)
        return HostStream(batches, step, batches.read_ahead() if ahead else None)


class HostStream:
    """Host batches one after the other, each with its step, made when they are asked for.

    Grain's iterator without threads does the same, and some 10 µs of statistics a batch. A stream
    that has failed is of no use.
    """

    ready = 0  # how many are made; where Grain makes them ahead, it does not say

    def __init__(self, batches: HostBatches, step: int, ahead: ReadAhead | None = None) -> None:
        self._batches = batches
        self._step = step
        self._end = len(batches)
        self._ahead = ahead
        self.thread_safe = batches.thread_safe

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, Any]:
        step = self._step
        if step >= self._end:
            raise StopIteration
        batch = self._batches.make(step, self._ahead and self._ahead.rows_of)
        self._step = step + 1
        return step, batch

    def close(self) -> str | None:
        """End what was started. Says what still runs, if anything."""
        return None if self._ahead is None else self._ahead.close()


class _ThreadedStream(HostStream):
    """Host batches made ahead by threads of Grain's."""

    def __init__(self, batches: HostBatches, step: int, threads: int) -> None:
        super().__init__(batches, step)
        # A batch in the making per thread, and one more each: Grain's default would hold 500.
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
        self._iterator = iter(batches.to_iter_dataset(options))
        self._iterator.set_state({"next_index": step})
        # Grain's threads must not outlive this, nor be alive when the interpreter exits.
        self._finalizer = weakref.finalize(self, self._iterator.close)
        self.thread_safe = False  # it would wait for Grain's threads

    def __next__(self) -> tuple[int, Any]:
        batch = next(self._iterator)
        step, self._step = self._step, self._step + 1
        return step, batch

    def close(self) -> str | None:
        """End Grain's threads and wait, but not for long. Says what still runs, if anything."""
        self._finalizer()
        threads = list(getattr(getattr(self._iterator, "_executor", None), "_threads", ()))
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return still_running(threads)
