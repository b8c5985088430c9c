"""Data in which no two records are alike."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from loader import RawArrays

RECORD_SPEC = {
    "id": jax.ShapeDtypeStruct((), np.dtype(np.int32)),
    "x": jax.ShapeDtypeStruct((3, 2), np.dtype(np.float32)),
}


def unlike_records(count: int) -> dict[str, np.ndarray]:
    """`count` records: their number, and values that follow from it and from nothing else's."""
    ids = np.arange(count, dtype=np.int32)
    x = ids[:, None, None] * 6 + np.arange(6, dtype=np.float32).reshape(3, 2) + 0.5
    return {"id": ids, "x": x.astype(np.float32)}


def write_array_record(path: Path, blobs: list[bytes]) -> str:
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for blob in blobs:
        writer.write(blob)
    writer.close()
    return str(path)


def write_raw_records(folder: Path, counts: list[int]) -> list[str]:
    """Files of raw records, numbered through all of them."""
    records = unlike_records(sum(counts))
    paths, start = [], 0
    for number, count in enumerate(counts):
        blobs = [RawArrays(RECORD_SPEC).encode(_record(records, start + i)) for i in range(count)]
        paths.append(write_array_record(folder / f"part-{number}.array_record", blobs))
        start += count
    return paths


def _record(records: dict[str, Any], index: int) -> dict[str, Any]:
    return {key: leaf[index] for key, leaf in records.items()}
