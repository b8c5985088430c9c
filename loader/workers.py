"""How host work is run. It changes the speed, never the batches."""

import dataclasses
import sys
from typing import Any

import grain

from loader.host_work import HostWork
from loader.permutation import Int64s


class HostBatches(grain.MapDataset[Any]):
    """Host work as a Grain dataset: element k is the batch of step k, of the rows asked for."""

    def __init__(self, work: HostWork, rows: Int64s | None = None) -> None:
        super().__init__()
        self._work = work
        self._rows = rows

    def __len__(self) -> int:
        end = self._work.plan.end
        return sys.maxsize if end is None else end

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self._work.batch_rows(index % len(self), self._rows)

    def __str__(self) -> str:
        return f"HostBatches({self._work.source!r}, batch_size={self._work.plan.batch_size})"


@dataclasses.dataclass(frozen=True)
class Threads:
    """Batches are made by `count` threads of Grain's; with 0, by the thread that asks for them."""

    count: int = 0

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 0:
            raise ValueError(f"Threads: count must be an int of at least 0, got {self.count!r}")

    def iterate(self, batches: HostBatches, step: int) -> grain.DatasetIterator[Any]:
        """The batches from this step on."""
        # A batch in the making per thread, and one more each: Grain's default would hold 500.
        options = grain.ReadOptions(num_threads=self.count, prefetch_buffer_size=2 * self.count)
        iterator = iter(batches.to_iter_dataset(options))
        iterator.set_state({"next_index": step})
        return iterator
