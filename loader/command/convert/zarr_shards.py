"""Shards of zarr3 arrays, one array for each leaf: a shard is a file that holds many chunks."""

import dataclasses
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from loader.command.config.kinds import Kinds
from loader.command.config.problems import ConfigError
from loader.command.convert.formats import made_of
from loader.records.spec import RaggedSpec, Spec, is_text, named_leaves
from loader.records.whole_file import whole_file
from loader.sources.array_record.parsers import RawArrays
from loader.sources.tensorstore.open_store import is_spec, reason

_CHUNK_BYTES = 2**20  # of a record's leaves together
_CHUNK_RECORDS = 1024  # at most
_PLAIN = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")
_IN_MEMORY = {"driver": "memory", "path": "array/"}
_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}


@dataclasses.dataclass(frozen=True)
class ZarrShards:
    """The arrays of `spec` in a folder: `chunk` records in each chunk, and `chunks` in each shard.

    All chunks are there, with checksums, also those of zeros alone.
    """

    folder: Path
    spec: Spec
    chunk: int
    chunks: int
    shards: list[range]

    @property
    def parse(self) -> RawArrays:
        return RawArrays(self.spec)

    def table(self) -> dict[str, Any]:
        paths = [str(path) for path in self._paths()]
        arrays = jax.tree.unflatten(jax.tree.structure(self.spec), paths)
        return {"kind": "TensorStoreSource", "arrays": arrays}

    def _paths(self) -> list[Path]:
        """The folder of each array: named as its leaf, if all leaves have plain names."""
        names = [name or "data" for name, _ in named_leaves(self.spec)]
        if not all(map(_PLAIN.fullmatch, names)):
            names = [f"leaf-{number}" for number in range(len(names))]
        return [self.folder / name for name in names]

    def files(self, shard: int) -> list[Path]:
        leaves = zip(self._paths(), jax.tree.leaves(self.spec), strict=True)
        return [path.joinpath("c", str(shard), *["0"] * len(s.shape)) for path, s in leaves]

    def write(self, shard: int, contents: Iterable[bytes]) -> None:
        records, rows = self.shards[shard], self.parse.many(list(contents))
        leaves = zip(self._paths(), jax.tree.leaves(self.spec), jax.tree.leaves(rows), strict=True)
        for path, spec, values in leaves:
            # TensorStore makes the files in memory, and they are written as all files here are.
            memory = ts.Context()
            store = ts.open(self.store(spec), create=True, context=memory).result()
            store[records.start : records.stop].write(values).result()
            made = ts.KvStore.open(_IN_MEMORY, context=memory).result()
            for key in made.list().result():
                file = path / key.decode()
                file.parent.mkdir(parents=True, exist_ok=True)
                with whole_file(file) as written:
                    written.write(made.read(key).result().value)

    def store(self, spec: jax.ShapeDtypeStruct) -> dict[str, Any]:
        """The TensorStore spec of the array of a leaf."""
        inner = [_ENDIAN, {"name": "zstd", "configuration": {"level": 3}}, {"name": "crc32c"}]
        chunks = {
            "chunk_shape": [self.chunk, *spec.shape],
            "codecs": inner,
            "index_codecs": [_ENDIAN, {"name": "crc32c"}],
        }
        shard = {"chunk_shape": [self.chunk * self.chunks, *spec.shape]}
        metadata = {
            "shape": [self.shards[-1].stop, *spec.shape],
            "data_type": str(spec.dtype),
            "chunk_grid": {"name": "regular", "configuration": shard},
            "codecs": [{"name": "sharding_indexed", "configuration": chunks}],
        }
        there = {"store_data_equal_to_fill_value": True}
        return {"driver": "zarr3", "kvstore": _IN_MEMORY, "metadata": metadata, **there}


def zarr_shards(folder: Path, spec: Spec, records: int, count: int, kinds: Kinds) -> ZarrShards:
    """At most so many shards, of one size; `ValueError` for what zarr cannot hold."""
    rows = -(-records // count)
    chunks = -(-rows // max(1, min(_CHUNK_RECORDS, _CHUNK_BYTES // max(1, bytes_of(spec)))))
    deep = -(-rows // chunks)
    starts = range(0, records, chunks * deep)
    shards = [range(start, min(start + chunks * deep, records)) for start in starts]
    made = ZarrShards(folder, spec, deep, chunks, shards)
    for name, leaf in named_leaves(spec):
        try:
            ts.open(made.store(leaf), create=True, context=ts.Context()).result()
        except ValueError as error:
            raise ValueError(
                f"zarr cannot hold leaf {name!r}, {leaf.dtype}{list(leaf.shape)}: cast it by an "
                f"operator, or write --to array_record ({reason(error)})"
            ) from error
    _refuse_names(made, kinds)
    return made


def _refuse_names(made: ZarrShards, kinds: Kinds) -> None:
    """Raise `ValueError` if a configuration would take the names of leaves for something else."""
    table = {"arrays": made.table()["arrays"]}
    try:
        read = made_of("table", table, kinds)
    except ConfigError:
        read = None
    built = read and jax.tree.structure(read["arrays"], is_leaf=is_spec)
    if read != table or built != jax.tree.structure(made.spec):
        raise ValueError(
            f"records that are built as {jax.tree.structure(made.spec)} cannot be named by a "
            "configuration that reads zarr: give a dict without leaves called 'kind', 'ref' or "
            "'driver', by an operator, or write --to array_record"
        )


def bytes_of(spec: Spec) -> int:
    """The bytes of a record; `ValueError` if they are not the same for all records."""
    for name, leaf in named_leaves(spec):
        if isinstance(leaf, RaggedSpec) or is_text(leaf.dtype):
            what = "is a text, or bytes" if is_text(leaf.dtype) else "differs in length"
            raise ValueError(
                f"leaf {name!r} {what}, and rows of a zarr array have one shape: write it by "
                "--to array_record, or make it alike in all records by an operator"
            )
    return sum(math.prod(s.shape) * np.dtype(s.dtype).itemsize for s in jax.tree.leaves(spec))
