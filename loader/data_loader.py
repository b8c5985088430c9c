"""The whole flow on one page: source, order, read, operators, batcher, device, loop.

The batch of a step is computed from the step alone, so where a loader is comes down to one number.
Everything else here is bookkeeping around it: what the variables show, what the state says, when
threads start and stop.
"""

import dataclasses
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import grain
import jax
import numpy as np
from flax import nnx

from loader.batchers import BatcherModule, PadBatcher
from loader.checkpoint import Fingerprint, check_document, make_document
from loader.host_work import HostWork
from loader.module import CheckpointableIteratorModule, LoaderModule, LoaderModuleConfig
from loader.operator import HostOperator
from loader.order import Order, Sequential
from loader.placement import narrow_for_device
from loader.plan import Plan, Remainder
from loader.sources import as_source
from loader.spec import VALID_MASK, narrowed, refuse_mask_key
from loader.workers import HostBatches, Threads


@dataclasses.dataclass
class _Cursor:
    """Where a loader is. The one mutable thing in it; plain, so that moving it costs nothing."""

    step: int = 0
    ended: bool = False  # StopIteration was delivered: the next iter() starts again
    batches: grain.DatasetIterator[Any] | None = None  # host batches from `step` on, if under way
    close_at_exit: Any = None  # closes `batches` should the loader be forgotten


