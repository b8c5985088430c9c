"""A file of which only some spans were fetched, as pyarrow reads it."""

import bisect
import io
from typing import Any


class Fetched(io.RawIOBase):
    """Gives the bytes of these spans, each with its buffer; there is nothing else to read."""

    def __init__(self, size: int, spans: Any, buffers: list[Any]) -> None:
        pairs = zip(spans, map(memoryview, buffers), strict=True)
        self._spans = sorted((begin, end, buffer) for (begin, end), buffer in pairs)
        self._begins = [begin for begin, _, _ in self._spans]
        self._size, self._place = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_CUR: self._place, io.SEEK_END: self._size}.get(whence, 0)
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> Any:
        at, end = self._place, self._size if size < 0 else min(self._size, self._place + size)
        found = bisect.bisect_right(self._begins, at) - 1
        if at == end:
            return b""
        if found < 0 or end > self._spans[found][1]:
            raise ValueError(f"bytes {at} to {end} are not of this row group")
        self._place = end
        begin, _, buffer = self._spans[found]
        return buffer[at - begin : end - begin]
