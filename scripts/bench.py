"""Speed, side by side: workloads by contestants, interleaved in one run.

    python scripts/bench.py                 all workloads
    python scripts/bench.py memory --quick  one of them, in less than a minute

Times on a shared machine drift, so contestants take turns (A B B A) and the figures to look at are
ratios of medians. A contestant counts only if, over an epoch, it delivered every record once; that
is checked before anything is timed.
"""

import argparse
import contextlib
import functools
import itertools
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import grain
import jax
import numpy as np
import tensorstore

from loader import (
    ArraySource,
    BlockShuffle,
    DataLoader,
    Sequential,
    Shuffle,
    TensorStoreSource,
    Threads,
)
from loader.stats import STAGES, Recorder, traced
from operators import DecodeImage, RandomCrop, RandomFlip

Batches = Iterator[dict[str, Any]]
Contestants = dict[str, Callable[[], Batches]]  # each makes an endless iterator of batches

WARM_UP_BATCHES = 10


def seconds_per_batch(
    contestants: Contestants, batches: int, rounds: int, settle: int = 0
) -> dict[str, tuple[float, float]]:
    """Median and half spread (of the middle half) of the time a batch takes, per contestant.

    Of each turn the first `settle` batches are not timed: those that threads or processes may have
    made ahead while another had its turn.
    """
    running = {name: make() for name, make in contestants.items()}
    for iterator in running.values():
        for _ in range(WARM_UP_BATCHES):
            next(iterator)
    times: dict[str, list[float]] = {name: [] for name in running}
    names = list(running)
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            for _ in itertools.islice(running[name], settle):
                pass
            start = time.perf_counter()
            for batch in itertools.islice(running[name], batches):
                _ = batch  # held until the next one is there, as a training loop does
            times[name].append((time.perf_counter() - start) / batches)
    return {name: _median_and_spread(values) for name, values in times.items()}


def _median_and_spread(values: list[float]) -> tuple[float, float]:
    first, median, third = statistics.quantiles(values, n=4)
    return median, (third - first) / 2


def check_each_record_once(contestants: Contestants, num_records: int, batch_size: int) -> None:
    """Refuse a contestant whose first epoch is not every record once."""
    for name, make in contestants.items():
        seen: list[int] = []
        for batch in make():
            valid = batch.get("valid_mask", np.ones(len(batch["label"]), bool))
            seen += np.asarray(batch["label"])[np.asarray(valid)].tolist()
            if len(seen) >= num_records:
                break
        if sorted(seen[:num_records]) != list(range(num_records)):
            raise SystemExit(f"{name} did not deliver each of {num_records} records once")


def report(workload: str, times: dict[str, tuple[float, float]], batch_size: int) -> dict[str, Any]:
    """Print a line per contestant and give the figures as data."""
    first = next(iter(times.values()))[0]
    print(f"\n{workload}")
    rows = {}
    for name, (median, spread) in times.items():
        rows[name] = {
            "us_per_batch": median * 1e6,
            "spread_us": spread * 1e6,
            "rows_per_s": batch_size / median,
            "ratio_to_first": first / median,
        }
        print(
            f"  {name:28s} {median * 1e6:9.1f} µs/batch ± {spread * 1e6:6.1f}"
            f"  {batch_size / median:12,.0f} rows/s   {first / median:5.2f} x the first"
        )
    return rows


def _images(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)


