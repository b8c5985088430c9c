"""What the batches of a host pipeline look like, known before one is made where possible."""

import contextlib
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from loader.batchers import BatcherModule
from loader.records.errors import RowError
from loader.records.integers import Int64s
from loader.records.spec import (
    Spec,
    is_text,
    named_leaves,
    refuse_bad_names,
    refuse_mask_key,
    spec_of,
    without_rows,
)
from loader.records.stacking import row_spec, zero_rows
from loader.runtime.record_index import RecordIndex
from loader.sources.reading import first_that_work, locate, read_rows, record_spec
from loader.sources.retried import RETRIES, retried
from loader.transforms.bound_transform import BoundTransform, apply_transforms
from loader.transforms.transform import SpecUnknown, spec_after


class BatchSpecs:
    """Specs of records after the host operators, and of batches of some number of rows."""

    def __init__(
        self,
        source: Any,
        transforms: Sequence[BoundTransform],
        batcher: BatcherModule,
        microbatches: int | None,
        index: RecordIndex,
        skip_bad: bool = False,
        retries: int = RETRIES,
    ) -> None:
        self._source = source
        self._transforms = transforms
        self._batcher = batcher
        self._microbatches = microbatches
        self._index = index
        self._skip_bad = skip_bad  # to see what records look like, take one that is not bad
        self._retries = retries
        self.by_rows: dict[int, Any] = {}  # what `of_rows` has found

    @functools.cached_property
    def record(self) -> Spec:
        """The spec of a record as it is read."""
        return retried(lambda: record_spec(self._source), self._retries)

    @functools.cached_property
    def row(self) -> Spec:
        """The spec of a record after the host operators."""
        return retried(self._row, self._retries)

    def _row(self) -> Spec:
        with contextlib.suppress(SpecUnknown):
            return _with_texts(self._declared(try_zeros=True))
        # A real record must show it. Its error, if any, does not come with that of the zeros.
        spec = without_rows(spec_of(self._first_row()))
        refuse_mask_key(spec)
        refuse_bad_names(spec)
        return _with_texts(spec)

    def explain_host_error(self, rows: Any, error: Exception) -> None:
        """Raise what an operator says of rows like those read: better than what it has raised."""
        _refused(self._transforms, row_spec(rows), error)

    def explain_device_error(self, transforms: Sequence[BoundTransform], error: Exception) -> None:
        """The same of operators on the device, which get what comes out of those here."""
        with contextlib.suppress(SpecUnknown):
            _refused(transforms, self._declared(try_zeros=True), error)

    def check_operators(self) -> None:
        """Raise what is wrong between source and operators, as far as they say it themselves."""
        with contextlib.suppress(SpecUnknown):
            self._declared(try_zeros=False)

    def _declared(self, *, try_zeros: bool) -> Spec:
        spec = record_spec(self._source)
        refuse_bad_names(spec)
        for bound in self._transforms:
            spec = spec_after(bound.transform, bound.name, spec, try_zeros=try_zeros)
        refuse_mask_key(spec)
        refuse_bad_names(spec)
        return spec

    def _first_row(self) -> Any:
        """The first record that is there, and that filters let pass, after the operators."""
        shown = first_that_work(self._shown, len(self._source), skip_bad=self._skip_bad)
        for _, rows in shown:
            if rows is not None:
                return rows
        raise ValueError(
            "none of the first records passes the filters, so the shape of a record is not known: "
            "give the operators after the filter an output_spec"
        )

    def _shown(self, index: Int64s) -> Any:
        """A record after the operators; None if it is filtered out."""
        row, _ = read_rows(self._source, index)
        if row is None:
            return None
        try:
            rows, kept = apply_transforms(self._transforms, row, np.zeros(1, int))
        except RowError as error:
            record = locate(self._source, int(index[0]))
            raise ValueError(f"record {record}, read to see its shape: {error}") from error
        return rows if kept is None or kept.size else None

    def of_rows(self, rows: int) -> Any:
        """The spec of a batch of so many rows, before it is cut into microbatches."""
        if rows not in self.by_rows:
            row = self.row  # what is wrong with it is not a matter of the batcher
            spec = None
            # It may not be made for zeros, or for None where a text should be.
            with contextlib.suppress(Exception):
                if self._batcher.states_spec:
                    spec = self._batcher.batch_spec(row, batch_size=rows)
                else:
                    spec = self._by_trial(zero_rows(row, rows))
            if spec is None:
                first = self._first_row()
                spec = self._by_trial(jax.tree.map(lambda leaf: leaf.repeat(rows, axis=0), first))
            self.by_rows[rows] = self._index.added_to_spec(spec, rows)
        return self.by_rows[rows]

    def _by_trial(self, rows: Any) -> Any:
        count = len(jax.tree.leaves(rows)[0])
        return spec_of(self._batcher.batch_of(rows, np.ones(count, bool)))

    def of_batch(self, rows: int) -> Any:
        """The spec of a whole batch, as the host gives it."""
        spec = self.of_rows(rows)
        if self._microbatches is None:
            return spec
        zeros = jax.tree.map(lambda s: np.broadcast_to(np.zeros((), bool), s.shape), spec)
        shapes = jax.tree.map(np.shape, split(zeros, rows, self._microbatches))
        return jax.tree.map(lambda s, n: jax.ShapeDtypeStruct(n, s.dtype), spec, shapes)

    def num_bytes(self, rows: int) -> int:
        """The size of a batch of so many rows, texts not counted."""
        return sum(
            leaf.dtype.itemsize * math.prod(leaf.shape)
            for leaf in jax.tree.leaves(self.of_rows(rows))
            if isinstance(leaf.dtype, np.dtype) and not is_text(leaf.dtype)
        )


def _refused(transforms: Sequence[BoundTransform], spec: Spec, error: Exception) -> None:
    with contextlib.suppress(SpecUnknown):
        for bound in transforms:
            try:
                spec = spec_after(bound.transform, bound.name, spec, try_zeros=False)
            except ValueError as said:
                raise said from error


def _with_texts(spec: Spec) -> Spec:
    """The spec with a text in place of each ragged leaf."""
    text = jax.ShapeDtypeStruct((), np.dtype(object))
    return jax.tree.map(lambda s: text if None in s.shape else s, spec)


def split(batch: Any, rows: int, parts: int) -> Any:
    """The batch as microbatches: a leading axis over them, on every leaf."""
    for name, leaf in named_leaves(batch):
        if getattr(leaf, "shape", ())[:1] != (rows,):
            raise ValueError(
                f"leaf {name!r} has no row for each of the {rows} records of a batch, so it "
                "cannot be cut into microbatches: leave out microbatches, or that leaf"
            )
    return jax.tree.map(lambda x: x.reshape(parts, rows // parts, *x.shape[1:]), batch)
