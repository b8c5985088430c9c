"""The host half of the flow: from a step to the numpy batch of some of its rows, without state.

`batch(step, rows)` can be asked from any thread, process or machine, in any order, and always
gives the same answer.
"""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from loader.batchers import BatcherModule
from loader.order.orders import Order
from loader.order.plan import Plan
from loader.records.errors import RowError
from loader.records.integers import Int64s
from loader.records.spec import (
    Spec,
    SpecMismatch,
    is_text,
    leaf_name,
    named_leaves,
    refuse_mask_key,
    refuse_unlike,
    spec_of,
    without_rows,
)
from loader.records.stacking import is_ragged, unstack, zero_rows
from loader.runtime.stats import Recorder, traced
from loader.sources.reading import first_rows, locate, read_rows, record_spec
from loader.transforms.bound_transform import BoundTransform, apply_transforms
from loader.transforms.transform import SpecUnknown, spec_after

# Order is computed for so many positions at once and kept for the batches that follow.
_ORDER_BLOCK = 65536
_ORDER_BLOCKS_KEPT = 3


class HostPipeline:
    """All that decides the batches: source, order, plan, stages of host operators, batcher."""

    def __init__(
        self,
        source: Any,
        order: Order,
        plan: Plan,
        transforms: Sequence[BoundTransform],
        batcher: BatcherModule,
        microbatches: int | None,
        recorder: Recorder | None = None,
    ) -> None:
        self.source = source
        self.order = order
        self.plan = plan
        self.transforms = tuple(transforms)
        self.batcher = batcher
        self.microbatches = microbatches
        self.recorder = recorder or Recorder()
        # A block is a part of an epoch or, of short ones, as many as a batch may reach into.
        self._epochs_in_block = -(-plan.batch_size // plan.num_records)
        self._records_of_block = functools.lru_cache(_ORDER_BLOCKS_KEPT)(self._compute_block)
        self._latest_block: tuple[int, Int64s] = (0, np.zeros(0, np.int64))
        self._by_epoch = getattr(source, "varies_by_epoch", False)
        self._all_rows = np.arange(plan.batch_size)
        self._specs: dict[int, Any] = {}  # by the number of rows
        # The batcher's most derived word counts: one that redefines process alone is given records.
        self._by_process = _depth(batcher, "process") < _depth(batcher, "collate")
        # Whether it makes no difference which thread makes a batch, and what it is told of JAX.
        self.thread_safe = not transforms and _by_anyone(source) and _by_anyone(batcher)
        # Whether another thread may read the rows of several batches at once.
        can_gather = hasattr(source, "gather") and hasattr(source, "record_spec")
        self.reads_thread_safe = can_gather and _by_anyone(source)

    def replaced(
        self,
        *,
        plan: Plan | None = None,
        batcher: BatcherModule | None = None,
        recorder: Recorder | None = None,
    ) -> "HostPipeline":
        """The same work, counted by another plan, collated by another batcher, noted elsewhere."""
        return HostPipeline(
            self.source,
            self.order,
            plan or self.plan,
            self.transforms,
            batcher or self.batcher,
            self.microbatches,
            recorder or self.recorder,
        )

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: all but what is remembered."""
        names = ("source", "order", "plan", "transforms", "batcher", "microbatches")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def batch(
        self,
        step: int,
        rows: Int64s | None = None,
        read_ahead: Callable[[int], Any] | None = None,
    ) -> Any:
        """The batch of this step: all of its rows, or those asked for, in that order.

        `read_ahead(step)` are the records at `indices(step, rows)`, or None if they are not ready.
        """
        start, wanted, valid, indices = self._asked(step, rows)
        began = time.perf_counter_ns()
        with traced("read"):
            read = read_ahead(step) if read_ahead is not None and indices.size else None
            if read is None:
                read, indices = self._read(step, indices, valid)
        was_read = was_operated = time.perf_counter_ns()
        try:
            made = read
            if self.transforms and read is not None:
                with traced("operators"):
                    made = self._operated(read, start + wanted[valid], valid)
                was_operated = time.perf_counter_ns()
            if made is None:
                made = zero_rows(self.row_spec, 0)
            with traced("batch"):
                batch = self._collate(made, valid)
            refuse_unlike(batch, self._spec(len(wanted)), f"batch {step}")
        except RowError as error:
            record = locate(self.source, int(indices[error.row]))
            raise ValueError(f"record {record}: {error}") from error.__cause__
        except Exception as error:
            other = self._other_record(read, indices)
            if isinstance(error, SpecMismatch) and other is not None:  # that is what is wrong
                raise ValueError(other) from error
            if other is not None:  # an operator's own error is not replaced
                error.add_note(f"({other})")
            raise
        self.recorder.add(
            ("read", was_read - began),
            ("operators", was_operated - was_read),
            ("batch", time.perf_counter_ns() - was_operated),
        )
        return batch if self.microbatches is None else self._split(batch, len(wanted))

    def indices(self, step: int, rows: Int64s | None = None) -> Int64s:
        """The records of the batch of this step, as the source is asked for them."""
        return self._asked(step, rows)[-1]

    def _asked(self, step: int, rows: Int64s | None) -> tuple[int, Int64s, np.ndarray, Int64s]:
        """Where the batch starts, its rows asked for, which of them are valid, their records."""
        start, stop = self.plan.span(step)
        wanted = self._all_rows if rows is None else rows
        valid = wanted < stop - start
        indices = self.records(start, stop)
        if rows is not None:
            indices = indices[rows[valid]]
        if self._by_epoch:
            epochs = (start + wanted[valid]) // self.plan.num_records
            indices = indices + epochs * self.plan.num_records
        return start, wanted, valid, indices

    def _read(self, step: int, indices: Int64s, valid: np.ndarray) -> tuple[Any, Int64s]:
        """The records that are there, stacked, and their indices; None of none. Unsets `valid`."""
        if not indices.size:
            return None, indices
        try:
            rows, there = read_rows(self.source, indices, ragged=bool(self.transforms))
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
        return _settled(rows, self.row_spec)

    def _other_record(self, rows: Any, indices: Int64s) -> str | None:
        """In words, a record that was read and is not what the source's records look like."""
        if rows is None:
            return None
        expected = record_spec(self.source)
        fixed = hasattr(self.source, "record_spec")  # else lengths are only those of the first
        for index, record in zip(indices.tolist(), unstack(rows), strict=True):
            like = spec_of(record)
            if jax.tree.structure(like) != jax.tree.structure(expected):
                continue
            for (name, got), want in zip(
                named_leaves(like), jax.tree.leaves(expected), strict=True
            ):
                if got.dtype != want.dtype or (fixed and not _fits(got.shape, want.shape)):
                    return (
                        f"record {locate(self.source, index)}: leaf {name!r} is "
                        f"{got.dtype}{list(got.shape)} where records of this source are "
                        f"{want.dtype}{list(want.shape)}: write that record anew, or make them "
                        "alike when they are parsed"
                    )
        return None

    def _refuse_gaps(self, there: np.ndarray) -> None:
        if not (self.batcher.pads or there.all()):
            raise ValueError(
                "records are filtered out, and "
                f"{type(self.batcher).__name__} never pads: use PadBatcher(), which masks them"
            )

    def records(self, start: int, stop: int) -> Int64s:
        """The records at positions [start, stop)."""
        parts = []
        while not parts or start < stop:
            first, block = self._latest_block  # nearly always: faster to look at than the others
            if not first <= start < first + block.size:
                first, block = self._latest_block = self._block_at(start)
            parts.append(block[start - first : stop - first])
            start = first + block.size
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def record_at(self, position: int) -> str:
        """The record at a position, in words."""
        record = int(self.records(position, position + 1)[0])
        if self._by_epoch:
            record += position // self.plan.num_records * self.plan.num_records
        return locate(self.source, record)

    def _block_at(self, position: int) -> tuple[int, Int64s]:
        """The block that holds a position, and where it begins."""
        length = self._epochs_in_block * self.plan.num_records
        whole, offset = divmod(position, length)
        first = whole * length + offset // _ORDER_BLOCK * _ORDER_BLOCK
        size = min(_ORDER_BLOCK, (whole + 1) * length - first)
        return first, self._records_of_block(first, size)

    def _compute_block(self, first: int, size: int) -> Int64s:
        positions = np.arange(first, first + size, dtype=np.int64)
        records = np.array(self.order.records(positions, self.plan.num_records))
        if records.dtype != np.int64 or records.shape != positions.shape:
            raise ValueError(
                f"{self.order} gave {records.dtype}{list(records.shape)} for {positions.size} "
                f"positions: an order must give int64{[positions.size]}"
            )
        if records.min() < 0 or records.max() >= self.plan.num_records:
            raise ValueError(
                f"{self.order} gave records from {records.min()} to {records.max()} of a source "
                f"with {self.plan.num_records}: they must lie in [0, {self.plan.num_records})"
            )
        records.flags.writeable = False  # sources are handed views of it
        return records

    # Specs

    @functools.cached_property
    def row_spec(self) -> Spec:
        """The spec of a record after the host operators."""
        try:
            spec = self._declared_spec(try_zeros=True)
        except SpecUnknown:  # a real record must show it
            spec = without_rows(spec_of(self._first_row()))
            refuse_mask_key(spec)
        text = jax.ShapeDtypeStruct((), np.dtype(object))
        return jax.tree.map(lambda s: text if None in s.shape else s, spec)

    def check_operators(self) -> None:
        """Raise what is wrong between source and operators, as far as they say it themselves."""
        with contextlib.suppress(SpecUnknown):
            self._declared_spec(try_zeros=False)

    def _declared_spec(self, *, try_zeros: bool) -> Spec:
        spec = record_spec(self.source)
        for stage in self.transforms:
            spec = spec_after(stage.transform, stage.name, spec, try_zeros=try_zeros)
        refuse_mask_key(spec)
        return spec

    def _first_row(self) -> Any:
        """The first record that is there, and that filters let pass, after the operators."""
        for index, row in first_rows(self.source):
            try:
                rows, kept = apply_transforms(self.transforms, row, np.zeros(1, int))
            except RowError as error:
                record = locate(self.source, index)
                raise ValueError(f"record {record}, read to see its shape: {error}") from error
            if kept is None or kept.size:
                return rows
        raise ValueError(
            "none of the first records passes the filters, so the shape of a record is not known: "
            "give the operators behind the filter an output_spec"
        )

    def batch_spec(self) -> Any:
        """The spec of a whole batch, as the host gives it."""
        spec = self._spec(self.plan.batch_size)
        if self.microbatches is None:
            return spec
        zeros = jax.tree.map(lambda s: np.broadcast_to(np.zeros((), bool), s.shape), spec)
        shapes = jax.tree.map(np.shape, self._split(zeros, self.plan.batch_size))
        return jax.tree.map(lambda s, n: jax.ShapeDtypeStruct(n, s.dtype), spec, shapes)

    def num_bytes(self, rows: int) -> int:
        """The size of a batch of so many rows, texts not counted."""
        return sum(_leaf_bytes(self._spec(rows)))

    def read_bytes(self, rows: int) -> list[int]:
        """The sizes of the leaves of so many records as they are read, texts not counted."""
        return [rows * size for size in _leaf_bytes(record_spec(self.source))]

    def _spec(self, rows: int) -> Any:
        if rows not in self._specs:
            told = _depth(self.batcher, "batch_spec")
            if told <= min(_depth(self.batcher, "collate"), _depth(self.batcher, "process")):
                attempt = functools.partial(self.batcher.batch_spec, self.row_spec, batch_size=rows)
            else:
                attempt = functools.partial(self._spec_by_collating, zero_rows(self.row_spec, rows))
            try:
                spec = attempt()
            except Exception:  # not made for zeros, or for None where a text should be
                spec = self._spec_by_collating(
                    jax.tree.map(lambda leaf: leaf.repeat(rows, axis=0), self._first_row())
                )
            self._specs[rows] = spec
        return self._specs[rows]

    def _spec_by_collating(self, rows: Any) -> Any:
        return spec_of(self._collate(rows, np.ones(len(jax.tree.leaves(rows)[0]), bool)))

    # Batching

    def _collate(self, rows: Any, valid: np.ndarray) -> Any:
        if not self._by_process:
            return self.batcher.collate(rows, valid)
        records = unstack(rows)
        if not records:  # nothing to process, and a batch all the same
            return jax.tree.map(lambda s: zero_rows(s, 1)[0], self._spec(len(valid)))
        return self.batcher.process_one_batch(records, len(valid))

    def _split(self, batch: Any, rows: int) -> Any:
        """The batch as microbatches: a leading axis over them, on every leaf."""
        for name, leaf in named_leaves(batch):
            if getattr(leaf, "shape", ())[:1] != (rows,):
                raise ValueError(
                    f"leaf {name!r} has no row for each of the {rows} records of a batch, so it "
                    "cannot be cut into microbatches: leave out microbatches, or that leaf"
                )
        parts = self.microbatches or 1
        shape = parts, rows // parts
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), batch)


