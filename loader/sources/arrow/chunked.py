"""Rows of a column of Arrow that is in chunks, in memory or mapped into it.

Numbers are taken from all chunks at once. A table of Hugging Face has a chunk for each thousand
rows: going from chunk to chunk would take longer than the copying.
"""

import math
from typing import Any

import jax
import numpy as np

from loader.records.integers import Int64s
from loader.records.memory import empty_rows, take_rows
from loader.sources.arrow.columns import Column, Nothing, columns_of
from loader.sources.arrow.forms import Form, pa, types

_CHUNKS_KEPT = 1024
_MOST_ELEMENTS = 2**60  # numpy has no larger arrays


class ChunkedRows:
    """The rows of one column: a list of leaves, for a struct has several."""

    def __init__(self, name: str, forms: Any, column: Any) -> None:
        self._name, self._forms, self._column = name, forms, column
        self._starts = np.cumsum([0, *(len(chunk) for chunk in column.chunks)])
        self._leaves: list[Form] = jax.tree.leaves(forms)
        self._spread = _spread(forms, column)
        self._kept: dict[int, list[Column]] = {}  # of some chunks
        self._checked = bytearray(column.num_chunks)  # 1 where a chunk was seen to be whole

    @property
    def starts(self) -> Int64s:
        """The first row of each chunk."""
        return self._starts[:-1]

    def rows(self, rows: Int64s) -> list[np.ndarray]:
        """These rows of each leaf, in memory of their own."""
        chunks = np.searchsorted(self._starts, rows, side="right") - 1
        within = rows - self._starts[chunks]
        if self._spread is not None:
            return [self._spread.rows(chunks, within)]
        found = [_empty(form, len(rows)) for form in self._leaves]
        for chunk in np.unique(chunks).tolist():
            places = np.flatnonzero(chunks == chunk)
            for leaf, column in zip(found, self._columns(chunk), strict=True):
                try:
                    leaf[places] = column.rows(within[places])
                except Nothing as error:
                    raise Nothing(error.form, error.row + int(self._starts[chunk])) from error
        return found

    def _columns(self, chunk: int) -> list[Column]:
        if (kept := self._kept.get(chunk)) is None:
            if len(self._kept) >= _CHUNKS_KEPT:
                self._kept = {}  # another thread may still read what is let go
            array = self._column.chunk(chunk)
            if not self._checked[chunk]:  # of a damaged file, what is taken may be out of memory
                array.validate(full=True)
                self._checked[chunk] = 1
            kept = columns_of({self._name: self._forms}, {self._name: array})
            self._kept[chunk] = kept
        return kept


def _empty(form: Form, count: int) -> np.ndarray:
    spec = form.spec
    if isinstance(spec, jax.ShapeDtypeStruct):
        return empty_rows((count, *spec.shape), spec.dtype)
    return np.empty(count, object)


class _Spread:
    """Rows of one shape that are at several places of the memory of this process.

    One array of numpy begins at the first place and ends after the last, with a step between its
    rows that leads to every row of every chunk. What is between chunks may be anything, and is
    never read.
    """

    def __init__(self, chunks: Any, places: list[int], dtype: np.dtype[Any], shape: Any) -> None:
        self._chunks = chunks  # whose memory it is
        size = dtype.itemsize * math.prod(shape)
        base = min(places)
        self._step = math.gcd(size, *(place - base for place in places))
        self._rows = size // self._step
        self._firsts = (np.array(places) - base) // self._step
        end = max(place + size * len(c) for place, c in zip(places, chunks, strict=True))
        self.count = (end - base - size) // self._step + 1
        memory = pa.foreign_buffer(base, end - base, chunks)
        inner = np.empty((1, *shape), dtype).strides[1:]
        self._array = np.ndarray((self.count, *shape), dtype, memory, strides=(self._step, *inner))

    def rows(self, chunks: Int64s, within: Int64s) -> np.ndarray:
        if len(self._chunks) == 1 and self._rows == 1:
            return take_rows(self._array, within)
        return self._array[self._firsts[chunks] + within * self._rows]


def _spread(forms: Any, column: Any) -> _Spread | None:
    """The rows of a column of numbers, all there; None of another column."""
    chunks = list(column.chunks)
    if not isinstance(forms, Form) or forms.kind not in ("number", "fixed") or not len(column):
        return None
    places = [_place(forms, chunk) for chunk in chunks]
    shape = tuple(length or 0 for length in forms.shape)
    known = [place for place in places if place is not None]
    if len(known) < len(places) or any(p % forms.dtype.itemsize for p in known):
        return None
    span = max(known) - min(known) + 1
    if not math.prod(shape) or span * math.prod(shape) > _MOST_ELEMENTS:
        return None
    return _Spread(chunks, known, forms.dtype, shape)


def _place(form: Form, array: Any) -> int | None:
    """Where in memory the values of a chunk begin; None if not as they are, or not all there."""
    array.validate()  # else a damaged file may be read past its end
    first = array.offset
    while types.is_fixed_size_list(array.type):
        if array.null_count:
            return None
        values = array.values
        first = first * array.type.list_size + values.offset
        array = values
    kind = array.type
    plain = types.is_integer(kind) or types.is_floating(kind) or types.is_temporal(kind)
    if not plain or array.null_count or kind.bit_width != 8 * form.dtype.itemsize:
        return None
    return array.buffers()[1].address + first * form.dtype.itemsize
