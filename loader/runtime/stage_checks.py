"""What can be wrong with the stages of a loader before any of them has run."""

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from loader.batchers import BatcherModule
from loader.order.block_shuffle import Blocks, BlockShuffle
from loader.order.orders import Order, Sequential
from loader.order.plan import Plan
from loader.records.integers import checked_int
from loader.records.renamed import refuse_old_names
from loader.runtime.bad_records import checked_on_error
from loader.runtime.workers.auto import Auto
from loader.runtime.workers.kinds import RemoteKind, WorkerKind
from loader.sharding.mesh_sharder import MeshSharder
from loader.sharding.sharder_module import SharderModule
from loader.sources.reading import blocks
from loader.sources.source import in_words
from loader.transforms.operator_module import OperatorModule


def chosen_sharder(mesh: Mesh | None, sharder: SharderModule | None) -> SharderModule | None:
    """The sharder of a loader that was given a mesh, or a sharder, or neither."""
    if mesh is not None and sharder is not None:
        raise ValueError("mesh and sharder are both given: a MeshSharder has its mesh already")
    return sharder if mesh is None else MeshSharder(mesh)


def chosen_workers(workers: Any) -> Any:
    """The workers of a loader that was given them, or a word for them, or none."""
    return Auto() if workers is None or workers == "auto" else workers


def chosen_order(order: Order | None, source: Any) -> Order:
    """The order of a loader that was given one, or none: over the blocks of the source, if it takes
    those."""
    if not isinstance(order, BlockShuffle) or order.block_size is not None:
        return Sequential() if order is None else order
    starts = blocks(source)
    if starts is None:
        raise ValueError(
            f"{order} shuffles the blocks that the source is stored in (files, chunks, row groups),"
            f" and {in_words(source)} does not say them: give their size, such as "
            f"BlockShuffle({order.seed}, block_size=1024, window={order.window})"
        )
    return order.over(Blocks(starts, len(source)))


def refuse_unfit_stages(
    loader: Any,
    plan: Plan,
    order: Order,
    microbatches: int | None,
    operators: Sequence[OperatorModule],
) -> None:
    """Raise, with the remedy, for stages of the wrong kind or that do not fit together."""
    for stage, kind, example in (
        (loader.batcher, BatcherModule, "batcher=PadBatcher()"),
        (loader.workers, WorkerKind, "workers='auto', workers=Threads(2) or workers=Processes(2)"),
        (loader.sharder, SharderModule | None, "sharder=MeshSharder(mesh)"),
    ):
        if not isinstance(stage, kind):
            raise TypeError(f"got {stage!r} where an instance is needed, such as {example}")
    if isinstance(order, type) or not hasattr(order, "records"):
        raise TypeError(f"an order is an instance such as Shuffle(seed=0), got {order!r}")
    order.records(np.zeros(1, np.int64), plan.num_records)  # refuses lengths it cannot order
    _check_prefetch(loader.prefetch, loader.workers)
    checked_int("retries", loader.retries, 0)
    _refuse_unfit_batcher(loader.batcher, plan, masks=checked_on_error(loader.on_error) is not None)
    if plan.epochs is None and plan.remainder == "pad" and plan.batch_size > plan.num_records:
        warnings.warn(
            f"batch_size {plan.batch_size} is larger than the {plan.num_records} records of an "
            f"epoch, so {plan.batch_size - plan.num_records} rows of every batch are masked, for "
            "ever: use remainder='carry', which fills batches from the next epoch, or "
            f"batch_size={plan.num_records}",
            stacklevel=_level_of_the_user(),
        )
    if microbatches is not None:
        wanted = f"an int that divides batch_size {plan.batch_size}"
        number = checked_int("microbatches", microbatches, 1, wanted=wanted)
        if plan.batch_size % number:
            raise ValueError(f"microbatches must be {wanted}, got {microbatches!r}")
    if isinstance(loader.sharder, MeshSharder):
        loader.sharder.check_batch_size(plan.batch_size, microbatches)
    for stage in (loader.batcher, *operators):
        names = {name for rngs in (loader.rngs, stage.rngs) if rngs is not None for name in rngs}
        if "default" not in names:  # which serves for any
            stage.ensure_rng_streams(sorted(names))


def _check_prefetch(prefetch: Any, workers: WorkerKind) -> None:
    if checked_int("prefetch", prefetch, 0) == 0 and isinstance(workers, RemoteKind):
        raise ValueError(
            "prefetch=0 makes each batch in this thread, when it is asked for, and "
            f"{workers} works ahead: give prefetch=1 or more, or leave out workers"
        )


def _refuse_unfit_batcher(batcher: BatcherModule, plan: Plan, *, masks: bool) -> None:
    refuse_old_names(batcher)
    name = type(batcher).__name__
    if not batcher.pads and plan.remainder != "drop":
        raise ValueError(
            f"{name} never pads, and remainder={plan.remainder!r} ends "
            "with a batch that must be filled up: use remainder='drop', or PadBatcher()"
        )
    if masks and not (batcher.pads and batcher.made_by == "collate"):
        why = "defines process, which is not told of rows that are missing"
        raise ValueError(
            f"{name} {why if batcher.pads else 'never pads'}, and on_error=Mask(...) leaves out "
            "bad records: use PadBatcher(), a batcher that defines collate(rows, valid), or "
            "on_error='raise'"
        )


def _level_of_the_user() -> int:
    """The `stacklevel` of the first frame that is not ours, nor flax's, which makes modules."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in ("loader", "flax"):
        level, frame = level + 1, frame.f_back
    return level
