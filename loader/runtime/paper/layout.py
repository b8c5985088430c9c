"""Where the records of a source are stored, in numbers: pieces, their sizes, and who needs which.

A *group* is some records that are read together: those of one batch on one host. Groups have
numbers, and of many records at once each comes with that of its group, in ascending order.
"""

import functools
from typing import Any

import jax
import numpy as np

from loader.records.integers import Int64s
from loader.sources.reading import (
    blocks,
    knows_spec,
    record_spec,
    stored_pieces,
    stored_spans,
    varies_by_epoch,
)
from loader.sources.source import in_words
from loader.sources.storage.stored_files import GAP_BYTES, PIECE_BYTES, StoredFiles

_ONE = np.zeros(1, np.int64)


class Layout:
    """The pieces in which the data of a source is stored, numbered from 0."""

    sizes: Int64s
    """The bytes of each piece."""
    far: bool
    """Whether to read it takes requests."""
    sizes_are_known: bool = True
    """Whether they are not only what the shape of a record says."""
    cache_bytes: int | None = None
    """What the source's cache holds; None if it has none."""

    def pieces(self, records: Int64s, groups: Int64s) -> tuple[Int64s, Int64s]:
        """Of each group the pieces that it needs, each once: pairs, in ascending order."""
        raise NotImplementedError

    def requests(self, records: Int64s, groups: Int64s) -> tuple[Int64s, Int64s, Int64s] | None:
        """What is asked for without a cache: of each span that is read the group, the number of
        requests and the bytes. None where this is not known."""
        return None

    def between(self, firsts: Int64s, lasts: Int64s) -> Int64s:
        """The pieces of all records from each of these first ones to its last one."""
        raise NotImplementedError

    @property
    def num_bytes(self) -> int:
        """All of the data."""
        return int(self.sizes.sum())


class SpanLayout(Layout):
    """Of a source in which a record is a span of a file: known for many of them at once."""

    def __init__(self, source: Any, files: StoredFiles) -> None:
        self._source, self._files = source, files
        self.far = files.far
        self.cache_bytes = None if files.cache is None else files.cache.size

    @functools.cached_property
    def sizes(self) -> Int64s:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._files.piece_sizes  # looked up when it is asked for: there may be millions

    def pieces(self, records: Int64s, groups: Int64s) -> tuple[Int64s, Int64s]:
        number, pieces, _, _ = self._files.parts_of(*self._spans(records))
        return _pairs(groups[number], pieces, len(self.sizes))

    def between(self, firsts: Int64s, lasts: Int64s) -> Int64s:
        begins, ends = np.full((2, len(firsts)), -1)
        number, pieces, _, _ = self._files.parts_of(*self._spans(firsts))
        begins[number[::-1]] = pieces[::-1]  # of several the first
        number, pieces, _, _ = self._files.parts_of(*self._spans(lasts))
        ends[number] = pieces  # and here the last
        some = (begins >= 0) & (ends >= 0)  # a record without a byte is in none
        return np.unique(_runs(begins[some], ends[some] + 1 - begins[some]))

    def requests(self, records: Int64s, groups: Int64s) -> tuple[Int64s, Int64s, Int64s] | None:
        if self._files.whole:  # by a reader of their own
            return None
        files, begins, ends = self._spans(records)
        order = np.lexsort((begins, files, groups))
        groups, files, begins, ends = (each[order] for each in (groups, files, begins, ends))
        # Spans are as long as one another or do not overlap: what begins last ends last.
        near = begins[1:] <= ends[:-1] + GAP_BYTES
        joined = near & (np.diff(groups) == 0) & (np.diff(files) == 0)
        firsts = np.flatnonzero(np.append(True, ~joined))
        lengths = ends[np.append(firsts[1:], len(groups)) - 1] - begins[firsts]
        return groups[firsts], -(-lengths // PIECE_BYTES), lengths

    def _spans(self, records: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        found = stored_spans(self._source, records)
        assert found is not None
        return found[1:]


class BlockLayout(Layout):
    """Of a source that says its blocks alone, such as chunks: each is a piece."""

    far = True
    sizes_are_known = False

    def __init__(self, source: Any, starts: Int64s) -> None:
        self._starts = starts
        leaves = jax.tree.leaves(record_spec(source)) if knows_spec(source) else []
        record = sum(leaf.dtype.itemsize * int(np.prod(leaf.shape)) for leaf in leaves)
        self.sizes = np.diff(starts, append=len(source)) * max(1, record)
        self.cache_bytes = getattr(source, "cache_bytes", None)

    def pieces(self, records: Int64s, groups: Int64s) -> tuple[Int64s, Int64s]:
        pieces = np.searchsorted(self._starts, records, side="right") - 1
        return _pairs(groups, pieces, len(self.sizes))

    def between(self, firsts: Int64s, lasts: Int64s) -> Int64s:
        begins, ends = (np.searchsorted(self._starts, n, side="right") - 1 for n in (firsts, lasts))
        return np.unique(_runs(begins, ends + 1 - begins))


class AskedLayout(Layout):
    """Of any other source that has pieces: it is asked for those of each group."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._files: dict[int, tuple[StoredFiles, int]] = {}  # with the number of their first piece
        self.sizes = np.zeros(0, np.int64)
        # Some records, so that the files of all parts of it are seen.
        self._asked(np.unique(np.linspace(0, len(source) - 1, 1000).astype(np.int64)))
        self.far = any(files.far for files, _ in self._files.values())
        caches = [files.cache for files, _ in self._files.values()]
        if caches and all(cache is not None for cache in caches):
            self.cache_bytes = sum({cache.path: cache.size for cache in caches}.values())

    def pieces(self, records: Int64s, groups: Int64s) -> tuple[Int64s, Int64s]:
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        found = [self._asked(part) for part in np.split(records, starts[1:])] if starts.size else []
        counts = [len(pieces) for pieces in found]
        return np.repeat(groups[starts], counts), np.concatenate([*found, np.zeros(0, np.int64)])

    def _asked(self, records: Int64s) -> Int64s:
        found = [np.zeros(0, np.int64)]
        for files, pieces in stored_pieces(self._source, records):
            if id(files) not in self._files:
                self._files[id(files)] = files, len(self.sizes)
                self.sizes = np.concatenate([self.sizes, files.piece_sizes])
            found.append(pieces + self._files[id(files)][1])
        return np.sort(np.concatenate(found))


def layout_of(source: Any) -> Layout | None:
    """Where a source's records are stored; None if it does not say."""
    spans = None if varies_by_epoch(source) else stored_spans(source, _ONE)
    if spans is not None:
        return SpanLayout(source, spans[0])
    asked = AskedLayout(source)
    if len(asked.sizes):
        return asked
    starts = blocks(source)
    return None if starts is None else BlockLayout(source, starts)


def refuse_unknown(source: Any, layout: Layout | None) -> Layout:
    """Raise `ValueError` where nothing is known of how the data is stored."""
    if layout is None:
        raise ValueError(
            f"{in_words(source)} does not say where its records are stored, so nothing can be said "
            "of reading it: give a source of files (ArrayRecordSource, TextLinesSource, "
            "FilesSource), of chunks (TensorStoreSource), or a method blocks() to yours"
        )
    return layout


def _runs(firsts: Int64s, counts: Int64s) -> Int64s:
    """So many numbers from each of these on."""
    steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(firsts, counts) + steps


def _pairs(groups: Int64s, pieces: Int64s, num_pieces: int) -> tuple[Int64s, Int64s]:
    found = np.unique(groups * max(1, num_pieces) + pieces)
    return np.divmod(found, max(1, num_pieces))
