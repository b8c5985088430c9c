"""Where the chunks of a zarr3 array are that has many of them in one file, a shard.

Each shard has an index, which says where in it each of its chunks begins and how long it is. The
indexes of all shards are read when the array is opened. From then on, a chunk is a part of a file.
"""

import json
from typing import Any, NamedTuple

import numpy as np

from loader.records.integers import Int64s
from loader.sources.storage.stored_files import StoredFiles
from loader.sources.storage.stores import shown
from loader.sources.tensorstore.chunk_names import Grid
from loader.sources.tfrecord.crc32c import masked_crcs

_CODEC = "sharding_indexed"
_MISSING = np.uint64(2**64 - 1)
_CRC_BYTES = 4


class Shards(NamedTuple):
    """How the chunks of an array are in shards. Shards are numbered as chunks are."""

    metadata: bytes  # of the same array with the chunks as its own
    grid: Grid  # of the shards
    chunk_grid: Grid
    in_one: Grid  # chunks of a shard
    checked: bool  # whether the index ends with its checksum
    at_end: bool  # of the shard

    def chunks(self, files: StoredFiles, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Of each chunk its file, or -1, and where it begins and ends.

        `numbers` are the files of the shards, -1 for one that was never written.
        """
        count = int(np.prod(self.in_one))
        there = np.flatnonzero(numbers >= 0)
        index = np.full((len(numbers), count, 2), _MISSING)
        index[there] = self._indexes(files, numbers[there], count)
        places = np.indices(self.chunk_grid).reshape(len(self.grid), -1)
        in_one = np.array(self.in_one)[:, None]
        shard = np.ravel_multi_index(tuple(places // in_one), self.grid)
        begins, lengths = index[shard, np.ravel_multi_index(tuple(places % in_one), self.in_one)].T
        known = begins != _MISSING
        begins = np.where(known, begins, 0).astype(np.int64)
        ends = begins + np.where(known, lengths, 0).astype(np.int64)
        return np.where(known, numbers[shard], -1), begins, ends

    def _indexes(self, files: StoredFiles, numbers: Int64s, count: int) -> np.ndarray:
        size = 16 * count + _CRC_BYTES * self.checked
        sizes = files.sizes_of(numbers)
        begins = np.maximum(0, sizes - size) if self.at_end else np.zeros_like(sizes)
        # Not through a cache, which would fetch small shards whole.
        read = files.read_directly(numbers, begins, np.minimum(begins + size, sizes))
        for number, content in zip(numbers.tolist(), read, strict=True):
            if len(content) != size or (self.checked and not _is_right(content)):
                raise ValueError(
                    f"{shown(files.paths[number])} is not a whole shard: its index is damaged. "
                    "Restore it, or write the array again"
                )
        indexes = [np.frombuffer(content, "<u8", 2 * count) for content in read]
        return np.array(indexes, np.uint64).reshape(-1, count, 2)


def shards_of(metadata: bytes) -> "Shards | None":
    """How the chunks of this zarr3 array are in shards; None if they are not.

    `LookupError` for shards of a kind that is not known here, such as shards in shards.
    """
    told = json.loads(metadata)
    codecs = [_named(codec) for codec in told["codecs"]]
    if all(codec["name"] != _CODEC for codec in codecs):
        return None
    if len(codecs) != 1:
        raise LookupError
    options = codecs[0]["configuration"]
    index = [_named(codec) for codec in options["index_codecs"]]
    names = [codec["name"] for codec in index]
    little = index[0].get("configuration", {}).get("endian", "little") == "little"
    inner = [_named(codec)["name"] for codec in options["codecs"]]
    if names not in (["bytes"], ["bytes", "crc32c"]) or not little or _CODEC in inner:
        raise LookupError
    grid = told["chunk_grid"]["configuration"]
    shard, chunk = grid["chunk_shape"], options["chunk_shape"]
    grid["chunk_shape"], told["codecs"] = chunk, options["codecs"]
    return Shards(
        metadata=json.dumps(told).encode(),
        grid=tuple(-(-size // deep) for size, deep in zip(told["shape"], shard, strict=True)),
        chunk_grid=tuple(-(-size // deep) for size, deep in zip(told["shape"], chunk, strict=True)),
        in_one=tuple(whole // deep for whole, deep in zip(shard, chunk, strict=True)),
        checked=len(names) == 2,
        at_end=options.get("index_location", "end") == "end",
    )


def _named(codec: Any) -> dict[str, Any]:
    return {"name": codec} if isinstance(codec, str) else codec


def _is_right(index: Any) -> bool:
    """Whether the checksum at the end is that of what is before it."""
    masked = int(masked_crcs([bytes(index[:-_CRC_BYTES])])[0])
    turned = (masked - 0xA282EAD8) % 2**32  # as TFRecord files mask it
    crc = (turned << 15 | turned >> 17) % 2**32
    return crc == int.from_bytes(index[-_CRC_BYTES:], "little")
