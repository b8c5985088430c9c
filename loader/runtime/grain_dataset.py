"""A host pipeline as a `grain.MapDataset`, so that Grain's tools see it."""

import sys
from typing import Any

import grain

from loader.records.integers import Int64s
from loader.runtime.host_pipeline import HostPipeline
from loader.sources.source import in_words


class HostBatches(grain.MapDataset[Any]):
    """Element k is the batch of step k: of all rows, or of those asked for."""

    def __init__(self, pipeline: HostPipeline, rows: Int64s | None = None) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._rows = rows

    def __len__(self) -> int:
        end = self._pipeline.plan.end
        return sys.maxsize if end is None else end

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        count = len(self)
        if not count:
            raise IndexError("a run of no steps has no batches")
        return self._pipeline.batch(index % count, self._rows)

    def __str__(self) -> str:
        pipeline = self._pipeline
        source = in_words(pipeline.source)
        return f"HostBatches({source}, batch_size={pipeline.plan.batch_size})"
