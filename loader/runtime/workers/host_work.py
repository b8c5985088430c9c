"""The host work of a loader: the batches of a pipeline, as workers are asked for them."""

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from loader.records.integers import Int64s
from loader.records.jax_settings import deciding_settings
from loader.runtime.host_pipeline import HostPipeline, Made
from loader.sources.reading import stored_pieces
from loader.sources.storage.stored_files import StoredPieces
from loader.state.fingerprint import Fingerprint
from loader.state.resuming import mixture_at

_RECORDS_SHOWN = 4


@dataclasses.dataclass(frozen=True)
class HostWork:
    """The rows that a process wants of each batch of a pipeline; None for all of them."""

    pipeline: HostPipeline
    rows: Int64s | None = None
    fingerprint: Fingerprint | None = None

    def __reduce__(self) -> Any:
        return HostWork, (self.pipeline, self.rows)  # a worker needs no fingerprint

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

    def known_by(self) -> dict[str, Any]:
        """What tells this work from others: where it is equal, so are the batches of all steps."""
        assert self.fingerprint is not None, "it is the work of a loader"
        pipeline, plan = self.pipeline, self.pipeline.plan
        rows = np.arange(plan.batch_size) if self.rows is None else self.rows
        return {
            "fingerprint": self.fingerprint.digests,
            "plan": dataclasses.astuple(plan),
            "mixture": mixture_at(plan.origin_position, pipeline.source),
            "microbatches": pipeline.microbatches,
            "with_index": pipeline.with_index,
            "rows": hashlib.sha256(np.asarray(rows, np.int64).tobytes()).hexdigest(),
            "settings": deciding_settings(),
        }

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
