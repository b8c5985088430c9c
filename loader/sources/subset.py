"""Some records of another source: one part to train on, another to hold out."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from loader.records.digest import digest
from loader.records.integers import Int64s, checked_index, refuse_outside
from loader.records.spec import Spec
from loader.sources.as_source import as_source
from loader.sources.reading import (
    blocks,
    fingerprint,
    locate,
    read_rows,
    record_numbers,
    record_spec,
    stored_pieces,
    stored_spans,
    thread_safety,
    varies_by_epoch,
)
from loader.sources.source import Source, in_words
from loader.sources.storage.stored_files import StoredPieces, StoredSpans


class Subset(Source):
    """The records of a source that have these numbers, in this order.

    `indices` are integers: `np.flatnonzero(mask)`, or a part of a permutation. A negative one is
    refused. Record `i` of the subset is record `indices[i]` of the source.
    """

    made_of_sources = True

    def __init__(self, source: Any, indices: Sequence[int] | np.ndarray) -> None:
        self._source = as_source(source)
        numbers = np.asarray(indices)
        if numbers.ndim != 1 or not numbers.size or numbers.dtype.kind not in "iu":
            raise ValueError(
                "indices must be numbers of records, at least one, such as np.flatnonzero(mask), "
                f"got {numbers.dtype}{list(numbers.shape)}"
            )
        refuse_records_that_vary(self._source)
        self._indices = numbers.astype(np.int64)
        refuse_outside(self._indices, len(self._source))
        self._indices.setflags(write=False)
        self.thread_safe = thread_safety(self._source)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Any:
        return self._source[int(self._indices[checked_index(index, len(self))])]

    def read_rows(self, indices: Int64s, *, ragged: bool) -> tuple[Any, np.ndarray | None]:
        refuse_outside(indices, len(self))
        return read_rows(self._source, self._indices[indices], ragged=ragged)

    def record_spec(self) -> Spec:
        return record_spec(self._source)

    def fingerprint(self) -> dict[str, Any]:
        inner = fingerprint(self._source)
        before = inner.get("subset", [])  # of a subset of a subset
        return {**inner, "length": len(self), "subset": [*before, digest(self._indices)]}

    def stored_spans(self, indices: Int64s) -> StoredSpans | None:
        return stored_spans(self._source, self._indices[indices])

    def blocks(self) -> Int64s | None:
        """What is left of the source's blocks; None where a record comes before an earlier one."""
        starts = blocks(self._source)
        if starts is None or (np.diff(self._indices) < 0).any():
            return None
        of = np.searchsorted(starts, self._indices, side="right")
        return np.flatnonzero(np.diff(of, prepend=0))

    def stored_pieces(self, indices: Int64s) -> StoredPieces:
        return stored_pieces(self._source, self._indices[indices])

    def record_numbers(self, indices: Int64s) -> dict[str, Any]:
        """The numbers within the subset; refused where the source has none."""
        record_numbers(self._source, np.zeros(0, np.int64))
        return {"": indices}

    def locate(self, record: int) -> str:
        return f"of the source, record {locate(self._source, int(self._indices[record]))}"

    def __repr__(self) -> str:
        return f"Subset({len(self):,} of {in_words(self._source)})"


def refuse_records_that_vary(source: Any) -> None:
    """Raise `ValueError` for a source whose records are others in each epoch."""
    if varies_by_epoch(source):
        raise ValueError(
            "a source whose records may change from epoch to epoch has no fixed records to choose "
            "from: take subsets of the components of a Mixture, or of the source that a "
            "grain.MapDataset is made from"
        )
