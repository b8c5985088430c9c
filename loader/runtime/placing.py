"""Host batches of a pipeline onto devices, with the record's name in errors."""

import dataclasses
import time

from loader.records.errors import RowError
from loader.records.jax_settings import traced
from loader.runtime.host_pipeline import HostPipeline, Made
from loader.sharding.placement import Placement


@dataclasses.dataclass(frozen=True)
class Place:
    """Puts what a pipeline has made where the placement says."""

    pipeline: HostPipeline
    placement: Placement

    def __call__(self, made: Made) -> Made:
        began = time.perf_counter_ns()
        try:
            with traced("place"):
                placed = self.placement.place(made.batch, made.start)
        except RowError as error:
            if error.row >= made.stop - made.start:  # padding has no record
                raise ValueError(str(error)) from error
            record = self.pipeline.record_at(made.start + error.row)
            raise ValueError(f"record {record}: {error}") from error
        times = {**made.times_ns, "place": time.perf_counter_ns() - began}
        return dataclasses.replace(made, batch=placed, times_ns=times)
