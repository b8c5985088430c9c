"""From the bytes of a record to its leaves."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import serialization

from loader.records.memory import empty_rows
from loader.records.spec import Spec, named_leaves


@dataclasses.dataclass(frozen=True)
class RawArrays:
    """Parses records that are the bytes of arrays of a known spec, leaf after leaf.

    `spec` is a tree of `jax.ShapeDtypeStruct`; leaves follow in the order of `jax.tree.leaves`.
    The bytes do not say what they are: another spec of the same size reads them as something else.
    """

    spec: Spec
    thread_safe = True

    def __post_init__(self) -> None:
        for name, leaf in named_leaves(self.spec):
            if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
                raise ValueError(
                    f"leaf {name!r} of the spec is {leaf!r}: give "
                    "jax.ShapeDtypeStruct(shape, dtype)"
                )

    def __repr__(self) -> str:
        leaves = [f"{name}: {s.dtype}{list(s.shape)}" for name, s in named_leaves(self.spec)]
        return f"RawArrays({', '.join(leaves)})"

    def __call__(self, data: bytes) -> Any:
        return jax.tree.map(lambda rows: rows[0], self.many([data]))

    def many(self, blobs: Sequence[bytes]) -> Any:
        """All records at once, stacked."""
        leaves = enumerate(jax.tree.leaves(self.spec))
        dtype = np.dtype([(f"f{i}", s.dtype, s.shape) for i, s in leaves])
        if not set(map(len, blobs)) <= {dtype.itemsize}:
            number = next(n for n, blob in enumerate(blobs) if len(blob) != dtype.itemsize)
            raise ValueError(
                f"blob {number} has {len(blobs[number])} bytes where the spec asks for "
                f"{dtype.itemsize}"
            )
        rows = (
            np.frombuffer(b"".join(blobs), dtype) if dtype.itemsize else np.empty(len(blobs), dtype)
        )
        copies = []
        for name in dtype.names or ():
            # In memory of its own, so that operators may work in place.
            copies.append(empty_rows(rows[name].shape, rows[name].dtype))
            copies[-1][...] = rows[name]
        return jax.tree.unflatten(jax.tree.structure(self.spec), copies)

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


@dataclasses.dataclass(frozen=True)
class Msgpack:
    """Parses msgpack records: maps of numbers, texts and of arrays as Flax packs them."""

    thread_safe = True

    def __call__(self, data: bytes) -> Any:
        return serialization.msgpack_restore(data)

    def encode(self, record: Any) -> bytes:
        """The bytes of a record: what to write to a file."""
        return serialization.msgpack_serialize(record)
