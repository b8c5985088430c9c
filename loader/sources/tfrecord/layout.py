"""Where the features are in many `tf.train.Example`s, found in all of them in step.

Only the usual layout is read here, the one that protobuf libraries write: nothing but what is
expected, and numbers packed. Of an entry that comes twice the last one counts. An example of
another layout is left to `wire.py`.
"""

from collections.abc import Sequence

import numpy as np

from loader.records.integers import Int64s

BYTES, FLOATS, INTS = 1, 2, 3  # the fields of a Feature
_FIRST, _SECOND = 0x0A, 0x12  # tags of a message in field 1, and in field 2
_PAD = 16  # bytes after the data, so that what is read past the end is there
_LONGEST = 2**31


class Layout:
    """Where the features of these names are. A feature that is not usual is at -1."""

    def __init__(self, blobs: Sequence[bytes], names: Sequence[str]) -> None:
        self.blobs = blobs
        lengths = np.array([len(blob) for blob in blobs], np.int64)
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths
        self._data = np.frombuffer(b"".join(blobs) + bytes(_PAD), np.uint8)
        self._begins = {name: np.full(len(blobs), -1) for name in names}
        self._stops = {name: np.full(len(blobs), -1) for name in names}
        self._find(names)

    def single_bytes(self, name: str) -> tuple[Int64s, np.ndarray]:
        """The examples of which this feature is one value of bytes, and these values."""
        places, begins, stops = self._list_of(name, BYTES)
        right, begins = self._message(begins, stops, _FIRST)
        places, begins, stops = places[right], begins[right], stops[right]
        values = np.empty(len(places), object)
        within = self._starts[places]
        spans = zip(
            places.tolist(), (begins - within).tolist(), (stops - within).tolist(), strict=True
        )
        for row, (place, begin, stop) in enumerate(spans):
            values[row] = self.blobs[place][begin:stop]
        return places, values

    def numbers(self, name: str, kind: int) -> tuple[Int64s, np.ndarray, Int64s]:
        """The examples of which this feature is numbers of this kind, all their numbers, and how
        many each has."""
        places, begins, stops = self._list_of(name, kind)
        right, begins = self._message(begins, stops, _FIRST)
        if kind == FLOATS:
            right &= (stops - begins) % 4 == 0
        else:
            right &= self._data[np.maximum(stops - 1, 0)] < 0x80  # where the last number ends
        places, begins, stops = places[right], begins[right], stops[right]
        counts = stops - begins
        data = self._data[_ranges(begins, counts)]
        if kind == FLOATS:
            return places, data.view("<f4"), counts // 4
        values, ends = _varints(data)
        firsts = np.append(0, np.cumsum(counts))
        return places, values, np.diff(np.searchsorted(ends, firsts, side="right"))

    def _find(self, names: Sequence[str]) -> None:
        right, at = self._message(self._starts, self._ends, _FIRST)
        live = np.flatnonzero(right)
        unusual = ~right
        while len(live):
            place, end = at[live], self._ends[live]
            stop, name_at = self._message_at(place, _FIRST)
            value_at, name_begin = self._message_at(name_at, _FIRST)
            good = (stop <= end) & (value_at < stop)
            right, begin = self._message(np.where(good, value_at, 0), stop, _SECOND)
            good &= right
            lengths = value_at - name_begin
            for name in names:
                text = np.frombuffer(name.encode(), np.uint8)
                some = np.flatnonzero(good & (lengths == len(text)))
                same = self._data[name_begin[some, None] + np.arange(len(text))] == text
                some = some[same.all(axis=1)]
                self._begins[name][live[some]] = begin[some]
                self._stops[name][live[some]] = stop[some]
            unusual[live[~good]] = True
            at[live] = stop
            live = live[good & (stop < end)]
        for name in names:
            self._begins[name][unusual] = -1

    def _list_of(self, name: str, kind: int) -> tuple[Int64s, Int64s, Int64s]:
        """The examples in which this feature is a list of this kind, and where that is."""
        begins, stops = self._begins[name], self._stops[name]
        right, inner = self._message(np.maximum(begins, 0), stops, kind << 3 | 2)
        places = np.flatnonzero(right & (begins >= 0))
        return places, inner[places], stops[places]

    def _message(self, begins: Int64s, stops: Int64s, tag: int) -> tuple[np.ndarray, Int64s]:
        """Whether there is a message with this tag, and nothing else, and where it begins."""
        found, inner = self._message_at(begins, tag)
        return (found == stops) & (begins < stops), inner

    def _message_at(self, begins: Int64s, tag: int) -> tuple[Int64s, Int64s]:
        """Where a message with this tag ends, far away if there is none, and where it begins."""
        last = len(self._data) - 1
        right = self._data[np.minimum(begins, last)] == tag
        at = np.minimum(begins + 1, last)
        length, more = np.zeros(len(at), np.int64), np.ones(len(at), bool)
        for shift in range(0, 35, 7):
            byte = self._data[np.minimum(at, last)].astype(np.int64)
            length |= np.where(more, (byte & 0x7F) << shift, 0)
            at = at + more
            more &= byte >= 0x80
            if not more.any():
                break
        right &= ~more & (length < _LONGEST)
        return np.where(right, at + length, last + _LONGEST), np.minimum(at, last)


def _ranges(begins: Int64s, counts: Int64s) -> Int64s:
    """The numbers of all ranges, one after the other."""
    starts = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(begins - starts, counts)


def _varints(data: np.ndarray) -> tuple[np.ndarray, Int64s]:
    """The numbers in this data, which ends with the end of one, and where each ends."""
    ends = np.flatnonzero(data < 0x80) + 1
    begins = np.append(0, ends)[:-1]
    lengths = ends - begins
    values = np.zeros(len(ends), np.uint64)
    for byte in range(min(10, int(lengths.max(initial=0)))):
        some = lengths > byte
        values[some] |= (data[begins[some] + byte] & 0x7F).astype(np.uint64) << np.uint64(7 * byte)
    return values.view(np.int64), ends
