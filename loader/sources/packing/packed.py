"""A source whose records are packed rows of another source's records."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from loader.records.digest import content_key, digest
from loader.records.integers import Int64s, refuse_outside
from loader.records.spec import Spec
from loader.sources.as_source import as_source
from loader.sources.packing.concat_plan import concat_rows
from loader.sources.packing.fit_plan import Fit, Long, fit_rows
from loader.sources.packing.packed_rows import (
    Positions,
    checked_padding,
    fill_rows,
    leaf_names,
    packed_leaves,
    packed_spec,
    padding_of,
    token_counts,
)
from loader.sources.packing.read_cost import ReadCost
from loader.sources.packing.row_plan import Ints, RowPlan, checked_lengths
from loader.sources.packing.tokens_file import TokensFile
from loader.sources.reading import (
    fingerprint,
    knows_spec,
    locate,
    read_rows,
    stored_pieces,
    thread_safety,
    varies_by_epoch,
)
from loader.sources.recent_records import RecentRecords
from loader.sources.source import Source, in_words
from loader.sources.storage.stored_files import StoredPieces

Mode = Literal["fit", "concat"]

_FIELDS = ("pack", "pack.lengths", "pack.positions")  # of the fingerprint
_RECORDS_NAMED = 4
_TOKEN_BYTES = 4  # most often


class Packed(Source):
    """Records of different lengths, several to a row of `row_length` tokens.

    `lengths` are those of the records (`index_lengths(source)`); from them alone it is planned, at
    once, which records share a row. By default (`mode="fit"`) a record is whole in one row, each
    where it fits best (`fit`), at most `most_segments` to a row; one that is longer than a row is
    refused or split (`long`). With `mode="concat"` the records run on over the rows, in the order
    of the source, each cut where a row ends, and only the last row is padded.

    Record i is row i: a dict of `leaf`, or of each of several leaves that are of the same length in
    a record, and of `segment_ids` and `positions`. Positions count from 0 in each piece of a
    record; with `positions="record"` they go on over the pieces. A record that is a bare array
    becomes the leaf. All other leaves are dropped. Records of length zero are in no row. After the
    last token comes `pad_value`, one for all leaves or `{leaf: value}`; masks are False there. Rows
    are the same in every epoch.

    A row needs whole records, also where it holds a piece of one. So the records read last are
    kept, up to `cache_bytes`. Where tokens are made as records are read, let `index_lengths(source,
    tokens="tokens.bin")` keep them, and give `tokens="tokens.bin"` here too: rows are then filled
    from that file, and the source is asked only what it is. A copy of it may be in a store, and
    `cache` keeps pieces of it on local disk. None of this changes a row.
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
        mode: Mode = "fit",
        fit: Fit = "best",
        long: Long = "refuse",
        most_segments: int | None = None,
        positions: Positions = "row",
        pad_value: Any = 0,
        tokens: str | os.PathLike[str] | None = None,
        cache: Any = None,
        cache_bytes: int = 2**28,
    ) -> None:
        if cache is not None and tokens is None:
            raise ValueError(
                "cache= is for a file of tokens, and tokens is None: give the cache to the source"
            )
        self._source = as_source(source)
        refuse_varying(self._source)
        self.thread_safe = thread_safety(self._source) and "in turns"
        self._lengths = checked_lengths(lengths)
        if len(self._lengths) != len(self._source):
            raise ValueError(
                f"there are {len(self._lengths)} lengths and {len(self._source)} records: give "
                "index_lengths(source) of this very source"
            )
        self._leaves = leaf_names(leaf)
        how = {"seed": seed, "fit": fit, "long": long, "most_segments": most_segments}
        self._plan, packing = _planned(self._lengths, row_length, mode, how)
        self._positions: Positions = _one_of("positions", positions, Positions)
        self._pad_value = checked_padding(pad_value, self._leaves)
        self._settings = [*packing, self._pad_value, self._leaves]
        self._recent = RecentRecords(cache_bytes)
        num_bytes = _TOKEN_BYTES * len(self._leaves) * int(self._lengths.sum(dtype=np.int64))
        self._cost = ReadCost(kept=num_bytes <= cache_bytes)
        self._tokens = None if tokens is None else self._opened(tokens, cache)
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
        self._cost.given += len(indices) * self._plan.row_length
        return fill_rows(self._plan, indices, self._read, self._pad_value, self._positions)

    def _opened(self, path: str | os.PathLike[str], cache: Any) -> TokensFile:
        if len(self._leaves) > 1:
            raise ValueError(
                f"a file of tokens holds one leaf, and {[*self._leaves]} are to be packed: leave "
                "out tokens, or pack one leaf"
            )
        file = TokensFile(path, cache=cache)
        for leaf in self._leaves:
            file.refuse_others(data_key(self._source, leaf), self._lengths)
        return file

    def _read(self, records: Int64s) -> Mapping[str, Sequence[np.ndarray]]:
        """The packed leaves of these records: from the file, from those read last, or read."""
        if self._tokens is not None:
            return {self._leaves[0]: self._tokens.of(records)}
        found = self._recent.records(records, self._read_anew)
        return dict(zip(self._leaves, zip(*found, strict=True), strict=True))

    def _read_anew(self, records: Int64s) -> list[tuple[np.ndarray, ...]]:
        with self._cost.of(int(self._lengths[records].sum(dtype=np.int64))):
            leaves = self._read_leaves(records)
        return list(zip(*leaves.values(), strict=True))

    def _read_leaves(self, records: Int64s) -> dict[str, np.ndarray]:
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
        return self._plan.num_tokens / (len(self) * self._plan.row_length)

    def fingerprint(self) -> dict[str, Any]:
        inner = fingerprint(self._source)
        before = [inner[name] for name in _FIELDS if name in inner]
        lengths = content_key((before and digest(before), self._lengths))
        own: dict[str, Any] = {"pack": self._settings, "pack.lengths": lengths}
        # Only where records are cut, and never of positions="record": until they were counted by
        # rows there was no such field, and they went on over the pieces of a record.
        if self._plan.cuts and self._positions == "row":
            own["pack.positions"] = "from 0 in each row; positions='record' goes on over pieces"
        return {**inner, **own}

    def stored_pieces(self, indices: Int64s) -> StoredPieces:
        records = np.unique(self._plan.pieces(indices).record)
        if self._tokens is not None:
            return self._tokens.stored_pieces(records)
        return stored_pieces(self._source, records)

    def record_numbers(self, indices: Int64s) -> dict[str, Any]:
        raise ValueError(
            "with_index has no meaning for Packed: a row holds several records. To know them, give "
            "each record a leaf with its number for every token, and pack it too: "
            "Packed(..., leaf=['tokens', 'number'])"
        )

    def locate(self, row: int) -> str:
        """The records that are in this row."""
        records = self._plan.pieces(np.array([row])).record.tolist()
        names = [f"record {locate(self._source, record)}" for record in records[:_RECORDS_NAMED]]
        more = len(records) - len(names)
        return f"{', '.join(names)}{f' and {more} more' if more else ''}"

    def __repr__(self) -> str:
        return f"Packed({in_words(self._source)}, {len(self)} rows of {self._plan.row_length})"


