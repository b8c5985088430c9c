"""The host work of a loader: the batches of a pipeline, as workers are asked for them."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from loader.records.integers import Int64s
from loader.runtime.host_pipeline import HostPipeline, Made
from loader.sources.reading import stored_pieces
from loader.sources.storage.stored_files import StoredPieces

_RECORDS_SHOWN = 4


@dataclasses.dataclass(frozen=True)
class HostWork:
    """The rows that a process wants of each batch of a pipeline; None for all of them."""

    pipeline: HostPipeline
    rows: Int64s | None = None

    @property
    def source(self) -> Any:
        return self.pipeline.source

    @property
    def end(self) -> int | None:
        return self.pipeline.plan.end

    @property
    def thread_safe(self) -> bool:
        return self.pipeline.thread_safe

    def in_one_thread(self) -> str | None:
        return self.pipeline.in_one_thread()

    def make(self, step: int) -> Made:
        return self.pipeline.make(step, self.rows)

    def planned(self) -> "HostWork":
        """With a memory of its own of what was computed of the order."""
        return dataclasses.replace(self, pipeline=self.pipeline.replaced())

    def stored_pieces(self, step: int) -> StoredPieces:
        return stored_pieces(self.source, self.pipeline.indices(step, self.rows))

    def parts(self) -> Iterator[tuple[str, Any]]:
        yield "source", self.source
        yield "order", self.pipeline.order
        for bound in self.pipeline.transforms:
            yield f"operators[{bound.place}]", bound.transform
        yield "batcher", self.pipeline.batcher

    def named(self, step: int) -> str:
        return f"batch {step}"

    def advice(self, step: int) -> str:
        start, stop = self.pipeline.plan.span(step)
        some = range(start, min(stop, start + _RECORDS_SHOWN))
        shown = ", ".join(self.pipeline.record_at(position) for position in some)
        more = f" and {stop - some.stop} more" if stop > some.stop else ""
        return (
            f"It has the records {shown}{more}. To see what happens there, make it in this "
            f"process: loader.host_batch_at({step})"
        )
