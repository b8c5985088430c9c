"""What can be asked of a loader at any time, wherever it is: nothing here moves it."""

from typing import Any

from loader.order.plan import Plan
from loader.runtime.cursor import Cursor
from loader.runtime.grain_dataset import HostBatches
from loader.runtime.host_pipeline import HostPipeline
from loader.runtime.paper.much import reads_much
from loader.runtime.placing import Placing
from loader.state.agreement import verify_batch


class BatchesByNumber:
    """Batches by their step, and what they look like. A part of `DataLoader`."""

    _cursor: Cursor
    _placing: Placing

    @property
    def pipeline(self) -> HostPipeline:
        """Makes the numpy batch of any step."""
        return self._cursor.pipeline

    @property
    def plan(self) -> Plan:
        """The arithmetic from steps to positions."""
        return self.pipeline.plan

    def batch_spec(self) -> Any:
        """The spec of every batch as the loop sees it, shardings included."""
        return self._placing.placement.spec

    def host_batch_spec(self) -> Any:
        """The spec of what `host_batches()` gives on this process: its rows, as numpy has them."""
        return self.pipeline.specs.of_batch(self._placing.num_host_rows)

    def batch_at(self, step: int) -> dict[str, Any]:
        """The batch of any step, wherever the loader is; it does not move."""
        step, placing = self.plan.checked_step(step), self._placing
        made = self.pipeline.make(step, placing.placement.rows)
        return placing.finish(placing.place(self.pipeline, made))

    def host_batch_at(self, step: int) -> Any:
        """The numpy batch of any step, all of its rows, before any device operator."""
        return self.pipeline.batch(self.plan.checked_step(step))

    def to_grain(self) -> HostBatches:
        """A `grain.MapDataset` whose element k is this process's host batch of step k."""
        return HostBatches(self.pipeline, self._placing.host_rows)

    def explain(self) -> str:
        """Print, and return, a table of where each leaf goes and what of it is read here.

        Below it, a word about an order that reads stored data several times.
        """
        much = reads_much(self.pipeline, self._placing.num_host_rows)
        table = "\n".join(filter(None, (self._placing.placement.table(), much)))
        print(table)
        return table

    def verify_replicas(self, step: int | None = None, *, timeout_s: float = 60.0) -> None:
        """Check that processes which hold the same part of a batch hold the same bytes.

        Of the next batch, or that of `step`. All must call this. `ValueError` says what differs.
        """
        verify_batch(self.batch_at(self._cursor.step if step is None else step), timeout_s)
