"""The workloads without rivals: what the loader itself costs, how it starts, grows and overlaps."""

import functools
import itertools
import json
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from bench_contest import Batches, Contest, Contestant, Facts, Promise, Result
from bench_contestants import Task, gristmill, target
from bench_data import Virtual
from bench_process import in_child
from bench_timing import Pace, hold

from loader import (
    ArraySource,
    DataLoader,
    FilesSource,
    Mapped,
    Packed,
    Sequential,
    Shuffle,
    index_lengths,
)
from loader.records.jax_settings import traced
from loader.runtime.host_pipeline import Made
from loader.runtime.stats import STAGES, Recorder
from loader.runtime.workers.auto import HelperCount
from operators import ByteTokenizer, Tokenize

_LABELS = {"label": ((), "int32")}
_FAR = 10**9


def overhead(pace: Pace) -> Iterator[Result]:
    """A source that costs nothing, batches of 256, prefetch on: what a batch costs at least."""
    for devices, place in ((1, "one device"), (8, "mesh of eight")):
        task = Task(Virtual(100_000), 256, devices)
        bare = functools.partial(_placed_numbers, task)
        contestants = (
            Contestant("device_put alone", bare, "limit", devices=devices),
            gristmill(task, functools.partial(Virtual, len(task.records))),
        )
        promise = Promise(len(task.records), _LABELS)
        yield hold(Contest(f"overhead, {place}, batch 256", contestants, promise), pace)


def _placed_numbers(task: Task) -> Batches:
    """A batch with its mask, as the loader delivers them, and nothing else."""
    where, size = target(task.devices), task.batch_size
    mask = np.ones(size, bool)
    for start in itertools.count(0, size):
        rows = np.arange(start, start + size) % len(task.records)
        batch = {"label": rows.astype(np.int32), "valid_mask": mask.copy()}
        yield jax.device_put(batch, where)


def scale(pace: Pace) -> Iterator[Result]:
    """10^4 to 10^9 virtual records, shuffled, host batches of 250: time per batch and memory."""
    contestants = []
    for power in (4, 6, 9):
        task = Task(Virtual(10**power), 250)
        ours = gristmill(task, functools.partial(Virtual, len(task.records)))
        contestants.append(Contestant(f"10^{power} records", ours.make, "gristmill"))
    # The same for all, as far as the smallest goes: it must not show in the memory.
    promise = Promise(10**9, _LABELS, looked_at=10**4)
    yield hold(Contest("scale, host, batch 250", tuple(contestants), promise), pace)


def resume(pace: Pace) -> Iterator[Facts]:
    """A new loader goes on from a state at position 0, and from one at position 10^9."""
    for order in (Sequential(), Shuffle(0)):
        values = in_child(_resume, order, 10 if pace.quick else 50)
        yield Facts(f"resume, {type(order).__name__}", values)


