"""Windows of tokens out of one long row of them, in memory or in a file."""

import os
from typing import Any

import jax
import numpy as np

from loader.records.integers import Int64s, checked_int, refuse_outside
from loader.records.spec import Spec
from loader.sources.reading import sampled_fingerprint
from loader.sources.source import Source
from loader.sources.storage.file_guard import FileGuard
from loader.sources.storage.paths import expand_local


class TokenWindows(Source):
    """Record i is `{"tokens": tokens[i * stride : i * stride + length]}`.

    `tokens` is a one-dimensional array of integers, or the path of a `.npy` file or of a raw binary
    file, which is mapped into memory; a raw file needs `dtype`. `stride` is `length` if not given;
    with less, windows overlap. Tokens at the end that fill no window are left out, and
    `tokens_left_out` says how many.
    """

    owned_rows = True
    thread_safe = True

    def __init__(
        self, tokens: Any, length: int, stride: int | None = None, *, dtype: Any = None
    ) -> None:
        wanted = "an integer of at least 1"
        self.window = checked_int("TokenWindows: length", length, 1, wanted=wanted)
        stride = self.window if stride is None else stride
        self.stride = checked_int("TokenWindows: stride", stride, 1, wanted=wanted)
        self._dtype = dtype
        self.path = self._guard = None
        first = tokens[0] if isinstance(tokens, list | tuple) and tokens else tokens
        if isinstance(first, str | os.PathLike):
            self.path = _path(tokens)
            self._guard = FileGuard(self.path)
            self._tokens = _mapped(self.path, dtype)
        elif dtype is not None:
            raise ValueError("dtype is for raw files, and the tokens given are an array already")
        else:
            self._tokens = np.asarray(tokens)
        name = self.path or "the array"
        if self._tokens.ndim != 1 or self._tokens.dtype.kind not in "iu":
            raise ValueError(
                f"{name} holds {self._tokens.dtype}{list(self._tokens.shape)}: tokens are integers "
                "in one dimension; give tokens.reshape(-1), or tokens.astype(np.uint16)"
            )
        if len(self._tokens) < self.window:
            raise ValueError(
                f"{name} holds {len(self._tokens)} tokens, fewer than one window of {self.window}: "
                "give a shorter length or more tokens"
            )
        # A view, not a copy, of every window. It must never meet np.take, which would copy it all.
        windows = np.lib.stride_tricks.sliding_window_view(self._tokens, self.window)
        self._windows = windows[:: self.stride]

    @property
    def tokens_left_out(self) -> int:
        """The tokens after the last window. Those between windows, if stride > length, are more."""
        return len(self._tokens) - ((len(self) - 1) * self.stride + self.window)

    def __len__(self) -> int:
        return len(self._windows)

    def gather(self, indices: Int64s) -> dict[str, np.ndarray]:
        refuse_outside(indices, len(self))
        if self._guard is not None:
            self._guard.refuse_if_cut_off()
        return {"tokens": self._windows[indices]}

    def record_spec(self) -> Spec:
        return {"tokens": jax.ShapeDtypeStruct((self.window,), self._tokens.dtype)}

    def fingerprint(self) -> dict[str, Any]:
        return {
            "tokens": len(self._tokens),
            "stride": self.stride,
            **sampled_fingerprint(self),
        }

    def locate(self, record: int) -> str:
        first = record * self.stride
        return f"tokens {first} to {first + self.window - 1} of {self.path or 'the array'}"

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: a file by its path, to be mapped again."""
        return {
            "tokens": self._tokens if self.path is None else self.path,
            "length": self.window,
            "stride": self.stride,
            "dtype": self._dtype,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def __repr__(self) -> str:
        return (
            f"TokenWindows({self.path or 'array'}: {len(self)} windows of {self.window}, stride "
            f"{self.stride}, {self.tokens_left_out} tokens left out)"
        )


def _path(tokens: Any) -> str:
    paths = expand_local(tokens, "token")
    if len(paths) > 1:
        raise ValueError(
            f"{tokens!r} names {len(paths)} files: TokenWindows takes one; join them "
            "into one file, or mix them: Mixture({name: (TokenWindows(path, ...), its length)})"
        )
    return paths[0]


def _mapped(path: str, dtype: Any) -> np.ndarray:
    if path.endswith(".npy"):
        if dtype is not None:
            raise ValueError(f"dtype is for raw files, and {path} says of itself what it holds")
        try:
            # As a plain ndarray: the map stays underneath, without its slower subclass.
            return np.asarray(np.load(path, mmap_mode="r"))
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"{path} is not a whole .npy file of numbers: {error}") from error
    if dtype is None:
        raise ValueError(
            f"{path} is a raw file, which does not say what it holds: give dtype=np.uint16, or "
            "what it was written as"
        )
    size, item = os.path.getsize(path), np.dtype(dtype).itemsize
    if size % item:
        raise ValueError(
            f"{path} has {size} bytes, no multiple of the {item} of a {np.dtype(dtype)}: it was "
            "written with another dtype, or cut off"
        )
    return np.asarray(np.memmap(path, dtype, mode="r")) if size else np.empty(0, dtype)
