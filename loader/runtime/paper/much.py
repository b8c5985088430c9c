"""A word about an order that reads much more than the data, as a full shuffle of a bucket does."""

import numpy as np

from loader.order.block_shuffle import BlockShuffle
from loader.order.orders import Sequential
from loader.records.words import bytes_in_words
from loader.runtime.host_pipeline import HostPipeline
from loader.runtime.paper.estimate import estimate
from loader.runtime.paper.layout import BlockLayout, layout_of
from loader.runtime.paper.needs import Job, needs_of
from loader.sources.reading import blocks, varies_by_epoch

_MUCH = 2  # times the data
_STEPS = 16  # that are looked at


def reads_much(pipeline: HostPipeline, rows: int) -> str | None:
    """What is to be said of how often the data is read in an epoch; None if there is nothing.

    `rows` are those of a batch that this process reads. No record is read.
    """
    plan, source = pipeline.plan, pipeline.source
    if isinstance(pipeline.order, Sequential) or not rows > 0 or plan.batch_size % rows:
        return None
    try:
        layout = layout_of(source)
    except Exception:  # to show something must not fail; the error comes when records are read
        return None
    if layout is None or not layout.far or not layout.num_bytes:
        return None
    job = Job(pipeline.order, plan, layout, plan.batch_size // rows, varies_by_epoch(source))
    try:
        found = estimate(job, layout.cache_bytes)
        num_bytes = None if found is None else found.num_bytes.value
    except ValueError:  # a step does not fit: a loader refuses that, unless it can do without
        num_bytes = _of_every_step(job) if isinstance(layout, BlockLayout) else None
    if num_bytes is None or (times := num_bytes / layout.num_bytes) < _MUCH:
        return None
    kept = layout.cache_bytes
    how = "without a cache" if kept is None else f"with a cache of {bytes_in_words(kept)}"
    whole = bytes_in_words(layout.num_bytes)
    return (
        f"{pipeline.order} reads about {times:,.0f} times the data ({whole}) in an epoch, {how}: "
        f"{_remedy(pipeline, whole)}"
    )


def _remedy(pipeline: HostPipeline, whole: str) -> str:
    order, has_blocks = pipeline.order, blocks(pipeline.source) is not None
    larger = f"a cache that holds a window, or {whole} for all of it"
    if not isinstance(order, BlockShuffle):
        seed, size = getattr(order, "seed", 0), "" if has_blocks else ", block_size=1024"
        return f"BlockShuffle({seed}{size}, window=16) reads it about once; or give {larger}"
    if has_blocks and order.block_size is not None:
        return f"leave out block_size, so that blocks are those of the source, or give {larger}"
    return f"give {larger}, or a smaller window"


def _of_every_step(job: Job) -> float:
    """What an epoch reads if every step reads all that it needs."""
    steps = np.linspace(0, job.plan.steps_per_epoch - 1, _STEPS).astype(np.int64).tolist()
    needs = [needs_of(job, range(step, step + 1), [0])[0] for step in steps]
    each = [int(job.layout.sizes[one.pieces].sum()) for one in needs]
    return float(np.mean(each)) * job.plan.steps_per_epoch