def _depth(batcher: BatcherModule, method: str) -> int:
    """How far up its classes a batcher's method is defined: 0 for the batcher's own class."""
    return next(i for i, cls in enumerate(type(batcher).__mro__) if method in vars(cls))


def _by_anyone(stage: Any) -> bool:
    """Whether its class says so. What it inherits does not count: it may have added anything."""
    return vars(type(stage)).get("thread_safe", False)


def _leaf_bytes(spec: Any) -> list[int]:
    return [
        leaf.dtype.itemsize * math.prod(leaf.shape)
        for leaf in jax.tree.leaves(spec)
        if isinstance(leaf.dtype, np.dtype) and not is_text(leaf.dtype) and None not in leaf.shape
    ]


def _fits(shape: tuple[int, ...], spec: tuple[int | None, ...]) -> bool:
    return len(shape) == len(spec) and all(
        want in (None, size) for size, want in zip(shape, spec, strict=True)
    )


def _settled(rows: Any, spec: Spec) -> Any:
    """The rows with ragged leaves stacked where the spec asks for one shape."""
    ragged = {name for name, leaf in named_leaves(rows) if is_ragged(leaf)}
    if not ragged:
        return rows
    fixed = {name for name, leaf in named_leaves(spec) if not is_text(leaf.dtype)}

    def settle(path: Any, leaf: Any) -> Any:
        name = leaf_name(path)
        if name not in ragged & fixed:
            return leaf
        shapes = list(dict.fromkeys(array.shape for array in leaf))
        if len(shapes) == 1:
            return np.stack(leaf.tolist())
        raise SpecMismatch(
            f"the rows of leaf {name!r} differ in shape ({', '.join(map(str, shapes[:3]))}): "
            f"pad or crop them to one length, as PadTokens({name!r}, 128) of operators, or "
            "pack them with Packed"
        )

    return jax.tree_util.tree_map_with_path(settle, rows)
