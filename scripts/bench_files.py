"""The workload in which records are in many files: against a bare loop over the readers."""

import functools
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import grain
import jax
import numpy as np
from bench_contest import Contest, Contestant, Promise, Result
from bench_contestants import GRAIN_SETTINGS, Task, grain_contestants, gristmill, limit
from bench_data import Columns
from bench_frameworks import torch_batches
from bench_process import in_child
from bench_timing import Pace, hold

from loader import ArrayRecordSource, RawArrays

_SIDE = 16  # of the pictures: 768 bytes a record, as small as records in many files are
_PICTURE = RawArrays(
    {
        "image": jax.ShapeDtypeStruct((_SIDE, _SIDE, 3), np.dtype("uint8")),
        "label": jax.ShapeDtypeStruct((), np.dtype("int32")),
    }
)
_ROW = np.dtype([("image", np.uint8, (_SIDE, _SIDE, 3)), ("label", np.int32)])


def files(pace: Pace) -> Iterator[Result]:
    """768 bytes a record, in 1000 ArrayRecord files of 100 and in 50 of 5000; shuffled."""
    for count, each in ((1000, 100),) if pace.quick else ((1000, 100), (50, 5000)):
        columns = _pictures(count * each)
        with tempfile.TemporaryDirectory() as folder:
            paths = [f"{folder}/{number}.array_record" for number in range(count)]
            in_child(_write, paths, columns)
            yield hold(_many_files(paths, columns, pace), pace)


def _many_files(paths: list[str], columns: Columns, pace: Pace) -> Contest:
    each = len(columns) // len(paths)
    rows = {way: _Rows(paths, each, way) for way in ("in one call", "one by one")}
    task = Task(rows["one by one"], 256)
    source = functools.partial(ArrayRecordSource, paths, _PICTURE)
    torch = [
        (f"torch, __getitems__ {way}, {workers} workers", rows[way], workers)
        for way in rows
        for workers in ((0,) if pace.quick else (0, 2))
    ]
    settings = tuple(s for s in GRAIN_SETTINGS if not (pace.quick and (s.processes or s.threads)))
    contestants = (
        limit("a loop over the readers", rows["one by one"].take, task),
        limit("a loop over the readers, in one call", rows["in one call"].take, task),
        gristmill(task, source),
        *(
            Contestant(
                name,
                functools.partial(torch_batches, task, data, True, workers),
                "torch",
                "torch",
                ahead=3 * workers + 3,
            )
            for name, data, workers in torch
        ),
        *grain_contestants(
            Task(_GrainRecords(paths, len(columns)), 256), (_ParsePicture(),), settings
        ),
    )
    shapes = {"image": ((_SIDE, _SIDE, 3), "uint8"), "label": ((), "int32")}
    looked_at = 4096 if pace.quick else len(columns)
    promise = Promise(len(columns), shapes, columns.take, looked_at)
    return Contest(f"files, {len(paths)} x {each}, batch 256", contestants, promise)


def _pictures(count: int) -> Columns:
    pixels = np.random.default_rng(0).integers(0, 256, (count, _SIDE, _SIDE, 3), np.uint8)
    return Columns({"image": pixels, "label": np.arange(count, dtype=np.int32)})


def _write(paths: list[str], columns: Columns) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    each = len(columns) // len(paths)
    for number, path in enumerate(paths):
        writer = ArrayRecordWriter(path, "group_size:1")
        for record in range(number * each, (number + 1) * each):
            writer.write(_PICTURE.encode(columns[record]))
        writer.close()


class _Rows:
    """Rows by number, of readers that stay open, each in its turn: nothing else is done.

    "in one call" asks a reader for its list of records, and "one by one" for each of them.
    """

    def __init__(self, paths: list[str], each: int, way: str) -> None:
        self._paths, self._each, self._way = paths, each, way
        self._readers: list[Any] = []
        self._of = 0  # the process that opened them

    def __len__(self) -> int:
        return self._each * len(self._paths)

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        if self._of != os.getpid():
            from array_record.python.array_record_module import ArrayRecordReader

            options = "readahead_buffer_size:0"
            self._readers = [ArrayRecordReader(path, options) for path in self._paths]
            self._of = os.getpid()
        places = indices.argsort()
        files, records = (part.tolist() for part in divmod(indices[places], self._each))
        blobs: list[bytes] = []
        if self._way == "one by one":
            for file, record in zip(files, records, strict=True):
                blobs += self._readers[file].read(record, record + 1)
        else:
            wanted: dict[int, list[int]] = {}
            for file, record in zip(files, records, strict=True):
                wanted.setdefault(file, []).append(record)
            for file, some in wanted.items():
                blobs += self._readers[file].read(some)
        rows = np.empty(len(indices), _ROW)
        rows[places] = np.frombuffer(b"".join(blobs), _ROW)
        return {name: np.ascontiguousarray(rows[name]) for name in ("image", "label")}


class _GrainRecords:
    """Grain's own source of these files, opened only in the process that reads."""

    def __init__(self, paths: list[str], count: int) -> None:
        self._paths, self._count = paths, count
        self._source: Any = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> bytes:
        if self._source is None:
            self._source = grain.sources.ArrayRecordDataSource(self._paths)
        return self._source[index]


class _ParsePicture(grain.transforms.Map):
    """The arrays of one record, as views of its bytes: batching copies them."""

    def map(self, element: bytes) -> Any:
        row = np.frombuffer(element, _ROW)[0]
        return {"image": row["image"], "label": row["label"]}
