"""Records in ArrayRecord files, and the parsers that make arrays of their bytes."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from flax import serialization

from loader.digest import describe
from loader.permutation import Int64s
from loader.rows import empty_rows
from loader.sources.paths import Paths, expand
from loader.sources.record_files import RecordFiles
from loader.sources.source import Located, sampled_fingerprint, stack
from loader.spec import Spec, named_leaves

_SAMPLED_FILES = 256


@dataclasses.dataclass(frozen=True)
class RawArrays:
    """Parses records that are the bytes of arrays of a known spec, leaf after leaf.

    `spec` is a tree of `jax.ShapeDtypeStruct`; leaves follow in the order of `jax.tree.leaves`.
    The bytes do not say what they are: another spec of the same size reads them as something else.
    """

    spec: Spec

    def __post_init__(self) -> None:
        for name, leaf in named_leaves(self.spec):
            if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
                raise ValueError(
                    f"leaf {name!r} of the spec is {leaf!r}: give "
                    "jax.ShapeDtypeStruct(shape, dtype)"
                )

    def __call__(self, data: bytes) -> Any:
        return jax.tree.map(lambda rows: rows[0], self.many([data]))

    def many(self, blobs: Sequence[bytes]) -> Any:
        """All records at once, stacked."""
        dtype = self._row_dtype
        if not set(map(len, blobs)) <= {dtype.itemsize}:
            number = next(n for n, blob in enumerate(blobs) if len(blob) != dtype.itemsize)
            raise ValueError(
                f"blob {number} has {len(blobs[number])} bytes where the spec asks for "
                f"{dtype.itemsize}"
            )
        rows = (
            np.frombuffer(b"".join(blobs), dtype) if dtype.itemsize else np.empty(len(blobs), dtype)
        )
        leaves = [_copied(rows[name]) for name in dtype.names or ()]
        return jax.tree.unflatten(jax.tree.structure(self.spec), leaves)

    def encode(self, record: Any) -> bytes:
        """The bytes of a record: what to write to a file."""
        if jax.tree.structure(record) != jax.tree.structure(self.spec):
            raise ValueError(
                f"the record is built as {jax.tree.structure(record)}, the spec as "
                f"{jax.tree.structure(self.spec)}"
            )
        parts = []
        for (name, leaf), spec in zip(
            named_leaves(record), jax.tree.leaves(self.spec), strict=True
        ):
            array = np.asarray(leaf)
            cast = array.astype(spec.dtype)
            if array.shape != spec.shape:
                raise ValueError(f"leaf {name!r} is {array.shape} where the spec says {spec.shape}")
            if cast.dtype.kind in "biu" and not np.array_equal(cast, array):
                raise ValueError(f"leaf {name!r} holds values that do not fit {spec.dtype}")
            parts.append(cast.tobytes())
        return b"".join(parts)

    def record_spec(self) -> Spec:
        return self.spec

    @property
    def _row_dtype(self) -> np.dtype[Any]:
        return np.dtype(
            [(f"f{i}", s.dtype, s.shape) for i, s in enumerate(jax.tree.leaves(self.spec))]
        )


def _copied(column: np.ndarray) -> np.ndarray:
    """In memory of its own, so that operators may work in place."""
    copy = empty_rows(column.shape, column.dtype)
    copy[...] = column
    return copy


@dataclasses.dataclass(frozen=True)
class Msgpack:
    """Parses msgpack records: maps of numbers, texts and of arrays as Flax packs them."""

    def __call__(self, data: bytes) -> Any:
        return serialization.msgpack_restore(data)

    def encode(self, record: Any) -> bytes:
        """The bytes of a record: what to write to a file."""
        return serialization.msgpack_serialize(record)


class ArrayRecordSource:
    """All records of some ArrayRecord files, in the order of the files.

    `paths` is a path, a glob, or a list of them. `parse` makes a tree of arrays of the bytes of a
    record: `RawArrays(spec)`, `Msgpack()` or a function; without it a record is its bytes.
    """

    fresh_rows = True

    def __init__(
        self,
        paths: Paths,
        parse: Callable[[bytes], Any] | None = None,
    ) -> None:
        if isinstance(parse, type):
            raise TypeError(f"parse is the class {parse.__name__}: give an instance of it")
        self.paths = expand(paths, "ArrayRecord")
        self._parse = parse
        if isinstance(parse, RawArrays):  # only then is it known without reading
            self.record_spec = parse.record_spec
        self._files = RecordFiles(self.paths)
        if len(self._files) == 0:
            raise ValueError(f"the source is empty: no record in {', '.join(self.paths)}")

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        return jax.tree.map(lambda rows: rows[0], self.gather(np.array([index])))

    def gather(self, indices: Int64s) -> Any:
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(
                f"records {indices.min()} to {indices.max()} of a source of {len(self)}"
            )
        numbers = indices.tolist()
        try:
            blobs = self._files.read(indices)
        except (RuntimeError, ValueError) as error:
            raise self._located(numbers, self._read_one, "read", error) from error
        parse = self._parse
        if parse is None:
            return stack(blobs)
        try:
            if isinstance(parse, RawArrays):
                return parse.many(blobs)
            records = [parse(blob) for blob in blobs]
        except Exception as error:
            culprit = dict(zip(numbers, blobs, strict=True)).__getitem__
            raise self._located(numbers, lambda n: parse(culprit(n)), "parse", error) from error
        return stack(records, Located(self, numbers), ragged=True)

    def fingerprint(self) -> dict[str, Any]:
        firsts = [n for n in self._files.firsts[:_SAMPLED_FILES].tolist() if n < len(self)]
        return {
            "files": [[os.path.basename(p), epath.Path(p).stat().length] for p in self.paths],
            "parse": describe(self._parse),
            **sampled_fingerprint(self, extra=firsts),
        }

    def locate(self, record: int) -> str:
        return self._files.locate(record)

    def _read_one(self, number: int) -> bytes:
        return self._files.read(np.array([number]))[0]

    def _located(
        self, numbers: list[int], attempt: Callable[[int], Any], verb: str, error: Exception
    ) -> ValueError:
        """The error, with the file and the record that caused it: found by trying one by one."""
        for number in numbers:
            try:
                attempt(number)
            except Exception as single:
                return ValueError(
                    f"cannot {verb} record {number} ({self.locate(number)}): "
                    f"{type(single).__name__}: {single}"
                )
        return ValueError(f"cannot {verb} records {numbers}: {type(error).__name__}: {error}")

    def __repr__(self) -> str:
        return f"ArrayRecordSource({len(self.paths)} files, {len(self)} records)"
