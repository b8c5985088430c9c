"""What the chunks of an array are called, as its metadata says."""

import json
from typing import NamedTuple

import numpy as np

from loader.records.integers import Int64s

Grid = tuple[int, ...]  # how many there are along each axis


class ChunkNames(NamedTuple):
    """The names of files below the folder of an array."""

    begin: str
    separator: str

    def of(self, grid: Grid, chunks: Int64s) -> list[str]:
        """The names of chunks by their numbers, which run along the last axis first."""
        places = np.stack(np.unravel_index(chunks, grid), axis=1)
        return [self.begin + self.separator.join(map(str, place)) for place in places.tolist()]


def chunk_names(driver: str, metadata: bytes) -> ChunkNames:
    """How TensorStore's driver names chunks under this metadata, which it has accepted."""
    told = json.loads(metadata)
    if driver == "zarr":
        return ChunkNames("", told.get("dimension_separator", "."))
    if driver == "n5":
        return ChunkNames("", "/")
    encoding = told["chunk_key_encoding"]
    default = encoding["name"] == "default"
    options = encoding.get("configuration", {})
    separator = options.get("separator", "/" if default else ".")
    return ChunkNames(f"c{separator}" if default else "", separator)