def memory(quick: bool) -> dict[str, Any]:
    """32x32x3 images with a label, 100 000 of them in memory, shuffled, as host batches."""
    num_records = 100_000
    rng = np.random.default_rng(0)
    data = {"image": _images(num_records), "label": np.arange(num_records, dtype=np.int32)}
    results = {}
    for batch_size in (1024, 256):

        def bare(batch_size: int = batch_size) -> Batches:
            while True:
                order = rng.permutation(num_records)
                for start in range(0, num_records, batch_size):
                    rows = order[start : start + batch_size]
                    yield {key: leaf[rows] for key, leaf in data.items()}

        def ours(batch_size: int = batch_size) -> Batches:
            loader = DataLoader(data, batch_size=batch_size, order=Shuffle(0), epochs=None)
            return loader.host_batches()

        def grain_map_dataset(batch_size: int = batch_size) -> Batches:
            dataset = grain.MapDataset.source(ArraySource(data)).shuffle(0).repeat()
            options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
            return iter(dataset.batch(batch_size).to_iter_dataset(options))

        fast: Contestants = {"numpy gather": bare, "gristmill": ours}
        slow: Contestants = {"grain MapDataset": grain_map_dataset}
        check_each_record_once({**fast, **slow}, num_records, batch_size)
        batches, rounds = (200, 8) if quick else (1000, 12)
        times = seconds_per_batch(fast, batches, rounds)
        times |= seconds_per_batch(slow, max(4, batches // 40), 4)
        results[f"memory, host, batch {batch_size}"] = report(
            f"memory, host, batch {batch_size}", times, batch_size
        )
    return results


class Jpegs:
    """JPEG images of 256 x 256 in memory, with their number; a Grain source."""

    def __init__(self, count: int) -> None:
        import cv2

        rng = np.random.default_rng(0)
        self.blobs = []
        for _ in range(count):
            coarse = rng.integers(0, 256, (32, 32, 3), np.uint8)
            image = cv2.resize(coarse, (256, 256), interpolation=cv2.INTER_CUBIC)
            self.blobs.append(cv2.imencode(".jpg", image)[1].tobytes())

    def __len__(self) -> int:
        return len(self.blobs)

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return {"image": self.blobs[index], "label": np.int32(index)}


class DecodeCropFlip(grain.transforms.RandomMap):
    """What the operators do, record by record, with the same decoder."""

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        import cv2

        data = np.frombuffer(element["image"], np.uint8)
        image: Any = cv2.imdecode(data, cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
        top, left = rng.integers(0, 33, 2)
        image = image[top : top + 224, left : left + 224]
        image = cv2.flip(image, 1) if rng.random() < 0.5 else np.ascontiguousarray(image)
        return {"image": image, "label": element["label"]}


def _decode_batches(source: Jpegs, batch_size: int) -> Batches:
    """Batches in the plainest way: a loop over records, in this thread."""
    step, rng = DecodeCropFlip(), np.random.default_rng(0)
    while True:
        order = rng.permutation(len(source))
        for start in range(0, len(source), batch_size):
            rows = [step.random_map(source[i], rng) for i in order[start : start + batch_size]]
            yield {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def _make_batches_when_told(pipe: Any, source: Jpegs, batch_size: int) -> None:
    batches = _decode_batches(source, batch_size)
    with contextlib.suppress(EOFError):  # the other end is gone
        while pipe.recv():
            next(batches)
            pipe.send(True)


def _in_two_processes(source: Jpegs, batch_size: int) -> Iterator[Any]:
    """The same loop in two processes that hand nothing over: what two cores can do at the most."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for _ in range(2):
        here, there = context.Pipe()
        arguments = (there, source, batch_size)
        context.Process(target=_make_batches_when_told, args=arguments, daemon=True).start()
        pipes.append(here)
    while True:
        for pipe in pipes:
            pipe.send(True)
        for pipe in pipes:
            pipe.recv()
            yield None


def jpeg(quick: bool) -> dict[str, Any]:
    """JPEG decode, random crop to 224, random flip, batches of 32, as host batches."""
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # Grain's worker processes ask for it
    batch_size, source = 32, Jpegs(512)

    def ours() -> Batches:
        operators = [DecodeImage(), RandomCrop("image", 224, seed=0), RandomFlip("image", seed=0)]
        loader = DataLoader(
            source,
            batch_size=batch_size,
            order=Shuffle(0),
            epochs=None,
            operators=operators,
            workers=Threads(2),
        )
        return loader.host_batches()

    def grain_dataset() -> grain.MapDataset[Any]:
        dataset = grain.MapDataset.source(source).seed(0).shuffle(0).repeat()
        return dataset.random_map(DecodeCropFlip()).batch(batch_size)

    def grain_threads() -> Batches:
        options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
        return iter(grain_dataset().to_iter_dataset(options))

    def grain_record_threads() -> Batches:
        dataset = grain.MapDataset.source(source).seed(0).shuffle(0).repeat()
        options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4 * batch_size)
        records = dataset.random_map(DecodeCropFlip()).to_iter_dataset(options)
        return iter(records.batch(batch_size))

    def grain_processes() -> Batches:
        options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        workers = grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)
        return iter(grain_dataset().to_iter_dataset(options).mp_prefetch(workers))

    contestants: Contestants = {
        "one thread, same decoder": functools.partial(_decode_batches, source, batch_size),
        "gristmill, Threads(2)": ours,
        "grain, 2 threads": grain_threads,
        "grain, 2 threads on records": grain_record_threads,
        "grain, 2 processes": grain_processes,
    }
    check_each_record_once(contestants, len(source), batch_size)
    limit = {
        "that in 2 processes (limit)": functools.partial(_in_two_processes, source, batch_size)
    }
    rounds = (16, 4) if quick else (48, 8)
    times = seconds_per_batch({**contestants, **limit}, *rounds, settle=8)
    title = "jpeg, decode, crop, flip, batch 32"
    return {title: report(title, times, batch_size)}


def zarr(quick: bool) -> dict[str, Any]:
    """3 KB records in zarr3, chunks of 64, batches of 256, as host batches."""
    num_records, batch_size = 20_000, 256
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: f"{folder}/{name}" for name in ("image", "label")}
        _write_zarr(paths["image"], _images(num_records), chunk=64)
        _write_zarr(paths["label"], np.arange(num_records, dtype=np.int32), chunk=num_records)
        stores = {name: _open_zarr(path) for name, path in paths.items()}

        def read(rows: Any) -> dict[str, Any]:
            reads = {name: store[rows].read() for name, store in stores.items()}
            return {name: future.result() for name, future in reads.items()}

        def contiguous() -> Batches:
            while True:
                for start in range(0, num_records, batch_size):
                    yield read(slice(start, min(start + batch_size, num_records)))

        def random_gather() -> Batches:
            rng = np.random.default_rng(0)
            while True:
                order = rng.permutation(num_records)
                for start in range(0, num_records, batch_size):
                    yield read(order[start : start + batch_size])

        def ours(shuffled: bool) -> Batches:
            source = TensorStoreSource(paths, cache_bytes=8 * 2**20)  # an eighth of the data
            order = Shuffle(0) if shuffled else BlockShuffle(0, source.block_size, window=16)
            loader = DataLoader(source, batch_size=batch_size, order=order, epochs=None)
            return loader.host_batches()

        fast: Contestants = {
            "contiguous read": contiguous,
            "gristmill, BlockShuffle": functools.partial(ours, False),
        }
        slow: Contestants = {
            "random gather": random_gather,
            "gristmill, Shuffle": functools.partial(ours, True),
        }
        check_each_record_once({**fast, **slow}, num_records, batch_size)
        epoch = -(-num_records // batch_size)  # whole ones: chunks are kept from batch to batch
        times = seconds_per_batch(fast, epoch * (2 if quick else 4), 6 if quick else 10)
        times |= seconds_per_batch(slow, 8, 4)
        return {"zarr, batch 256": report("zarr, batch 256", times, batch_size)}


def _open_zarr(path: str, **settings: Any) -> Any:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}
    return tensorstore.open({**spec, **settings}).result()


def _write_zarr(path: str, array: np.ndarray, chunk: int) -> None:
    layout = {"read_chunk": {"shape": [chunk, *array.shape[1:]]}}
    schema = {"dtype": array.dtype.name, "domain": {"shape": array.shape}, "chunk_layout": layout}
    _open_zarr(path, create=True, schema=schema).write(array).result()


def seek(quick: bool) -> dict[str, Any]:
    """Time to the next batch after a move, at position 0 and at 5e11 of 1e12 virtual records."""

    class Virtual:
        def __len__(self) -> int:
            return 10**12

        def __getitem__(self, index: int) -> dict[str, np.int64]:
            return {"id": np.int64(index)}

        def gather(self, indices: np.ndarray) -> dict[str, np.ndarray]:
            return {"id": indices.copy()}

    figures = {}
    for order in (Sequential(), Shuffle(0)):
        loader = DataLoader(Virtual(), batch_size=1000, order=order)
        times: dict[str, list[float]] = {"position 0": [], "position 5e11": []}
        for _ in range(10 if quick else 50):
            for name, step in (("position 0", 0), ("position 5e11", 5 * 10**8)):
                fresh = DataLoader(Virtual(), batch_size=1000, order=order)
                loader.seek(step)
                state = loader.get_state()
                start = time.perf_counter()
                fresh.set_state(state)
                next(fresh.host_batches())
                times[name].append(time.perf_counter() - start)
        medians = {name: _median_and_spread(values) for name, values in times.items()}
        name = f"seek, {type(order).__name__}: set_state and the next batch"
        figures[name] = report(name, medians, 1000)
    return figures


def overlap(quick: bool) -> dict[str, Any]:
    """A load and a step of about equal length, both waits that hold no core."""
    wait_s = 0.02

    class Slow(ArraySource):
        def gather(self, indices: np.ndarray) -> Any:
            time.sleep(wait_s)
            return super().gather(indices)

    total = jax.jit(lambda x: x.sum())

    def step(batch: dict[str, Any]) -> None:
        time.sleep(wait_s)
        total(batch["x"]).block_until_ready()

    def seconds_per_step(prefetch: int, run: Callable[[dict[str, Any]], None]) -> float:
        source = Slow({"x": np.zeros((4096, 64), np.float32)})
        with DataLoader(source, batch_size=64, epochs=None, prefetch=prefetch) as loader:
            for batch in itertools.islice(loader, 5):
                run(batch)
            start = time.perf_counter()
            for batch in itertools.islice(loader, steps):
                run(batch)
            return (time.perf_counter() - start) / steps

    steps = 50 if quick else 200
    both = seconds_per_step(0, step)
    load = seconds_per_step(0, lambda batch: None)
    longer = max(load, both - load)
    figures = {"load_ms": load * 1e3, "step_ms": (both - load) * 1e3}
    print(f"\noverlap: load {load * 1e3:.1f} ms, step {(both - load) * 1e3:.1f} ms")
    for prefetch in (1, 2):
        wall = seconds_per_step(prefetch, step)
        figures[f"prefetch={prefetch}, over the longer"] = wall / longer
        print(
            f"  prefetch={prefetch}  {wall * 1e3:6.2f} ms/step   {wall / longer:.3f} x the longer"
        )
    return {"overlap": figures}


def state(quick: bool) -> dict[str, Any]:
    """How long `get_state` takes, and how large its document is."""
    loader = DataLoader({"x": np.arange(1000)}, batch_size=10, order=Shuffle(0))
    document = loader.get_state()  # the first reads a few records for the fingerprint
    times = []
    for _ in range(200 if quick else 2000):
        start = time.perf_counter()
        loader.get_state()
        times.append(time.perf_counter() - start)
    figures = {"us": statistics.median(times) * 1e6, "bytes": len(json.dumps(document))}
    print(f"\nstate\n  get_state {figures['us']:.1f} µs, {figures['bytes']} bytes")
    return {"state": figures}


def stats(quick: bool) -> dict[str, Any]:
    """What is noted for every batch, always: its cost beside a step of one millisecond."""
    recorder = Recorder()
    times = []
    for _ in range(2000 if quick else 20_000):
        start = time.perf_counter_ns()
        now = start
        for stage in STAGES:
            with traced(stage):
                now = recorder.add(stage, now)
        recorder.delivered(start, 256, 0, 1 << 20, 2)
        times.append(time.perf_counter_ns() - start)
    median = statistics.median(times) / 1e3
    print(f"\nstats\n  {median:.1f} µs a batch, {median / 10:.2f} % of a step of 1 ms")
    return {"stats": {"us": median}}


WORKLOADS = {
    "memory": memory,
    "zarr": zarr,
    "jpeg": jpeg,
    "seek": seek,
    "overlap": overlap,
    "state": state,
    "stats": stats,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(WORKLOADS)}; all if none")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: under a minute")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    args = parser.parse_args()
    if unknown := [name for name in args.workloads if name not in WORKLOADS]:
        parser.error(f"no workload {', '.join(unknown)}: there are {', '.join(WORKLOADS)}")
    results: dict[str, Any] = {}
    for name in args.workloads or WORKLOADS:
        results |= WORKLOADS[name](args.quick)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
