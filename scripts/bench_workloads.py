"""The workloads in which contestants read records as they are: from memory and from files."""

import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np
from bench_contest import Batches, Contest, Contestant, Promise, Result
from bench_contestants import (
    GRAIN_SETTINGS,
    GrainSetting,
    Task,
    grain_contestants,
    gristmill,
    limit,
)
from bench_data import (
    IMAGE,
    Columns,
    images,
    open_zarr,
    table,
    write_array_record,
    write_zarr,
)
from bench_frameworks import framework_contestants
from bench_process import in_child
from bench_timing import Pace, hold

from loader import ArrayRecordSource, BlockShuffle, Shuffle, TensorStoreSource

PLACES = {0: "host", 1: "one device", 8: "mesh of eight"}
_QUICK_LOOK = 4096  # records that --quick looks at in the check
_SLOW = ("processes", "threads_on_records", "data_loader")  # to start, or at all
_QUICK_GRAIN = tuple(s for s in GRAIN_SETTINGS if not any(getattr(s, name) for name in _SLOW))


def _promise(columns: Columns, pace: Pace) -> Promise:
    shapes = {name: (a.shape[1:], a.dtype.name) for name, a in columns.arrays.items()}
    return Promise(len(columns), shapes, columns.take, _QUICK_LOOK if pace.quick else len(columns))


def _grain_settings(pace: Pace) -> tuple[GrainSetting, ...]:
    return _QUICK_GRAIN if pace.quick else GRAIN_SETTINGS


def memory(pace: Pace) -> Iterator[Result]:
    """32 x 32 x 3 bytes with a label, 100 000 of them, shuffled; on host, device and mesh."""
    columns = images(100_000)
    cases = [(0, 1024), (0, 256), (1, 256), (8, 1024)]
    if not pace.quick:
        cases = [(devices, size) for devices in PLACES for size in (1024, 256)]
    for devices, batch_size in cases:
        others = devices == 1 or not pace.quick
        yield hold(
            _in_memory("memory", columns, Task(columns, batch_size, devices), others, pace), pace
        )


def tabular(pace: Pace) -> Iterator[Result]:
    """64 floats with a label, 100 000 of them, shuffled, as host batches."""
    columns = table(100_000)
    for batch_size in (1024,) if pace.quick else (1024, 256):
        contest = _in_memory("tabular", columns, Task(columns, batch_size), not pace.quick, pace)
        yield hold(contest, pace)


def _in_memory(name: str, columns: Columns, task: Task, others: bool, pace: Pace) -> Contest:
    def arrays() -> dict[str, np.ndarray]:
        return columns.arrays

    settings = _grain_settings(pace)
    if pace.quick and (task.devices or task.batch_size > 256):
        settings = settings[:1]
    contestants = [
        limit("numpy gather", columns.take, task),
        gristmill(task, arrays),
        *([gristmill(task, arrays, prefetch=0)] if task.devices else ()),
        *grain_contestants(task, settings=settings),
    ]
    if others:
        workers = (0,) if pace.quick else (0, 2)
        contestants += framework_contestants(task, columns, workers)
    title = f"{name}, {PLACES[task.devices]}, batch {task.batch_size}"
    return Contest(title, tuple(contestants), _promise(columns, pace))


def arrayrecord(pace: Pace) -> Iterator[Result]:
    """3 KB records in an ArrayRecord file, shuffled, as host batches of 256."""
    columns = images(20_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.array_record"
        in_child(write_array_record, path, columns)
        task = Task(_ArrayRecords(str(path), len(columns)), 256)
        source = functools.partial(ArrayRecordSource, str(path), IMAGE)
        contestants = [
            _bare_array_record(path, len(columns), task),
            gristmill(task, source),
            gristmill(task, source, threads=2),
            *grain_contestants(task, (_ParseImage(),), _grain_settings(pace)),
        ]
        title = "arrayrecord, host, batch 256"
        yield hold(Contest(title, tuple(contestants), _promise(columns, pace)), pace)


class _ArrayRecords:
    """Grain's own source of ArrayRecord files, opened only in the process that reads."""

    def __init__(self, path: str, count: int) -> None:
        self._path, self._count = path, count
        self._source: Any = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> bytes:
        if self._source is None:
            self._source = grain.sources.ArrayRecordDataSource([self._path])
        return self._source[index]


class _ParseImage(grain.transforms.Map):
    """The arrays of one record, as views of its bytes: batching copies them."""

    def map(self, element: bytes) -> Any:
        pixels = np.frombuffer(element, np.uint8, 3072).reshape(32, 32, 3)
        return {"image": pixels, "label": np.frombuffer(element, np.int32, 1, 3072)[0]}


def _bare_array_record(path: Path, num_records: int, task: Task) -> Contestant:
    row = np.dtype([("image", np.uint8, (32, 32, 3)), ("label", np.int32)])

    def make() -> Batches:
        from array_record.python.array_record_module import ArrayRecordReader

        reader = ArrayRecordReader(str(path), "readahead_buffer_size:0")

        def take(indices: np.ndarray) -> dict[str, Any]:
            rows = np.frombuffer(b"".join(reader.read(indices.tolist())), row)
            return {name: np.ascontiguousarray(rows[name]) for name in ("image", "label")}

        return limit("", take, Task(range(num_records), task.batch_size)).make()

    return Contestant("bare reader, stacked", make, "limit")


def zarr(pace: Pace) -> Iterator[Result]:
    """3 KB records in zarr3, chunks of 64, as host batches of 256."""
    columns = images(20_000)
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: f"{folder}/{name}" for name in columns.arrays}
        in_child(write_zarr, paths, columns, 64)
        task = Task(range(len(columns)), 256)

        def source() -> TensorStoreSource:
            return TensorStoreSource(paths, cache_bytes=8 * 2**20)  # an eighth of the data

        contestants = (
            Contestant("contiguous read", functools.partial(_zarr_in_order, paths, task), "limit"),
            gristmill(task, source, order=BlockShuffle(0, 64, window=16)),
            gristmill(task, source, order=Shuffle(0)),
            Contestant("random gather", functools.partial(_zarr_shuffled, paths, task), "random"),
        )
        title = "zarr, host, batch 256"
        promise = _promise(columns, pace)
        # Whole epochs: chunks are kept from batch to batch.
        yield hold(Contest(title, contestants, promise, whole_epochs=True), pace)


def _zarr_reads(paths: dict[str, str]) -> Callable[[Any], dict[str, Any]]:
    stores = {name: open_zarr(path) for name, path in paths.items()}

    def read(rows: Any) -> dict[str, Any]:
        reads = {name: store[rows].read() for name, store in stores.items()}
        return {name: future.result() for name, future in reads.items()}

    return read


def _zarr_in_order(paths: dict[str, str], task: Task) -> Batches:
    read, count = _zarr_reads(paths), len(task.records)
    while True:
        for start in range(0, count, task.batch_size):
            yield read(slice(start, min(start + task.batch_size, count)))


def _zarr_shuffled(paths: dict[str, str], task: Task) -> Batches:
    return limit("", _zarr_reads(paths), task).make()
