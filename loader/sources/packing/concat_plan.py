"""Records that run on over the rows: one after the other, cut where a row ends.

Row i holds the tokens `i * row_length` up to `(i + 1) * row_length` of all records together, in the
order of their numbers. Only the last row is padded. A plan is where each record begins among all
tokens: 8 bytes for each record, one sum to make. A row is found in it by bisection.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from loader.records.integers import Int64s
from loader.sources.packing.row_plan import Pieces, checked_lengths, checked_row_length, ranges


@dataclasses.dataclass(frozen=True, eq=False)
class ConcatPlan:
    """Record i is the tokens `bounds[i]` up to `bounds[i + 1]` of all."""

    row_length: int
    bounds: Int64s
    cuts: bool = True

    def __len__(self) -> int:
        return -(-self.num_tokens // self.row_length)

    @property
    def num_tokens(self) -> int:
        return int(self.bounds[-1])

    def pieces(self, rows: Int64s) -> Pieces:
        begin = rows * self.row_length
        end = np.minimum(begin + self.row_length, self.num_tokens)
        # The records of the first and the last token of each row, and all between them.
        first = np.searchsorted(self.bounds, begin, side="right") - 1
        counts = np.searchsorted(self.bounds, end, side="left") - first
        record = ranges(first, counts)
        start = np.maximum(self.bounds[record], np.repeat(begin, counts))
        length = np.minimum(self.bounds[record + 1], np.repeat(end, counts)) - start
        row = np.repeat(np.arange(len(rows)), counts)
        real = length > 0  # a record of length zero takes no place
        record, start, length = record[real], start[real], length[real]
        counts = np.bincount(row[real], minlength=len(rows))
        return Pieces(record, start - self.bounds[record], length, counts)


def concat_rows(lengths: npt.ArrayLike, row_length: int) -> ConcatPlan:
    """A plan that puts all records into rows, one after the other."""
    lengths = checked_lengths(lengths)
    bounds = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return ConcatPlan(checked_row_length(row_length), bounds)
