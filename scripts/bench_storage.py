"""The workload in which records are in a bucket: a store on loopback that counts what it is asked.

Full against block shuffle, in requests and bytes of an epoch, with Grain's own reader beside them;
and the speed of reading through a cache that holds all of it, beside local files.
"""

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench_contest import Batches, Contest, Facts, Promise, Result
from bench_contestants import Task, gristmill
from bench_data import IMAGE, Columns, images, write_array_record
from bench_process import in_child
from bench_timing import Pace, hold

from loader import ArrayRecordSource, BlockShuffle, DataLoader, DiskCache, Shuffle

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import environment

_BUCKET = "bucket"
_EACH, _BATCH, _WINDOW = 512, 256, 2  # records of a file, rows, files
_FULL, _BLOCK = "Shuffle, each record by itself", "BlockShuffle, a cache of two windows"


def storage(pace: Pace) -> Iterator[Facts | Result]:
    """3 KB records in ArrayRecord files of a bucket: requests, bytes, and reads from a cache."""
    count = 8 if pace.quick else 32
    columns = images(count * _EACH)
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{number:02}.array_record" for number in range(count)]
        in_child(_write, paths, columns)
        yield Facts("storage, an epoch", in_child(_epoch, paths, folder))
        yield hold(_from_cache(paths, folder, columns, pace), pace)


def _write(paths: list[str], columns: Columns) -> None:
    each = len(columns) // len(paths)
    for number, path in enumerate(paths):
        part = {k: v[number * each : (number + 1) * each] for k, v in columns.arrays.items()}
        write_array_record(Path(path), Columns(part))


def _epoch(paths: list[str], folder: str) -> dict[str, float]:
    """Requests and bytes of an epoch, by what reads it.

    array_record asks for a file from a record to its end, and closes the connection when it has
    that record. What the store had sent by then is not known: bytes are those that were asked for.
    """
    size = sum(os.path.getsize(path) for path in paths)
    urls = [f"gs://{_BUCKET}/{os.path.basename(path)}" for path in paths]
    cache = DiskCache(f"{folder}/windows", 2 * _WINDOW * size // len(urls))
    blocks, full = BlockShuffle(0, window=_WINDOW), Shuffle(0)
    readers: dict[str, Callable[[], Batches]] = {
        "Grain": functools.partial(_read_by_grain, urls),
        _FULL: functools.partial(_read, urls, full, None, f"{folder}/index"),
        _BLOCK: functools.partial(_read, urls, blocks, cache, f"{folder}/index"),
    }
    values: dict[str, float] = {"data, MB": size / 1e6}
    with _store(paths) as counts:
        for name, read in readers.items():
            batches = read()
            next(batches)  # files are opened and counted
            values[f"{name}: requests to open"], _ = counts()
            for _ in batches:
                pass
            values[f"{name}: requests"], values[f"{name}: MB asked for"] = counts()
    for what in ("requests", "MB asked for"):
        ours = values[f"{_BLOCK}: {what}"]
        values[f"{what}, block over full"] = ours / values[f"{_FULL}: {what}"]
        values[f"{what}, block over Grain"] = ours / values[f"Grain: {what}"]
    return values


@contextlib.contextmanager
def _store(paths: list[str]) -> Iterator[Callable[[], tuple[int, float]]]:
    """A store with these files, to which the environment leads, in a process of its own: while
    array_record reads, no thread of its process gets on.

    What it gives says how many reads there were since it was asked last, and of how many MB.
    """
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(paths, theirs))
    process.start()
    os.environ.update(environment(url := ours.recv()))
    os.environ["CLOUD_STORAGE_EMULATOR_ENDPOINT"] = url

    def counts() -> tuple[int, float]:
        ours.send("counts")
        return ours.recv()

    try:
        yield counts
    finally:
        ours.send("end")
        process.join()


def _serve(paths: list[str], pipe: Any) -> None:
    with FakeStore() as store:
        for path in paths:
            store.put(_BUCKET, os.path.basename(path), Path(path).read_bytes())
        pipe.send(store.url)
        while pipe.recv() == "counts":
            reads = store.log.of("read")
            store.log.clear()
            pipe.send((len(reads), reads.bytes / 1e6))


def _read(urls: list[str], order: Any, cache: DiskCache | None, index: str) -> Batches:
    """A batch of nothing, then those of an epoch. What files hold is found out once."""
    source = ArrayRecordSource(urls, IMAGE, index=index, cache=cache)
    with DataLoader(source, batch_size=_BATCH, order=order) as loader:
        yield {}
        yield from loader.host_batches()


def _read_by_grain(urls: list[str]) -> Batches:
    import grain

    source: Any = grain.sources.ArrayRecordDataSource(urls)
    dataset = grain.MapDataset.source(source).shuffle(0)
    yield {}
    yield from dataset.map(IMAGE).batch(_BATCH)


def _from_cache(paths: list[str], folder: str, columns: Columns, pace: Pace) -> Contest:
    """A cache that holds all of the files, which the check of what is delivered has filled."""
    task = Task(columns, _BATCH)
    cache = DiskCache(f"{folder}/all", "10GB")
    local = gristmill(task, functools.partial(ArrayRecordSource, paths, IMAGE))
    cached = gristmill(task, functools.partial(ArrayRecordSource, paths, IMAGE, cache=cache))
    contestants = (
        dataclasses.replace(local, name="gristmill, local files", family="limit"),
        dataclasses.replace(cached, name="gristmill, from the cache"),
    )
    shapes = {name: (a.shape[1:], a.dtype.name) for name, a in columns.arrays.items()}
    promise = Promise(len(columns), shapes, columns.take)
    return Contest("storage, from a cache, batch 256", contestants, promise)
