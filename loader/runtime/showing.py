"""What a loader says of itself, without reading a record."""

from typing import Any

from loader.records.showing import call, mesh_in_words, records_in_words
from loader.sources.reading import knows_spec


def loader_in_words(self: Any) -> str:
    """The `__repr__` of a loader: what it reads and where it is, with the epoch of the next batch
    and how many were delivered.
    """
    pipeline, plan, step = self.pipeline, self.plan, self.step
    try:
        spec = pipeline.source.record_spec() if knows_spec(pipeline.source) else None
    except Exception:  # to show something must not fail; the error comes when records are read
        spec = None
    epoch = plan.epoch_before(step) if step == plan.end else plan.epoch(step)
    parts = [
        records_in_words(plan.num_records, spec),
        f"batches of {plan.batch_size}",
        repr(pipeline.order),
        f"epoch {epoch + 1}" + (f" of {plan.epochs}" if plan.epochs is not None else ""),
        f"step {step}" + (f" of {plan.end}" if plan.end is not None else ""),
    ]
    mesh = getattr(self.sharder, "mesh", None)
    if mesh is not None:
        parts.append(f"mesh {mesh_in_words(mesh)}")
    return call(type(self).__name__, parts)
