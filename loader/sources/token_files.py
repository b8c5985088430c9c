"""Windows of the tokens in files that are not mapped into memory: several, or in a store.

Windows are numbered through all files, and none reaches from one file into the next. Where each
begins is arithmetic, so that just its bytes are read.
"""

import io
from typing import Any

import numpy as np

from loader.records.errors import StorageError
from loader.records.integers import Int64s
from loader.sources.storage.stored_files import StoredFiles, StoredPieces, StoredSpans
from loader.sources.storage.stores import shown

_HEAD_BYTES = 4096  # of a .npy file: more than the header of an array without names takes
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class TokenFiles:
    """The windows of this length, so many tokens after one another, of each file."""

    def __init__(self, files: StoredFiles, dtype: Any, window: int, stride: int) -> None:
        self.files, self.window, self.stride = files, window, stride
        numbers = np.arange(len(files))
        says = np.array([path.endswith(".npy") for path in files.paths])
        # Not through a cache, which would fetch small files whole.
        ends = np.minimum(files.sizes, says * _HEAD_BYTES)
        heads = iter(files.read_directly(numbers, numbers * 0, ends))
        found = [_array(*each, dtype) for each in zip(files.paths, heads, files.sizes, strict=True)]
        self.dtype, _, _ = found[0]
        for path, (other, _, _) in zip(files.paths, found, strict=True):
            if other != self.dtype:
                raise ValueError(
                    f"{shown(path)} holds {other} and {shown(files.paths[0])} {self.dtype}: give "
                    "files of one dtype"
                )
        self.counts = np.array([count for _, count, _ in found], np.int64)
        self._offsets = np.array([offset for _, _, offset in found], np.int64)
        windows = np.maximum(0, (self.counts - window) // stride + 1)
        self._starts = np.concatenate([[0], np.cumsum(windows)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def tokens_left_out(self) -> int:
        """The tokens of each file after its last window."""
        windows = np.diff(self._starts)
        used = np.where(windows > 0, (windows - 1) * self.stride + self.window, 0)
        return int((self.counts - used).sum())

    def gather(self, indices: Int64s) -> np.ndarray:
        files, begins, ends = self._spans(indices)
        rows = np.empty((len(indices), self.window), self.dtype)
        read = self.files.read(files, begins, ends)
        for row, file, data in zip(rows, files.tolist(), read, strict=True):
            if len(data) != row.nbytes:
                raise StorageError(
                    f"{shown(self.files.paths[file])} is shorter than it was when the source was "
                    "made: it is being written anew; wait for that, and make the source again"
                )
            row[:] = np.frombuffer(data, self.dtype)
        return rows

    @property
    def starts(self) -> Int64s:
        """The first window of each file."""
        return self._starts[:-1]

    def stored_spans(self, indices: Int64s) -> StoredSpans:
        return self.files, *self._spans(indices)

    def stored_pieces(self, indices: Int64s) -> StoredPieces:
        return [(self.files, self.files.pieces(*self._spans(indices)))]

    def place(self, record: int) -> tuple[str, int]:
        """The file of a window, and the token there with which it begins."""
        file = int(np.searchsorted(self._starts, record, side="right")) - 1
        return self.files.paths[file], (record - int(self._starts[file])) * self.stride

    def _spans(self, indices: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        files = np.searchsorted(self._starts, indices, side="right") - 1
        firsts = (indices - self._starts[files]) * self.stride
        begins = self._offsets[files] + firsts * self.dtype.itemsize
        return files, begins, begins + self.window * self.dtype.itemsize


def _array(path: str, head: Any, size: int, dtype: Any) -> tuple[np.dtype[Any], int, int]:
    """What a file holds: the dtype, how many of it, and at which byte they begin."""
    if not path.endswith(".npy"):
        return checked_raw(shown(path), int(size), dtype)
    if dtype is not None:
        raise ValueError(f"dtype is for raw files, and {shown(path)} says of itself what it holds")
    file = io.BytesIO(bytes(head))
    try:
        shape, _, kind = _HEADERS[np.lib.format.read_magic(file)](file)
    except (ValueError, KeyError, EOFError) as error:
        raise ValueError(f"{shown(path)} is not a whole .npy file of numbers: {error}") from error
    refuse_unless_tokens(shown(path), kind, shape)
    if file.tell() + shape[0] * kind.itemsize > size:
        raise ValueError(f"{shown(path)} is not a whole .npy file of numbers: it was cut off")
    return kind, shape[0], file.tell()


def checked_raw(path: str, size: int, dtype: Any) -> tuple[np.dtype[Any], int, int]:
    """The same of a raw file of this size, which does not say what it holds."""
    if dtype is None:
        raise ValueError(
            f"{path} is a raw file, which does not say what it holds: give dtype=np.uint16, or "
            "what it was written as"
        )
    kind = np.dtype(dtype)
    if size % kind.itemsize:
        raise ValueError(
            f"{path} has {size} bytes, no multiple of the {kind.itemsize} of a {kind}: it was "
            "written with another dtype, or cut off"
        )
    refuse_unless_tokens(path, kind, (size // kind.itemsize,))
    return kind, size // kind.itemsize, 0


def refuse_unless_tokens(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raise `ValueError` for what is not a row of integers."""
    if len(shape) != 1 or dtype.kind not in "iu":
        raise ValueError(
            f"{name} holds {dtype}{list(shape)}: tokens are integers in one dimension; give "
            "tokens.reshape(-1), or tokens.astype(np.uint16)"
        )