def _resume(order: Any, times: int) -> dict[str, float]:
    batch_size = 1000

    def make() -> DataLoader:
        return DataLoader(Virtual(2 * _FAR), batch_size=batch_size, order=order)

    states = {}
    for position in (0, _FAR):
        loader = make()
        loader.seek(position // batch_size)
        states[position] = json.dumps(loader.get_state())
    seconds: dict[int, list[float]] = {position: [] for position in states}
    for number in range(times + 2):
        for position in states if number % 2 else reversed(states):
            start = time.perf_counter()
            loader = make()
            loader.set_state(json.loads(states[position]))
            jax.block_until_ready(next(loader))
            seconds[position].append(time.perf_counter() - start)
            loader.close()
    near, far = (statistics.median(seconds[position][2:]) for position in states)
    return {
        "first batch at 0, ms": near * 1e3,
        "first batch at 1e9, ms": far * 1e3,
        "at 1e9 over at 0": far / near,
        "state, bytes": max(len(state) for state in states.values()),
    }


def overlap(pace: Pace) -> Iterator[Facts]:
    """A load and a step of about equal length, both waits that hold no core."""
    yield Facts("overlap", in_child(_overlap, 50 if pace.quick else 200))


class _Slow(ArraySource):
    """A source that waits before each batch."""

    wait_s = 0.02

    def gather(self, indices: np.ndarray) -> Any:
        time.sleep(self.wait_s)
        return super().gather(indices)


def _overlap(steps: int) -> dict[str, float]:
    total = jax.jit(lambda x: x.sum())

    def step(batch: dict[str, Any]) -> None:
        time.sleep(_Slow.wait_s)
        total(batch["x"]).block_until_ready()

    def seconds_per_step(prefetch: int, run: Callable[[dict[str, Any]], None]) -> float:
        source = _Slow({"x": np.zeros((4096, 64), np.float32)})
        with DataLoader(source, batch_size=64, epochs=None, prefetch=prefetch) as loader:
            for batch in itertools.islice(loader, 5):
                run(batch)
            start = time.perf_counter()
            for batch in itertools.islice(loader, steps):
                run(batch)
            return (time.perf_counter() - start) / steps

    both = seconds_per_step(0, step)
    load = seconds_per_step(0, lambda batch: None)
    values = {"load, ms": load * 1e3, "step, ms": (both - load) * 1e3}
    for prefetch in (1, 2):
        wall = seconds_per_step(prefetch, step)
        values[f"prefetch={prefetch}, wall over the longer"] = wall / max(load, both - load)
    return values


def packing(pace: Pace) -> Iterator[Facts]:
    """Python's own files as bytes, split into packed rows: tokens in memory, in a file, kept."""
    yield Facts("packing", in_child(_packing, 5 if pace.quick else 15))


def _packing(turns: int) -> dict[str, float]:
    files = FilesSource(str(Path(sysconfig.get_path("stdlib")) / "[a-m]*.py"))
    rows, length, batches = 16, 1025, 40

    def texts() -> Mapped:
        return Mapped(files, [Tokenize(tokenizer=ByteTokenizer(eos=True))])

    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/tokens.bin"
        lengths = index_lengths(texts(), tokens=file)

        def packed(source: Any, **how: Any) -> DataLoader:
            source = Packed(source, lengths, length, **{"long": "split", **how})
            return DataLoader(source, batch_size=rows, order=Shuffle(0), epochs=None)

        loaders = {
            "memory": packed([{"tokens": record["tokens"]} for record in texts()]),
            "file": packed(texts(), tokens=file),
            "kept": packed(texts()),
            "concat": packed(texts(), tokens=file, mode="concat", long="refuse"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in loaders}
        running = {name: loader.host_batches() for name, loader in loaders.items()}
        for name, batch in running.items():  # the first pass, which is not counted
            for _ in itertools.islice(batch, loaders[name].steps_per_epoch):
                pass
        for turn in range(turns):
            for name in seconds if turn % 2 else reversed(seconds):
                start = time.perf_counter()
                for _ in itertools.islice(running[name], batches):
                    pass
                seconds[name].append(time.perf_counter() - start)
        for loader in loaders.values():
            loader.close()
    times = {name: np.array(own) for name, own in seconds.items()}
    tokens = rows * length * batches
    return {
        "memory, tokens/s": tokens / statistics.median(seconds["memory"]),
        "file, time over memory": float(np.median(times["file"] / times["memory"])),
        "kept, time over memory": float(np.median(times["kept"] / times["memory"])),
        "concat in a file, time over file": float(np.median(times["concat"] / times["file"])),
    }


def state(pace: Pace) -> Iterator[Facts]:
    """How long `get_state` takes, and how large its document is."""
    yield Facts("state", in_child(_state, 200 if pace.quick else 2000))


def _state(times: int) -> dict[str, float]:
    loader = DataLoader({"x": np.arange(1000)}, batch_size=10, order=Shuffle(0))
    document = loader.get_state()  # the first reads a few records for the fingerprint
    median_us = _median_us(loader.get_state, times)
    return {"get_state, us": median_us, "state, bytes": len(json.dumps(document))}


def stats(pace: Pace) -> Iterator[Facts]:
    """What is noted for every batch, always: its cost beside a step of one millisecond."""
    median_us = in_child(_stats, 2000 if pace.quick else 20_000)
    yield Facts("stats", {"per batch, us": median_us, "of a step of 1 ms, %": median_us / 10})


def _stats(times: int) -> float:
    recorder, chosen = Recorder(), HelperCount()

    def note_a_batch() -> None:
        start = now = time.perf_counter_ns()
        times_ns = {}
        for stage in STAGES:
            with traced(stage):
                earlier, now = now, time.perf_counter_ns()
                times_ns[stage] = now - earlier
        recorder.delivered(start, Made(None, 0, 256, 256, 0, times_ns), 1 << 20, 2, chosen)

    return _median_us(note_a_batch, times)


def _median_us(function: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e6