class DataLoader(CheckpointableIteratorModule[dict[str, Any]]):
    """Batches for a training loop, each a function of (data, configuration, step).

    `source` is a source, a Grain dataset, or arrays; `batch_size` counts rows of the whole job.
    A loader is its own iterator: it goes on where it is, and starts again once it has ended.
    """

    def __init__(
        self,
        source: Any,
        *,
        batch_size: int,
        order: Order | None = None,
        epochs: int | None = 1,
        remainder: Remainder = "pad",
        steps: int | None = None,
        microbatches: int | None = None,
        operators: Sequence[HostOperator] = (),
        batcher: BatcherModule | None = None,
        workers: Threads | None = None,
        config: LoaderModuleConfig | None = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(config or LoaderModuleConfig(), rngs=rngs, name=name)
        source = as_source(source)
        plan = Plan(len(source), batch_size, epochs, remainder, steps)
        self.batcher = batcher if batcher is not None else PadBatcher()
        self.workers = workers if workers is not None else Threads(0)
        _check_stages(self, plan, microbatches, operators)
        if hasattr(source, "record_spec") and not operators and self.batcher.pads:
            refuse_mask_key(source.record_spec())
        order = order if order is not None else Sequential()
        self._work = HostWork(source, order, plan, operators, self.batcher, microbatches)
        self._cursor = _Cursor()
        self._fingerprint: Fingerprint | None = None

    # Iteration

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._cursor.ended:
            self.reset()
        return self

    def __next__(self) -> dict[str, Any]:
        step = self._cursor.step
        host_batch = self._next_host_batch()
        try:
            batch = self._place(host_batch, step)
        except Exception:
            self._move(self.plan, step)
            raise
        self._delivered(step, host_batch)
        return batch

    def host_batches(self) -> Iterator[Any]:
        """Numpy batches of this process's rows, from where the loader is; moves it along."""
        iter(self)
        while not self._at_end():
            yield self._deliver_host_batch()  # unnamed here, so that it is freed when dropped there
        self._finish()

    def by_epoch(self) -> Iterator["Epoch"]:
        """The epochs from where the loader is: each an iterable of its batches.

        An epoch that is left early is not skipped: what remains of it comes next.
        """
        iter(self)
        while not self._at_end():
            step = self._cursor.step
            yield Epoch(self, self.plan.epoch(step), step, self.plan.epoch_end(step))
        self._finish()

    def _deliver_host_batch(self) -> Any:
        step = self._cursor.step
        batch = self._next_host_batch()
        self._delivered(step, batch)
        return batch

    def _next_host_batch(self) -> Any:
        """The host batch of the cursor's step, which stays where it is."""
        cursor = self._cursor
        if self._at_end():
            self._finish()
            raise StopIteration
        if cursor.batches is None:
            cursor.batches = self.workers.iterate(self.to_grain(), cursor.step)
            cursor.close_at_exit = weakref.finalize(self, cursor.batches.close)
        try:
            return next(cursor.batches)
        except BaseException:
            self.close()  # Grain has moved on by one: asked again, the same batch must come
            raise

    def _delivered(self, step: int, batch: Any) -> None:
        """Note that the batch of this step is now the consumer's."""
        self._cursor.step = step + 1
        start, stop = self.plan.span(step)
        self.epoch.set_value(start // self.plan.num_records)
        self.position.set_value(stop)
        self.idx.set_value(step)
        self.current.set_value((start, stop - 1))
        mask = batch.get(VALID_MASK) if isinstance(batch, dict) else None
        rows = self.plan.batch_size if mask is None else mask.size
        applied = rows if mask is None else int(np.count_nonzero(mask))
        for stage in (self, self.batcher):
            stage.count(applied=applied, skipped=rows - applied)

    def _at_end(self) -> bool:
        end = self.plan.end
        return end is not None and self._cursor.step >= end

    def _finish(self) -> None:
        self.close()
        self._cursor.ended = True

    # Batches by number

    @property
    def plan(self) -> Plan:
        """The arithmetic from steps to positions."""
        return self._work.plan

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch; under `carry`, those that begin in the first."""
        return self.plan.steps_per_epoch

    def __len__(self) -> int:
        end = self._fresh_plan().end
        if end is None:
            raise TypeError("a loader with epochs=None and no steps=... has no length")
        return end

    def __bool__(self) -> bool:
        return True

    def batch_spec(self) -> Any:
        """The spec of every batch as the loop sees it, known before anything is placed."""
        return narrowed(self._work.batch_spec())

    def batch_at(self, step: int) -> dict[str, Any]:
        """The batch of any step, wherever the loader is; it does not move."""
        self._check_step(step, last_exclusive=self.plan.end)
        return self._place(self._work.batch_rows(step), step)

    def to_grain(self) -> HostBatches:
        """A `grain.MapDataset` whose element k is this process's host batch of step k."""
        return HostBatches(self._work)

    def _place(self, host_batch: Any, step: int) -> dict[str, Any]:
        start, stop = self.plan.span(step)
        batch = narrow_for_device(host_batch, lambda row: int(self._work.records(start, stop)[row]))
        return jax.device_put(batch)

    # Moving

    def seek(self, step: int) -> None:
        """Go to a step: its batch comes next."""
        self._check_step(step, last_exclusive=None if self.plan.end is None else self.plan.end + 1)
        self._move(self.plan, step)

    def reset(self) -> None:
        """Go back to the start of a fresh run."""
        self._move(self._fresh_plan(), 0)

    def _move(self, plan: Plan, step: int) -> None:
        self.close()
        if plan != self.plan:
            self._work = self._work.replaced(plan=plan)
        self._cursor = _Cursor(step=step)
        super().reset()
        if step > 0:
            position = plan.position(step)
            self.position.set_value(position)
            self.idx.set_value(step - 1)
            self.epoch.set_value(max(position - 1, 0) // plan.num_records)

    def _fresh_plan(self) -> Plan:
        return dataclasses.replace(self.plan, origin_step=0, origin_position=0)

    def _check_step(self, step: int, last_exclusive: int | None) -> None:
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise ValueError(f"a step is an int of at least 0, got {step!r}")
        if last_exclusive is not None and step >= last_exclusive:
            raise ValueError(f"step {step} lies behind the end: this run has {self.plan.end} steps")
        if step < self.plan.origin_step:
            self.plan.span(step)  # raises, and says why

    # State

    def get_state(self) -> dict[str, Any]:
        """The state document of the last batch delivered: JSON data of at most 1 KiB."""
        plan = self.plan
        return make_document(
            step=self._cursor.step,
            position=plan.position(self._cursor.step),
            origin=(plan.origin_step, plan.origin_position),
            batch_size=plan.batch_size,
            remainder=plan.remainder,
            fingerprint=self._own_fingerprint().digests,
        )

    def set_state(self, state: dict[str, Any], *, allow_changes: Iterable[str] = ()) -> None:
        """Go on where the state was saved. Refused, the loader is as before.

        `allow_changes` names fields of the fingerprint that may differ: "order", "data.sample", or
        "data" for all of the data's.
        """
        check_document(state)
        self._own_fingerprint().refuse_differences(state["fingerprint"], allow_changes)
        step, position = state["step"], state["position"]
        kept, moved = (
            dataclasses.replace(self.plan, origin_step=at[0], origin_position=at[1])
            for at in (state["origin"], (step, position))
        )
        same = (state["batch_size"], state["remainder"]) == (kept.batch_size, kept.remainder)
        same = same and step >= kept.origin_step and kept.position(step) == position
        self._move(kept if same else moved, step)

    def _own_fingerprint(self) -> Fingerprint:
        if self._fingerprint is None:
            work = self._work
            self._fingerprint = Fingerprint(work.source, work.order, work.operators, work.batcher)
        return self._fingerprint

    # Lifecycle

    def close(self) -> None:
        """Stop threads. The loader stays where it is; iterating again starts them again."""
        cursor = self._cursor
        if cursor.batches is not None:
            cursor.close_at_exit.detach()
            cursor.batches.close()
            cursor.batches = cursor.close_at_exit = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def clone(self) -> Self:
        """An independent loader over the same source, at the same place."""
        new = super().clone()
        new._cursor = _Cursor(step=self._cursor.step, ended=self._cursor.ended)
        new._work = self._work.replaced(batcher=new.batcher)
        return new


@dataclasses.dataclass(frozen=True)
class Epoch:
    """The batches of one epoch that are still to come."""

    loader: DataLoader
    index: int
    first_step: int
    end_step: int

    def __len__(self) -> int:
        return self.end_step - self.first_step

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.first_step <= self.loader._cursor.step < self.end_step:
            yield next(self.loader)


def _check_stages(
    loader: DataLoader, plan: Plan, microbatches: int | None, operators: Sequence[HostOperator]
) -> None:
    if not loader.batcher.pads and plan.remainder != "drop":
        raise ValueError(
            f"{type(loader.batcher).__name__} never pads, and remainder={plan.remainder!r} ends "
            "with a batch that must be filled up: use remainder='drop', or PadBatcher()"
        )
    if microbatches is not None and (
        type(microbatches) is not int or microbatches < 1 or plan.batch_size % microbatches
    ):
        raise ValueError(
            f"microbatches must be an int that divides batch_size {plan.batch_size}, "
            f"got {microbatches!r}"
        )
    for operator in operators:
        if not callable(operator):
            raise TypeError(f"an operator is a callable from rows to rows, got {operator!r}")
    for stage in (loader.batcher, *operators):
        if isinstance(stage, LoaderModule):
            streams = {
                name for rngs in (loader.rngs, stage.rngs) if rngs is not None for name in rngs
            }
            stage.ensure_rng_streams(sorted(streams))
