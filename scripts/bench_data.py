"""The data of the benchmark: records in memory, in files, and records that are only numbers.

Every record has a `label`, its number, so that a lost or repeated one shows. Data is made before
any contestant is forked, and by a process of its own where making it would start threads.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from loader import RawArrays

IMAGE = RawArrays(
    {
        "image": jax.ShapeDtypeStruct((32, 32, 3), np.dtype("uint8")),
        "label": jax.ShapeDtypeStruct((), np.dtype("int32")),
    }
)


@dataclasses.dataclass(frozen=True)
class Columns:
    """Arrays with a common first axis. As a sequence: plain records, as cheap as they can be."""

    arrays: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.arrays["label"])

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return {name: array[index] for name, array in self.arrays.items()}

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Many records at once, stacked."""
        return {name: array[indices] for name, array in self.arrays.items()}

    def first(self, count: int) -> "Columns":
        return Columns({name: array[:count] for name, array in self.arrays.items()})


def images(count: int) -> Columns:
    """Pictures of 32 x 32 x 3 bytes, no two alike."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)
    return Columns({"image": pixels, "label": np.arange(count, dtype=np.int32)})


def table(count: int) -> Columns:
    """Rows of 64 floats."""
    floats = np.random.default_rng(0).random((count, 64), np.float32)
    return Columns({"image": floats, "label": np.arange(count, dtype=np.int32)})


class Virtual:
    """As many records as wanted, which are nothing but their number: reading costs nothing."""

    owned_rows = True
    thread_safe = True

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"label": np.int32(index)}

    def gather(self, indices: np.ndarray) -> dict[str, Any]:
        return {"label": indices.astype(np.int32)}

    def record_spec(self) -> dict[str, Any]:
        return {"label": jax.ShapeDtypeStruct((), np.dtype("int32"))}


def write_array_record(path: Path, columns: Columns) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for number in range(len(columns)):
        writer.write(IMAGE.encode(columns[number]))
    writer.close()


def write_zarr(paths: dict[str, str], columns: Columns, chunk: int) -> None:
    """A zarr3 array of each column: pictures in chunks of so many, labels in a single one."""
    for name, path in paths.items():
        array = columns.arrays[name]
        depth = chunk if name == "image" else len(array)
        layout = {"read_chunk": {"shape": [depth, *array.shape[1:]]}}
        domain = {"shape": array.shape}
        schema = {"dtype": array.dtype.name, "domain": domain, "chunk_layout": layout}
        open_zarr(path, create=True, schema=schema).write(array).result()


def open_zarr(path: str, **settings: Any) -> Any:
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}
    return tensorstore.open({**spec, **settings}).result()
