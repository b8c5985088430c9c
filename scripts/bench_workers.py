"""The workloads of workers: Python that holds the interpreter, large batches, waits, starts."""

import functools
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from bench_contest import Contest, Contestant, Facts, Promise, Result
from bench_contestants import GRAIN_SETTINGS, Task, grain_contestants, gristmill
from bench_data import Columns
from bench_frameworks import torch_batches
from bench_process import in_child
from bench_ray import on_ray
from bench_timing import Pace, hold

from loader import DataLoader, Processes, Shuffle, Threads

_TIMED = 50_000  # turns of a loop in Python


def workers(pace: Pace) -> Iterator[Result | Facts]:
    """A Python function of 200 µs a record; batches of 1 and 16 MiB; waits; starts; a busy loop."""
    yield _python(pace)
    for mib in (1, 16):
        yield _handing_over(pace, mib)
    yield Facts("workers, waits", in_child(_waits))
    yield Facts("workers, first batch", in_child(_starts))
    if importlib.util.find_spec("ray") is not None:
        yield Facts("workers, on Ray", in_child(on_ray))
    yield Facts(
        "workers, beside 5 ms of Python a step", in_child(_slowed, 40 if pace.quick else 200)
    )


def _spin(turns: int) -> int:
    """A loop in Python, which holds the interpreter."""
    total = 0
    for number in range(turns):
        total += number
    return total


def _turns(seconds: float) -> int:
    """How many turns take so long on this machine."""
    return round(_TIMED * seconds / min(_timed(_spin, _TIMED) for _ in range(20)))


class Spin:
    """Adds a leaf after a loop in Python of 200 µs."""

    def __init__(self) -> None:
        self._turns = _turns(200e-6)

    def map(self, record: Any) -> Any:
        return {**record, "total": np.int32(_spin(self._turns) % 1000)}


class Wait:
    """Waits, as reading from elsewhere does."""

    def __call__(self, rows: Any) -> Any:
        time.sleep(0.02)
        return rows


class Spun:
    """Records after the loop, for torch."""

    def __init__(self, columns: Columns, spin: Spin) -> None:
        self._columns = columns
        self._spin = spin

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, index: int) -> Any:
        return self._spin.map(self._columns[index])


def _python(pace: Pace) -> Result:
    columns = _columns(2048, 16)
    task, spin = Task(columns, 64), Spin()
    source = functools.partial(dict, columns.arrays)
    one = gristmill(task, source, operators=[spin])
    contestants = (
        Contestant("gristmill, one thread", one.make, "limit", ahead=one.ahead),
        gristmill(task, source, workers=Processes(2), operators=[spin]),
        *grain_contestants(task, (spin.map,), _GRAIN),
        _torch(task, Spun(columns, spin)),
    )
    promise = Promise(2048, {"label": ((), "int32"), "total": ((), "int32")})
    return hold(Contest("workers, Python, batch 64", contestants, promise), pace)


def _handing_over(pace: Pace, mib: int) -> Result:
    """Trivial work: what remains is to hand batches over."""
    columns = _columns(512, mib * 4096)  # float32, in batches of 64
    task = Task(columns, 64)
    source = functools.partial(dict, columns.arrays)
    one = gristmill(task, source)
    contestants = (
        Contestant("gristmill, one thread", one.make, "limit", ahead=one.ahead),
        gristmill(task, source, workers=Processes(2)),
        *grain_contestants(task, (), _GRAIN),
        _torch(task, columns),
    )
    promise = Promise(512, {"label": ((), "int32")})
    return hold(Contest(f"workers, batches of {mib} MiB", contestants, promise), pace)


_GRAIN = tuple(setting for setting in GRAIN_SETTINGS if setting.processes)


def _torch(task: Task, records: Any) -> Contestant:
    make = functools.partial(torch_batches, task, records, by_batch=False, workers=2)
    return Contestant("torch, 2 workers", make, "torch", "torch", ahead=9)


def _columns(count: int, width: int) -> Columns:
    x = np.random.default_rng(0).random((count, width), np.float32)
    return Columns({"x": x, "label": np.arange(count, dtype=np.int32)})


def _waits() -> dict[str, float]:
    """A wait of 20 ms a batch: batches a second of eight workers, over those of one."""
    from concurrent.futures import ThreadPoolExecutor

    from loader import On

    kinds = {
        "Threads(8)": Threads(8),
        "Processes(8)": Processes(8, ahead=24),
        "On(ThreadPoolExecutor(8))": On(ThreadPoolExecutor(8), ahead=24),
    }
    one = _batches_per_s(Threads(1), 40)
    return {f"{name}, times one": _batches_per_s(kind, 320) / one for name, kind in kinds.items()}


def _batches_per_s(kind: Any, count: int) -> float:
    columns = _columns(512, 16)
    with DataLoader(
        dict(columns.arrays), batch_size=8, epochs=None, operators=[Wait()], workers=kind
    ) as loader:
        batches = loader.host_batches()
        for _ in range(count):  # the workers start, all of them
            next(batches)
        began = time.perf_counter()
        for _ in range(count):
            next(batches)
        return count / (time.perf_counter() - began)


def _starts() -> dict[str, float]:
    """Seconds to the first batch with two processes, in turns; medians."""
    columns = _columns(512, 16)
    task = Task(columns, 64)
    ours = gristmill(task, functools.partial(dict, columns.arrays), workers=Processes(2))
    (grain,) = grain_contestants(task, (), _GRAIN)
    taken: dict[str, list[float]] = {"gristmill": [], "grain": []}
    for _ in range(3):
        for name, contestant in (("gristmill", ours), ("grain", grain)):
            began = time.perf_counter()
            batches = contestant.make()
            next(batches)
            taken[name].append(time.perf_counter() - began)
            del batches
    first, rival = (statistics.median(seconds) for seconds in taken.values())
    return {"gristmill, s": first, "grain, s": rival, "over grain": first / rival}


def _slowed(steps: int) -> dict[str, float]:
    """How much longer a step of 5 ms of Python takes beside a worker, which has as much to do."""
    columns, spin, turns = _columns(2048, 16), Spin(), _turns(5e-3)

    def loop(kind: Any) -> float:
        with DataLoader(
            dict(columns.arrays),
            batch_size=16,
            epochs=None,
            order=Shuffle(0),
            operators=[spin],
            workers=kind,
        ) as loader:
            batches = loader.host_batches()
            for _ in range(10):
                next(batches)
            taken = 0.0
            for _ in range(steps):
                next(batches)
                taken += _timed(_spin, turns)
            return taken / steps

    alone = sum(_timed(_spin, turns) for _ in range(steps)) / steps
    beside = {"Processes(1)": Processes(1), "one thread": Threads(1)}
    return {f"{name}, times the step alone": loop(kind) / alone for name, kind in beside.items()}


def _timed(function: Callable[[int], Any], turns: int) -> float:
    began = time.perf_counter()
    function(turns)
    return time.perf_counter() - began
