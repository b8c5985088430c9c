"""Rows of Parquet files, found by their numbers.

A row group is decoded as a whole, whatever is asked of it. So decoded groups are kept for the
reads that follow, and with an order that uses up a group before it goes on, each is decoded once:

    source = ParquetSource("train/*.parquet", columns=["text", "label"])
    order = BlockShuffle(seed=0, window=16)
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from loader.records.digest import content_key
from loader.records.integers import Int64s, checked_int, refuse_outside
from loader.records.memory import empty_rows
from loader.records.spec import Spec
from loader.records.words import bytes_in_words
from loader.sources.arrow.columns import Column, Nothing
from loader.sources.arrow.forms import pa, shown_forms, spec_of_forms
from loader.sources.parquet.decoded_groups import DecodedGroups
from loader.sources.parquet.footers import find_row_groups
from loader.sources.reading import sampled_indices
from loader.sources.source import Source
from loader.sources.storage.paths import Paths, stored_files
from loader.sources.storage.stored_files import StoredPieces
from loader.sources.storage.stores import shown

_SAMPLE_BYTES = 1024
# It is said once that reads are slow, when so much was decoded, in vain.
_MUCH, _IN_VAIN = 4, 16  # times `most_bytes`; rows decoded for each row that was given
_LITTLE_BYTES = 2**20  # are not worth a word


class ParquetSource(Source):
    """Every row of some Parquet files, in the order of the files: a leaf for each column.

    `columns` names those to take. What each becomes is said in `loader/sources/arrow/forms.py` and
    on the page. A row with nothing (null) in a column is refused, unless `nulls` says what is put
    there: `nulls={"age": 0}`. In a list, nothing is filled item by item, and no list is an empty
    one. Decoded row groups are kept in memory within `most_bytes`; one row group more is there
    while it is decoded.
    """

    thread_safe = "in turns"
    owned_rows = True

    def __init__(
        self,
        paths: Paths,
        columns: Sequence[str] | None = None,
        nulls: Mapping[str, Any] | None = None,
        most_bytes: int = 2**29,
        *,
        cache: Any = None,
    ) -> None:
        most_bytes = checked_int("most_bytes", most_bytes, least=0)
        files = stored_files(paths, "Parquet", cache=cache, absolute=True)
        self._nulls = dict(nulls or {})
        groups = find_row_groups(files, columns, self._nulls)
        if not groups.starts[-1]:
            raise ValueError(f"the source is empty: no row in {', '.join(map(shown, files.paths))}")
        self.__setstate__((files, groups, self._nulls, most_bytes))

    def __getstate__(self) -> Any:
        return self._files, self._groups, self._nulls, self._most_bytes

    def __setstate__(self, state: Any) -> None:
        self._files, self._groups, self._nulls, self._most_bytes = state
        self._tree = jax.tree.structure(self._groups.forms)
        self._decoded = DecodedGroups(self._files, self._groups, self._most_bytes)
        self._given, self._said = 0, False  # rows; that reads are slow

    @property
    def paths(self) -> list[str]:
        return self._files.paths

    def __len__(self) -> int:
        return int(self._groups.starts[-1])

    def gather(self, indices: Int64s) -> Any:
        refuse_outside(indices, len(self))
        groups = self._groups_of(indices)
        leaves = [
            empty_rows((len(indices), *s.shape), s.dtype)
            if isinstance(s, jax.ShapeDtypeStruct)
            else np.empty(len(indices), object)
            for s in jax.tree.leaves(self.record_spec())
        ]
        for group, columns in self._decoded.get(np.unique(groups).tolist()):
            places = np.flatnonzero(groups == group)
            rows = indices[places] - self._groups.starts[group]
            for leaf, column in zip(leaves, columns, strict=True):
                leaf[places] = self._rows(group, column, rows)
        self._given += len(indices)
        self._say_if_in_vain()
        return jax.tree.unflatten(self._tree, leaves)

    def _rows(self, group: int, column: Column, rows: Int64s) -> np.ndarray:
        first = int(self._groups.starts[group])
        try:
            return column.rows(rows)
        except Nothing as error:
            record = first + error.row
            raise ValueError(f"record {record} ({self.locate(record)}) {error}") from error
        except (ValueError, pa.ArrowException) as error:
            if len(rows) > 1:  # which of them it is
                for row in rows.tolist():
                    self._rows(group, column, np.array([row]))
            record = first + int(rows[0])
            raise ValueError(
                f"record {record} ({self.locate(record)}) cannot be read: {error}"
            ) from error

    def _groups_of(self, indices: Int64s) -> Int64s:
        return np.searchsorted(self._groups.starts, indices, side="right") - 1

    def _say_if_in_vain(self) -> None:
        done = self._decoded
        much = done.bytes > max(_MUCH * self._most_bytes, _LITTLE_BYTES)
        if self._said or not much or done.rows <= _IN_VAIN * self._given:
            return
        self._said = True
        warnings.warn(
            f"{self} has decoded {done.rows:,} rows ({bytes_in_words(done.bytes)}) "
            f"for {self._given:,} that were asked for: the order is random, and its row groups do "
            f"not fit into most_bytes={self._most_bytes}. Use order=BlockShuffle(seed), which uses "
            "up row groups before it goes on, or give more most_bytes",
            stacklevel=2,
        )

    # What it says of itself.

    def stored_pieces(self, indices: Int64s) -> StoredPieces:
        groups = np.unique(self._groups_of(indices))
        spans = [self._groups.spans_of(group) for group in groups.tolist()]
        files = np.repeat(self._groups.files[groups], [len(own) for own in spans])
        begins, ends = np.concatenate([np.empty((0, 2), np.int64), *spans]).T
        return [(self._files, self._files.pieces(files, begins, ends))]

    def record_spec(self) -> Spec:
        return spec_of_forms(self._groups.forms)

    def blocks(self) -> Int64s:
        """The first row of each row group."""
        return self._groups.starts[:-1]

    def fingerprint(self) -> dict[str, Any]:
        """By the footers, which hold the sizes of all parts, and some bytes of a few row groups."""
        groups = np.unique(self._groups_of(np.array(sampled_indices(len(self)))))
        firsts = [self._groups.spans_of(group)[0] for group in groups.tolist()]
        begins, ends = np.array(firsts).T
        ends = np.minimum(ends, begins + _SAMPLE_BYTES)
        sample = self._files.read(self._groups.files[groups], begins, ends)
        return {
            "files": self._files.names_and_sizes(),
            "leaves": shown_forms(self._groups.forms),
            "nulls": sorted(self._nulls.items()),
            "sample": content_key([self._groups.digest, *map(bytes, sample)]),
        }

    def locate(self, record: int) -> str:
        group = int(self._groups_of(np.array([record]))[0])
        path = shown(self.paths[int(self._groups.files[group])])
        row = record - self._groups.starts[group]
        return f"row {row} of row group {self._groups.numbers[group]} of {path}"

    def __repr__(self) -> str:
        names = [os.path.basename(shown(path)) for path in self.paths[:1]]
        what = names[0] if len(self.paths) == 1 else f"{len(self.paths)} files"
        return f"ParquetSource({what}, {len(self):,} rows of {', '.join(self._groups.forms)})"
