"""A source whose records are packed rows of another source's records."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loader.records.digest import content_key, digest
from loader.records.integers import Int64s, refuse_outside
from loader.records.spec import Spec
from loader.sources.as_source import as_source
from loader.sources.packing.packed_rows import (
    checked_padding,
    fill_rows,
    leaf_names,
    packed_leaves,
    packed_spec,
    padding_of,
    token_counts,
)
from loader.sources.packing.row_plan import Fit, Long, checked_lengths, plan_rows
from loader.sources.reading import fingerprint, knows_spec, locate, read_rows, varies_by_epoch
from loader.sources.source import Source

_RECORDS_NAMED = 4


class Packed(Source):
    """Records of different lengths, several to a row of `row_length` tokens.

    `lengths` are those of the records (`index_lengths(source)`); from them alone it is planned, at
    once, which records share a row. Record i is row i: a dict of `leaf`, or of each of several
    leaves that are of the same length in a record, and of `segment_ids` and `positions`, as
    `packed_rows.py` says. A record that is a bare array becomes the leaf. All other leaves are
    dropped. Records of length zero are in no row. After the last token comes `pad_value`, one for
    all leaves or `{leaf: value}`; masks are False there. Rows are the same in every epoch.
    """

    owned_rows = True
    made_of_sources = True

    def __init__(
        self,
        source: Any,
        lengths: npt.ArrayLike,
        row_length: int,
        seed: int = 0,
        *,
        leaf: str | Sequence[str] = "tokens",
        fit: Fit = "best",
        long: Long = "refuse",
        pad_value: Any = 0,
    ) -> None:
        self._source = as_source(source)
        refuse_varying(self._source)
        self._lengths = checked_lengths(lengths)
        if len(self._lengths) != len(self._source):
            raise ValueError(
                f"there are {len(self._lengths)} lengths and {len(self._source)} records: give "
                "index_lengths(source) of this very source"
            )
        self._leaves = leaf_names(leaf)
        self._plan = plan_rows(self._lengths, row_length, seed, fit, long)
        if len(self._plan) == 0:
            raise ValueError("all records have length 0: there is nothing to pack")
        self._pad_value = checked_padding(pad_value, self._leaves)
        packing = [self._plan.row_length, int(seed), fit, long]
        self._settings = [*packing, self._pad_value, self._leaves]
        if knows_spec(self._source):  # only then is it known without reading
            self.record_spec = self._record_spec
            for name in self._leaves:
                padding_of(name, self._record_spec()[name].dtype, self._pad_value)

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return super().__getitem__(index + len(self) if index < 0 else index)

    def gather(self, indices: Int64s) -> dict[str, np.ndarray]:
        refuse_outside(indices, len(self), "rows")
        return fill_rows(self._plan, indices, self._read, self._pad_value)

    def _read(self, records: Int64s) -> dict[str, np.ndarray]:
        rows, there = read_rows(self._source, records, ragged=True)
        if there is not None and not there.all():
            name = locate(self._source, int(records[~there][0]))
            raise ValueError(
                f"record {name} is filtered out (it is None) and is to be packed: give it the "
                "length 0, as index_lengths does, which leaves it out"
            )
        leaves = packed_leaves(rows, self._leaves)
        for name, leaf in leaves.items():
            counts = token_counts(name, leaf)
            wrong = np.flatnonzero(counts != self._lengths[records])
            if wrong.size:
                record = int(records[wrong[0]])
                raise ValueError(
                    f"leaf {name!r} of record {locate(self._source, record)} has "
                    f"{counts[wrong[0]]} tokens where lengths say {self._lengths[record]}: the "
                    "data has changed since; index it again, index_lengths(source, refresh=True) "
                    "if there is a cache"
                )
        return leaves

    def _record_spec(self) -> Spec:
        return packed_spec(self._source.record_spec(), self._leaves, self._plan.row_length)

    @property
    def fraction_real(self) -> float:
        """Of all places in the rows, the part that holds a token."""
        return self._plan.fraction_real

    def fingerprint(self) -> dict[str, Any]:
        inner = fingerprint(self._source)
        before = [inner[name] for name in ("pack", "pack.lengths") if name in inner]
        lengths = content_key((before and digest(before), self._lengths))
        return {**inner, "pack": self._settings, "pack.lengths": lengths}

    def record_numbers(self, indices: Int64s) -> dict[str, Any]:
        raise ValueError(
            "with_index has no meaning for Packed: a row holds several records. To know them, give "
            "each record a leaf with its number for every token, and pack it too: "
            "Packed(..., leaf=['tokens', 'number'])"
        )

    def locate(self, row: int) -> str:
        """The records that are in this row."""
        pieces, _ = self._plan.pieces(np.array([row]))
        records = self._plan.record_of[pieces].tolist()
        names = [f"record {locate(self._source, record)}" for record in records[:_RECORDS_NAMED]]
        more = len(records) - len(names)
        return f"{', '.join(names)}{f' and {more} more' if more else ''}"

    def __repr__(self) -> str:
        return f"Packed({self._source!r}, {len(self)} rows of {self._plan.row_length})"


def refuse_varying(source: Any) -> None:
    """Raise `ValueError` for a source whose records, and with them their lengths, may change."""
    if varies_by_epoch(source):
        raise ValueError(
            f"{source!r} may give other records in each epoch, and lengths hold for one: give the "
            "source that a grain.MapDataset is made from; pack the components of a Mixture, and "
            "mix what is packed"
        )
