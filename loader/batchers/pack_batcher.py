"""The batcher that packs records of different lengths, for iterators."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from flax import nnx

from loader.batchers.pad_batcher import PadBatcher
from loader.modules.structural import StructuralConfig
from loader.records.integers import Int64s
from loader.records.spec import Spec
from loader.records.stacking import stack
from loader.sources.packing.packed_rows import (
    SEGMENT_IDS,
    checked_padding,
    fill_rows,
    leaf_names,
    packed_leaves,
    packed_spec,
    token_counts,
)
from loader.sources.packing.row_plan import Fit, Long, checked_settings, plan_rows, refuse_long


class PackBatcher(PadBatcher):
    """Packs a window of records at a time into rows of `row_length` tokens, and batches the rows.

    A window is as many records as have the tokens of `rows_window` rows, and is kept in memory;
    larger ones make fuller rows (log-normal lengths, median 200, in rows of 2048: 95 % real with a
    window of 16, 98.8 % with 64, 99.6 % with 256). Batches hold what `Packed` gives and
    `valid_mask`; other leaves than `leaf` are dropped. It works on iterators, through `process`;
    for a `DataLoader` there is `Packed`, which packs over the whole source.
    """

    instead_in_a_loader: ClassVar[str | None] = (
        "DataLoader(Packed(source, index_lengths(source), row_length), batch_size=...)"
    )

    def __init__(
        self,
        row_length: int,
        *,
        rows_window: int = 256,
        leaf: str | Sequence[str] = "tokens",
        fit: Fit = "best",
        long: Long = "refuse",
        pad_value: Any = 0,
        config: StructuralConfig | None = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(config, rngs=rngs, name=name)
        if type(rows_window) is not int or rows_window < 1:
            raise ValueError(f"rows_window must be an int of at least 1, got {rows_window!r}")
        self.row_length, _ = checked_settings(row_length, 0, fit, long)
        self.rows_window = rows_window
        self.leaf = leaf_names(leaf)
        self.fit: Fit = fit
        self.long: Long = long
        self.pad_value = checked_padding(pad_value, self.leaf)

    def _batches(self, elements: Iterator[Any], size: int, drop_remainder: bool) -> Iterator[Any]:
        rows: dict[str, np.ndarray] = {}
        for packed in self._packed(elements):
            if rows:
                packed = {key: np.concatenate([rows[key], leaf]) for key, leaf in packed.items()}
            whole = len(packed[SEGMENT_IDS]) // size * size
            for start in range(0, whole, size):
                batch = {key: leaf[start : start + size] for key, leaf in packed.items()}
                yield self.collate(batch, np.ones(size, bool))
            rows = {key: leaf[whole:] for key, leaf in packed.items()}
        left = len(rows[SEGMENT_IDS]) if rows else 0
        if left and not drop_remainder:
            self.count(skipped=size - left)
            yield self.collate(rows, np.arange(size) < left)

    def _packed(self, elements: Iterator[Any]) -> Iterator[dict[str, np.ndarray]]:
        """The packed rows of each window."""
        first = 0
        for number, window in enumerate(self._windows(elements)):
            leaves = stack(window, range(first, first + len(window)), ragged=True)
            lengths = token_counts(self.leaf[0], leaves[self.leaf[0]])
            if self.long == "refuse":  # here, where records are counted from the first of all
                refuse_long(lengths, self.row_length, first)
            plan = plan_rows(lengths, self.row_length, number, self.fit, self.long)
            self.count(applied=len(window))
            first += len(window)
            if len(plan):
                taking = functools.partial(_taken, leaves)
                yield fill_rows(plan, np.arange(len(plan)), taking, self.pad_value)

    def _windows(self, elements: Iterator[Any]) -> Iterator[list[dict[str, np.ndarray]]]:
        window: list[dict[str, np.ndarray]] = []
        tokens = 0
        for number, record in enumerate(elements):
            leaves = packed_leaves(stack([record], [number]), self.leaf)
            lengths = {name: int(token_counts(name, leaf)[0]) for name, leaf in leaves.items()}
            if len(set(lengths.values())) > 1:
                raise ValueError(
                    f"record {number} has leaves of different lengths, {lengths}: leaves that are "
                    "packed together must be of one length in each record"
                )
            window.append({name: leaf[0] for name, leaf in leaves.items()})
            tokens += lengths[self.leaf[0]]
            if tokens >= self.rows_window * self.row_length:
                yield window
                window, tokens = [], 0
        if window:
            yield window

    def batch_spec(self, element_spec: Spec, *, batch_size: int) -> Any:
        spec = packed_spec(element_spec, self.leaf, self.row_length)
        return super().batch_spec(spec, batch_size=batch_size)


def _taken(leaves: dict[str, np.ndarray], records: Int64s) -> dict[str, np.ndarray]:
    return {name: leaf[records] for name, leaf in leaves.items()}
