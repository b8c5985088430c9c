"""A pass over some records of a source, which keeps what it has found block by block."""

import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import numpy as np

from loader.records.integers import Int64s
from loader.records.work import Workers
from loader.sources.packing.kept_blocks import Block, Part
from loader.sources.packing.packed_rows import packed_leaves, token_counts
from loader.sources.packing.tokens_file import TokensFile
from loader.sources.pieces import Pieces
from loader.sources.reading import read_rows

_RECORDS_CHECKED = 4  # of a block that an earlier process has left
# A block is closed when it is as large as this, or has taken as long: so much is lost by a kill.
BLOCK_BYTES = 2**27
BLOCK_S = 20.0

#: What is found of some records: an array for each, or one for all.
Found = Callable[[Any, str, Int64s], list[np.ndarray]]


def tokens_of(source: Any, leaf: str, records: Int64s) -> list[np.ndarray]:
    """The leaf of each record; empty for one that is None."""
    tokens = [np.empty(0)] * len(records)
    rows, there = read_rows(source, records, ragged=True)
    if rows is not None:
        (values,) = packed_leaves(rows, [leaf]).values()
        token_counts(leaf, values)  # which refuses what is not tokens
        places = range(len(records)) if there is None else np.flatnonzero(there).tolist()
        for place, value in zip(places, values, strict=True):
            tokens[place] = value
    return tokens


def lengths_of(source: Any, leaf: str, records: Int64s) -> list[np.ndarray]:
    """The lengths of the records, in one array; 0 for one that is None."""
    lengths = np.zeros(len(records), np.int64)
    rows, there = read_rows(source, records, ragged=True)
    if rows is not None:
        (values,) = packed_leaves(rows, [leaf]).values()
        lengths[slice(None) if there is None else there] = token_counts(leaf, values)
    return [lengths]


def found_blocks(
    source: Any,
    leaf: str,
    found: Found,
    records: range,
    workers: Workers | None,
    progress: bool | None,
) -> Generator[tuple[int, int, list[np.ndarray]], None, None]:
    """What is found of the records, block by block: (first, stop, arrays). Close it."""
    first, arrays, size, began = records.start, [], 0, time.monotonic()
    pieces = Pieces(source, found, {"leaf": leaf}, records)
    with contextlib.closing(pieces.found("lengths of records", workers, progress)) as all_found:
        for piece, new in all_found:
            arrays += new
            size += sum(array.nbytes for array in new)
            late = time.monotonic() - began >= BLOCK_S
            if piece.stop == records.stop or size >= BLOCK_BYTES or late:
                yield first, piece.stop, arrays
                first, arrays, size, began = piece.stop, [], 0, time.monotonic()


def run(
    source: Any,
    leaf: str,
    found: Found,
    part: Part,
    workers: Workers | None,
    progress: bool | None,
    *,
    keep_last: bool,
) -> Iterator[np.ndarray]:
    """What is found of all records of a part; when this returns, its blocks are kept.

    What an earlier process has left is not read from the source again. The last block may stay in
    memory: if all is written to a file at once, it need not be kept.
    """
    blocks, last = _left(source, leaf, found, part), []
    rest = range(blocks[-1].stop if blocks else part.records.start, part.records.stop)
    passed = found_blocks(source, leaf, found, rest, workers, progress)
    with contextlib.closing(passed):
        for first, stop, arrays in passed:
            if stop == rest.stop and not keep_last:
                last = arrays
            else:
                blocks.append(part.keep(first, stop, arrays))
    return itertools.chain(arrays_of(blocks), last)


def arrays_of(blocks: Iterable[Block]) -> Iterator[np.ndarray]:
    """What was found, from the files: one is open at a time."""
    return itertools.chain.from_iterable(map(Block.arrays, blocks))


def _left(source: Any, leaf: str, found: Found, part: Part) -> list[Block]:
    """The blocks that an earlier process has left, if they are of this data; else none are left."""
    blocks = part.blocks()
    if part.is_of_other_data() or not all(is_true(source, leaf, found, b) for b in blocks):
        part.forget()
        return []
    return blocks


def is_true(source: Any, leaf: str, found: Found, block: Block) -> bool:
    """Whether a few records of a block are as they were."""
    places = spread(np.arange(block.stop - block.first), _RECORDS_CHECKED)
    if found is lengths_of:
        then = [np.concatenate(block.arrays())[places]]
    else:
        then = TokensFile(block.path).of(places)
    now = found(source, leaf, block.first + places)
    return all(np.array_equal(a, b) for a, b in zip(now, then, strict=True))


def spread(values: Int64s, most: int) -> Int64s:
    """At most so many of these, evenly spread."""
    return values[:: -(-len(values) // most) or 1]
