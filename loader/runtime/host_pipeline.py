"""The host half of the flow: from a step to the numpy batch of some of its rows, without state.

`batch(step, rows)` can be asked from any thread, process or machine, in any order, and always gives
the same answer. The pipeline pickles.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from loader.batchers import BatcherModule
from loader.order.order_cache import OrderCache
from loader.order.orders import Order
from loader.order.plan import Plan
from loader.records.errors import RowError, is_of_storage, operator_of
from loader.records.integers import Int64s
from loader.records.jax_settings import traced
from loader.records.spec import Spec, SpecMismatch, refuse_unlike
from loader.records.stacking import settled, zero_rows
from loader.runtime.bad_records import BadRecord
from loader.runtime.batch_specs import BatchSpecs, split
from loader.runtime.blame import (
    odd_record,
    refuse_unlike_records,
    unlike_record,
    unlike_row,
    with_record,
)
from loader.runtime.record_index import RecordIndex
from loader.sources.mapped import spent
from loader.sources.mixture.mixture import from_the_start
from loader.sources.reading import (
    is_thread_safe,
    locate,
    read_rows,
    thread_safety,
    varies_by_epoch,
    whereabouts,
)
from loader.sources.retried import RETRIES, retried
from loader.transforms.bound_transform import BoundTransform, apply_transforms
from loader.transforms.transform import thread_safe


@dataclasses.dataclass(eq=False)
class Made:
    """A batch, with the numbers that travel with it: positions, rows, and where the time went."""

    batch: Any
    start: int  # the first position of the whole batch
    stop: int
    applied: int  # rows here that are real
    masked: int  # rows here that are padding, filtered out, or bad
    times_ns: dict[str, int]
    filtered: int = 0  # of the masked rows, those that are not padding
    by: str = ""  # the worker that has made it, if it has a name
    bad: tuple[BadRecord, ...] = ()  # records that are masked because they are bad


class HostPipeline:
    """All that decides the batches: source, order, plan, host operators, batcher, error policy.

    If it `masks`, a record that fails by itself is a masked row. `retries` is how often a read is
    tried again when the storage has failed.
    """

    def __init__(
        self,
        source: Any,
        order: Order,
        plan: Plan,
        transforms: Sequence[BoundTransform],
        batcher: BatcherModule,
        microbatches: int | None,
        with_index: str | None = None,
        masks: bool = False,
        retries: int = RETRIES,
    ) -> None:
        self.source = source
        self.order = order
        self.plan = plan
        self.transforms = tuple(transforms)
        self.batcher = batcher
        self.microbatches = microbatches
        self.with_index = with_index
        self.masks = masks
        self.retries = retries
        self.index = RecordIndex(source, with_index)
        # `process` counts what it makes, in whatever thread: a loader counts for itself.
        self._batcher = batcher if batcher.made_by == "collate" else batcher.clone()
        self._order = OrderCache(order, plan.num_records, plan.batch_size)
        by_collate = batcher.made_by == "collate"
        self._batch_of = self._batcher.collate if by_collate else self._batcher.batch_of
        self.specs = BatchSpecs(
            source, self.transforms, self._batcher, microbatches, self.index, masks, retries
        )
        self._varies_by_epoch = varies_by_epoch(source)
        self._all_rows = np.arange(plan.batch_size)

    @property
    def thread_safe(self) -> bool:
        """Whether it makes no difference which thread makes a batch, and how many do at once."""
        safe = is_thread_safe(self.source) and self.batcher.thread_safe
        return safe and not self.transforms

    def in_one_thread(self) -> str | None:
        """What does not say that several threads may use it, so that one had better; or None."""
        unsafe = [bound for bound in self.transforms if not thread_safe(bound.transform)]
        if not thread_safety(self.source):
            return f"the source {type(self.source).__name__}"
        if not self.batcher.thread_safe:
            return f"the batcher {type(self.batcher).__name__}"
        return f"operators[{unsafe[0].place}], {unsafe[0].name}" if unsafe else None

    def replaced(self, **changes: Any) -> "HostPipeline":
        """The same pipeline with some of its parts changed."""
        return HostPipeline(**{**self._parts(), **changes})

    def _parts(self) -> dict[str, Any]:
        names = ("source", "order", "plan", "transforms", "batcher", "microbatches", "with_index")
        return {name: getattr(self, name) for name in (*names, "masks", "retries")}

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: all but what is remembered or counted, so that its bytes stay the same."""
        batcher = self.batcher.clone()
        batcher.reset_operation_stats()
        return {**self._parts(), "batcher": batcher}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    @property
    def row_spec(self) -> Spec:
        """The spec of a record after the host operators."""
        return self.specs.row

    def batch_spec(self) -> Any:
        """The spec of a whole batch, as the host gives it."""
        return self.specs.of_batch(self.plan.batch_size)

    def batch(self, step: int, rows: Int64s | None = None) -> Any:
        """The batch of this step: all of its rows, or those asked for, in that order."""
        return self.make(step, rows).batch

    def epoch(self) -> Iterator[Any]:
        """The batches of one epoch, each record once and no padding, whatever the plan says."""
        plan = Plan(self.plan.num_records, self.plan.batch_size)
        source = from_the_start(self.source)
        pipeline = self.replaced(source=source, plan=plan, microbatches=None)
        for step in range(plan.steps_per_epoch):
            start, stop = plan.span(step)
            yield pipeline.batch(step, np.arange(stop - start))

    def make(self, step: int, rows: Int64s | None = None) -> Made:
        """The batch of this step, with its numbers."""
        try:
            if not self.masks:
                return self._made(step, rows)
            return self._made_with_mask(step, rows)
        except StopIteration as error:  # which would look like the end of the run
            raise RuntimeError(f"batch {step}: a source or an operator raised it") from error

    def _made_with_mask(self, step: int, rows: Int64s | None) -> Made:
        """The batch without the records that are bad, if there are any: those that fail alone."""
        try:
            return self._made(step, rows)
        except Exception as error:
            if is_of_storage(error):
                raise
            start, stop = self.plan.span(step)
            wanted = self._all_rows if rows is None else rows
            bad = np.zeros(len(wanted), bool)
            found = []
            for place in np.flatnonzero(wanted < stop - start).tolist():
                if (one := self._tried(step, wanted[place : place + 1])) is not None:
                    bad[place] = True
                    found.append(one)
            if not found:
                error.add_note("(none of its records fails alone, so that none of them is masked)")
                raise
        return dataclasses.replace(self._made(step, rows, bad), bad=tuple(found))

    def _tried(self, step: int, row: Int64s) -> BadRecord | None:
        """Why no row can be made of the record of one row, all by itself; None if one can."""
        start, stop = self.plan.span(step)
        index, valid, spec = self._indices(start, stop, row), np.ones(1, bool), self.specs.row
        stage = "read"
        try:
            rows, _ = self._read(step, index, valid)
            if rows is not None and self.transforms:
                stage = "operators"
                rows = self._operated(rows, start + row, valid)
        except Exception as error:
            if is_of_storage(error):
                raise
            stage, words = operator_of(error) or stage, f"{type(error).__name__}: {error}"
            if isinstance(error, RowError):
                words = str(error).removeprefix(f"{stage}: ")
            elif isinstance(error, SpecMismatch):
                stage, words = "shape", str(error)
        else:
            stage, words = "shape", None if rows is None else unlike_row(rows, spec)
        if words is None:
            return None
        return BadRecord(*whereabouts(self.source, int(index[0])), stage, words)

    def _made(self, step: int, rows: Int64s | None, bad: np.ndarray | None = None) -> Made:
        start, stop = self.plan.span(step)
        wanted = self._all_rows if rows is None else rows
        valid = wanted < stop - start
        if bad is not None:
            valid &= ~bad
        asked = int(np.count_nonzero(valid))
        some = rows is not None or bad is not None
        indices = self._indices(start, stop, wanted[valid] if some else None)
        numbers = self.index.of(indices, valid) if self.with_index else None
        spent.ns = 0  # by what was read outside of a batch
        began = time.perf_counter_ns()
        with traced("read"):
            read, indices = self._read(step, indices, valid)
        places = wanted[valid]
        was_read, mapped = time.perf_counter_ns(), spent.ns
        try:
            operated = read
            if self.transforms and read is not None:
                with traced("operators"):
                    operated = self._operated(read, start + places, valid)
            was_operated = time.perf_counter_ns()
            with traced("batch"):
                batch = self._collated(operated, valid)
                if numbers is not None:
                    batch = self.index.added(batch, numbers, valid)
            spec = self.specs.by_rows.get(len(wanted)) or self.specs.of_rows(len(wanted))
            refuse_unlike(batch, spec, f"batch {step}")
        except Exception as error:
            self._raise_with_record(error, step, read, indices, places)
            raise
        if self.microbatches is not None:
            batch = split(batch, len(wanted), self.microbatches)
        applied = int(np.count_nonzero(valid))
        times = {
            "read": was_read - began - mapped,
            "mapped": mapped,
            "operators": was_operated - was_read,
            "batch": time.perf_counter_ns() - was_operated,
        }
        return Made(batch, start, stop, applied, len(wanted) - applied, times, asked - applied)

    def _indices(self, start: int, stop: int, rows: Int64s | None) -> Int64s:
        """The records of a batch as the source is asked for them: all, or those of some rows."""
        indices = self._order.records(start, stop)
        if rows is not None:
            indices = indices[rows]
        if self._varies_by_epoch:
            offsets = np.arange(stop - start) if rows is None else rows
            indices = indices + (start + offsets) // self.plan.num_records * self.plan.num_records
        return indices

    def indices(self, step: int, rows: Int64s | None = None) -> Int64s:
        """The records of a batch, or of some of its rows, as the source is asked for them."""
        start, stop = self.plan.span(step)
        return self._indices(start, stop, None if rows is None else rows[rows < stop - start])

    def records(self, start: int, stop: int) -> Int64s:
        """The records at positions [start, stop)."""
        return self._order.records(start, stop)

    def record_at(self, position: int) -> str:
        """The record at a position, in words."""
        return locate(self.source, int(self._indices(position, position + 1, None)[0]))

    def _read(self, step: int, indices: Int64s, valid: np.ndarray) -> tuple[Any, Int64s]:
        """The records that are there, stacked, and their indices; None of none. Unsets `valid`."""
        if not indices.size:
            return None, indices
        try:
            ragged = bool(self.transforms)
            read = functools.partial(read_rows, self.source, indices, ragged=ragged)
            rows, there = retried(read, self.retries)
            if self.masks and ragged and rows is not None:
                refuse_unlike_records(rows, self.specs.record)
        except Exception as error:
            error.add_note(f"(while reading records {indices.tolist()} for batch {step})")
            raise
        if there is not None:
            self._refuse_gaps(there)
            valid[valid] = there
            indices = indices[there]
        return rows, indices

    def _operated(self, rows: Any, positions: Int64s, valid: np.ndarray) -> Any:
        """The rows after the host operators; None if a filter has left none. Unsets `valid`."""
        rows, kept = apply_transforms(self.transforms, rows, positions)
        if kept is not None:
            left = np.zeros(len(positions), bool)
            left[kept] = True
            self._refuse_gaps(left)
            valid[valid] = left
            if not kept.size:
                return None
        return settled(rows, self.specs.row)

    def _refuse_gaps(self, there: np.ndarray) -> None:
        if not (self.batcher.pads or there.all()):
            raise ValueError(
                "records are filtered out, and "
                f"{type(self.batcher).__name__} never pads: use PadBatcher(), which masks them"
            )

    def _collated(self, rows: Any, valid: np.ndarray) -> Any:
        if rows is not None:
            return self._batch_of(rows, valid)
        if self._batcher.made_by == "collate":
            return self._batch_of(zero_rows(self.specs.row, 0), valid)
        # There is nothing to process, and a batch all the same.
        return jax.tree.map(lambda s: zero_rows(s, 1)[0], self.specs.of_rows(len(valid)))

    def _raise_with_record(
        self, error: Exception, step: int, read: Any, indices: Int64s, places: Int64s
    ) -> None:
        """Raise the error with the record that is to blame; where none is, leave it a note."""

        def alone(row: int) -> BadRecord | None:
            return self._tried(step, places[row : row + 1])

        unlike = functools.partial(unlike_record, self.source, indices, alone)
        if isinstance(error, RowError):
            if words := unlike(error.row):
                raise ValueError(words) from error
            raise with_record(self.source, int(indices[error.row]), error) from error.__cause__
        self._blame(error, read, indices)
        if isinstance(error, SpecMismatch) and (words := unlike()):
            raise ValueError(words) from error

    def _blame(self, error: Exception, read: Any, indices: Int64s) -> None:
        """Say which record is odd, if one is: as the error itself where the batch is not as it
        should be, else as a note to it, for an operator's own error is not replaced."""
        odd = odd_record(self.source, read, indices)
        if odd is not None and isinstance(error, SpecMismatch):
            raise ValueError(odd) from error
        if odd is not None:
            error.add_note(f"({odd})")
        elif read is not None and not isinstance(error, SpecMismatch):
            self.specs.explain_host_error(read, error)
