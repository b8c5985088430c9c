"""Windows of tokens out of one long row of them, in memory or in a file."""

import os
from typing import Any

import jax
import numpy as np

from loader.records.integers import Int64s, checked_int, refuse_outside
from loader.records.spec import Spec
from loader.sources.reading import sampled_fingerprint
from loader.sources.source import Source
from loader.sources.storage.file_guard import map_under, refuse_if_cut_off
from loader.sources.storage.paths import stored_files
from loader.sources.storage.stored_files import StoredFiles, StoredPieces, StoredSpans
from loader.sources.storage.stores import shown
from loader.sources.token_files import TokenFiles, checked_raw, refuse_unless_tokens


class TokenWindows(Source):
    """Record i is `{"tokens": tokens[i * stride : i * stride + length]}`.

    `tokens` is a one-dimensional array of integers, or the path of a `.npy` file or of a raw binary
    file, which is mapped into memory; a raw file needs `dtype`. `stride` is `length` if not given;
    with less, windows overlap. Tokens at the end that fill no window are left out, and
    `tokens_left_out` says how many.

    Several files, by a list of paths or a glob, are numbered through; no window reaches from one
    into the next. Of those, and of files in a store, just the windows are read. `cache` keeps what
    was read on local disk.
    """

    owned_rows = True
    thread_safe = True

    def __init__(
        self,
        tokens: Any,
        length: int,
        stride: int | None = None,
        *,
        dtype: Any = None,
        cache: Any = None,
    ) -> None:
        wanted = "an integer of at least 1"
        self.window = checked_int("TokenWindows: length", length, 1, wanted=wanted)
        stride = self.window if stride is None else stride
        self.stride = checked_int("TokenWindows: stride", stride, 1, wanted=wanted)
        self._dtype = dtype
        self.path = self._map = None
        self._files: TokenFiles | None = None
        first = tokens[0] if isinstance(tokens, list | tuple) and tokens else tokens
        if isinstance(first, str | os.PathLike):
            self._begin(stored_files(tokens, "token", cache=cache, absolute=True))
        elif dtype is not None or cache is not None:
            what = "cache is for files" if dtype is None else "dtype is for raw files"
            raise ValueError(f"{what}, and the tokens given are an array already")
        else:
            self._hold(np.asarray(tokens))
        if len(self) == 0:
            raise ValueError(
                f"{self._name} holds {self._count} tokens, fewer than one window of {self.window}: "
                "give a shorter length or more tokens"
            )

    def _begin(self, files: StoredFiles) -> None:
        if files.far or len(files) > 1:
            self._files = TokenFiles(files, self._dtype, self.window, self.stride)
            return
        self.path = files.paths[0]
        tokens = _mapped(self.path, self._dtype)
        self._map = map_under(tokens)
        self._size = 0 if self._map is None else self._map.size()
        self._hold(tokens)

    def _hold(self, tokens: np.ndarray) -> None:
        refuse_unless_tokens(self._name, tokens.dtype, tokens.shape)
        self._tokens = tokens
        self._windows = tokens[:0].reshape(0, self.window)
        if len(tokens) >= self.window:
            # A view, not a copy, of every window. It must never meet np.take, which would copy all.
            windows = np.lib.stride_tricks.sliding_window_view(tokens, self.window)
            self._windows = windows[:: self.stride]

    @property
    def _name(self) -> str:
        if self._files is None:
            return self.path or "the array"
        paths = self._files.files.paths
        return shown(paths[0]) if len(paths) == 1 else f"{len(paths)} files"

    @property
    def _count(self) -> int:
        return len(self._tokens) if self._files is None else int(self._files.counts.sum())

    @property
    def tokens_left_out(self) -> int:
        """The tokens after the last window. Those between windows, if stride > length, are more."""
        if self._files is not None:
            return self._files.tokens_left_out
        return len(self._tokens) - ((len(self) - 1) * self.stride + self.window)

    def __len__(self) -> int:
        return len(self._windows if self._files is None else self._files)

    def gather(self, indices: Int64s) -> dict[str, np.ndarray]:
        refuse_outside(indices, len(self))
        if self._files is not None:
            return {"tokens": self._files.gather(indices)}
        if self.path is not None and self._map is not None:
            refuse_if_cut_off(self.path, self._size, self._map)
        return {"tokens": self._windows[indices]}

    def blocks(self) -> Int64s | None:
        """The first window of each file, unless there is one file, mapped into memory."""
        return None if self._files is None else self._files.starts

    def stored_spans(self, indices: Int64s) -> StoredSpans | None:
        return None if self._files is None else self._files.stored_spans(indices)

    def stored_pieces(self, indices: Int64s) -> StoredPieces:
        return [] if self._files is None else self._files.stored_pieces(indices)

    def record_spec(self) -> Spec:
        dtype = self._tokens.dtype if self._files is None else self._files.dtype
        return {"tokens": jax.ShapeDtypeStruct((self.window,), dtype)}

    def fingerprint(self) -> dict[str, Any]:
        counts = [] if self._files is None else self._files.counts.tolist()
        files = {"files": counts} if len(counts) > 1 else {}
        return {"tokens": self._count, "stride": self.stride, **files, **sampled_fingerprint(self)}

    def locate(self, record: int) -> str:
        name, first = self._name, record * self.stride
        if self._files is not None:
            path, first = self._files.place(record)
            name = shown(path)
        return f"tokens {first} to {first + self.window - 1} of {name}"

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: a file that is mapped by its path, to be mapped again."""
        if self._files is not None:
            return {"files": self._files}
        return {
            "tokens": self._tokens if self.path is None else self.path,
            "length": self.window,
            "stride": self.stride,
            "dtype": self._dtype,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "files" not in state:
            self.__init__(**state)
            return
        self._files = files = state["files"]
        self.window, self.stride, self.path = files.window, files.stride, None

    def __repr__(self) -> str:
        return (
            f"TokenWindows({self._name.removeprefix('the ')}: {len(self)} windows of "
            f"{self.window}, stride {self.stride}, {self.tokens_left_out} tokens left out)"
        )


def _mapped(path: str, dtype: Any) -> np.ndarray:
    if path.endswith(".npy"):
        if dtype is not None:
            raise ValueError(f"dtype is for raw files, and {path} says of itself what it holds")
        try:
            # As a plain ndarray: the map stays underneath, without its slower subclass.
            return np.asarray(np.load(path, mmap_mode="r"))
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"{path} is not a whole .npy file of numbers: {error}") from error
    size = os.path.getsize(path)
    checked_raw(path, size, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r")) if size else np.empty(0, dtype)
