"""Host batches of a pipeline onto devices, with the record's name in errors."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from loader.records.errors import RowError
from loader.records.integers import Int64s
from loader.records.jax_settings import traced, x64_enabled
from loader.records.narrowing import Unplaceable
from loader.runtime.host_pipeline import HostPipeline, Made
from loader.sharding.device_operators import placement_of_batches
from loader.sharding.placement import Placement
from loader.sharding.sharder_module import SharderModule
from loader.transforms.bound_transform import BoundTransform


class Placing:
    """Puts what a pipeline has made where the sharder says; runs the device operators."""

    def __init__(
        self,
        pipeline: HostPipeline,
        sharder: SharderModule | None,
        transforms: Sequence[BoundTransform],
    ) -> None:
        self._pipeline = pipeline
        self._sharder = sharder
        self._transforms = tuple(transforms)
        self._placements: dict[bool, Placement] = {}  # with jax_enable_x64, and without

    @property
    def placement(self) -> Placement:
        """Where leaves go under the x64 setting of this thread."""
        x64 = x64_enabled()
        if x64 not in self._placements:
            self._placements[x64] = self._placement()
        return self._placements[x64]

    @property
    def host_rows(self) -> Int64s | None:
        """The rows of a numpy batch here, None for all; without a sharder nothing is placed."""
        return None if self._sharder is None else self.placement.rows

    @property
    def num_host_rows(self) -> int:
        rows = self.host_rows
        return self._pipeline.plan.batch_size if rows is None else len(rows)

    def _placement(self) -> Placement:
        pipeline, spec = self._pipeline, self._pipeline.batch_spec()
        try:
            return placement_of_batches(
                self._sharder,
                spec,
                self._transforms,
                pipeline.plan.batch_size,
                pipeline.microbatches,
                tuple(pipeline.index.leaves),
            )
        except Unplaceable as error:
            pipeline.specs.explain_device_error(self._transforms, error)
            raise

    def place(self, pipeline: HostPipeline, made: Made) -> Made:
        """The same on devices. The pipeline that has made it knows its records."""
        began = time.perf_counter_ns()
        try:
            with traced("place"):
                placed = self.placement.place(made.batch, made.start)
        except RowError as error:
            if error.row >= made.stop - made.start:  # padding has no record
                raise ValueError(str(error)) from error
            record = pipeline.record_at(made.start + error.row)
            raise ValueError(f"record {record}: {error}") from error
        times = {**made.times_ns, "place": time.perf_counter_ns() - began}
        return dataclasses.replace(made, batch=placed, times_ns=times)

    def finish(self, made: Made) -> Any:
        """The batch as the loop sees it. Device operators are dispatched here, by the consumer."""
        began = time.perf_counter_ns()
        batch = self.placement.finish(made.batch)
        made.times_ns["dispatch"] = time.perf_counter_ns() - began
        return batch