def _planned(
    lengths: Ints, row_length: int, mode: Mode, how: dict[str, Any]
) -> tuple[RowPlan, list[Any]]:
    """The plan, and what has decided it, besides the lengths."""
    if _one_of("mode", mode, Mode) == "concat":
        usual = {"seed": 0, "fit": "best", "long": "refuse", "most_segments": None}
        if others := [name for name, value in how.items() if value != usual[name]]:
            raise ValueError(
                f"{others[0]} has no effect with mode='concat', which puts records into rows in "
                "the order of the source and cuts them where a row ends: leave it out. To shuffle "
                "records first, give Subset(source, Shuffle(seed).records(np.arange(n), n))"
            )
        plan: RowPlan = concat_rows(lengths, row_length)
        packing = [plan.row_length, mode]
    else:
        plan = fit_rows(lengths, row_length, **how)
        most = how["most_segments"]
        packing = [plan.row_length, int(how["seed"]), how["fit"], how["long"]]
        packing += [] if most is None else [{"most_segments": int(most)}]
    if len(plan) == 0:
        raise ValueError("all records have length 0: there is nothing to pack")
    return plan, packing


def _one_of(name: str, value: Any, choices: Any) -> Any:
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {list(get_args(choices))}, got {value!r}")
    return value


def data_key(source: Any, leaf: str) -> str:
    """What tells the tokens of this source from those of other data, or another tokenizer."""
    return digest({"source": fingerprint(source), "leaf": leaf, "records": len(source)})


def refuse_varying(source: Any) -> None:
    """Raise `ValueError` for a source whose records, and with them their lengths, may change."""
    if varies_by_epoch(source):
        raise ValueError(
            f"{in_words(source)} may give other records in each epoch, and lengths hold for one: "
            "of a grain.MapDataset that does not, say so, GrainSource(dataset, "
            "varies_by_epoch=False), else give the source it is made from; pack the components of "
            "a Mixture, and mix what is packed"
        )
