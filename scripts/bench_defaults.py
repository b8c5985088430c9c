"""The workloads in which this loader does what it does by default, against rivals at their best.

Before the turns every contestant delivers some hundred batches in one go: loaders that choose
their threads by themselves have done so when they are measured.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from bench_contest import Batches, Contest, Contestant, Promise, Result
from bench_contestants import GRAIN_SETTINGS, Task, beside, grain_contestants, gristmill
from bench_data import images
from bench_jpeg import Jpegs, plain_loop
from bench_jpeg_rivals import SIZE, DecodeRegionFlip, tf_contestant, torch_contestant
from bench_process import in_child
from bench_timing import Pace, hold

from loader import Packed, Processes, TokenWindows
from operators import DecodeImage, RandomCrop, RandomFlip, RandomResizedCrop

_WARM_UP = 200
_STEP_S = 0.010
_SHAPES = {"image": ((SIZE, SIZE, 3), "uint8"), "label": ((), "int32")}
_WINDOW = (DecodeImage(), RandomCrop("image", SIZE, seed=0), RandomFlip("image", seed=0))


def crops(pace: Pace) -> Iterator[Result]:
    """JPEG images of 400 x 500: a random region at 224, random flip, host batches of 32."""
    source = in_child(Jpegs, 256, 400, 500)
    task = Task(source, 32)
    operators = [
        DecodeImage(),
        RandomResizedCrop("image", SIZE, seed=0),
        RandomFlip("image", seed=0),
    ]
    settings = tuple(s for s in GRAIN_SETTINGS if s.threads or (s.processes and not pace.quick))
    one = gristmill(task, lambda: source.columns, operators=operators)
    contestants = (
        Contestant("gristmill, one thread", one.make, "limit", ahead=one.ahead),
        gristmill(task, lambda: source.columns, workers="auto", operators=operators),
        tf_contestant(task, source, whole=False),
        torch_contestant(task, source, whole=False),
        *grain_contestants(task, (DecodeRegionFlip(),), settings),
    )
    yield _held("crops, host, batch 32", contestants, len(source), pace)


def steps(pace: Pace) -> Iterator[Result]:
    """JPEG images of 256: crop to 224, flip; beside a wait of 10 ms a step, and 10 ms of Python."""
    source = in_child(Jpegs, 512, 256, 256)
    task = Task(source, 32)
    tf = tf_contestant(task, source, whole=True)
    ours = functools.partial(gristmill, task, lambda: source.columns, operators=_WINDOW)
    limit, default = plain_loop(source, task.batch_size), ours(workers="auto")
    for words, step, others in (
        ("a wait of 10 ms", _waited, (torch_contestant(task, source, whole=True),)),
        ("10 ms of Python", _python_of(_STEP_S), (ours(workers=Processes(2)),)),
    ):
        contestants = [beside(step, one) for one in (limit, default, tf, *others)]
        yield _held(f"steps, JPEG beside {words}", contestants, len(source), pace)


def auto(pace: Pace) -> Iterator[Result]:
    """The threads that are chosen by default, against two fixed numbers and two processes."""
    jpegs, pictures = in_child(Jpegs, 512, 256, 256), images(50_000)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50_000, 20_000_000).astype(np.uint16)
    lengths = np.clip(rng.lognormal(5.3, 0.8, 20_000).astype(int), 8, 1024)
    documents = [{"tokens": rng.integers(0, 50_000, n).astype(np.int32)} for n in lengths]
    windows, packed = TokenWindows(tokens, 1024), Packed(documents, lengths, 1024)
    numbered = {"with_index": "label"}
    for name, source, batch_size, settings in (
        ("JPEG", jpegs.columns, 32, {"operators": _WINDOW}),
        ("token windows", windows, 64, numbered),
        ("arrays in memory", pictures.arrays, 256, {}),
        ("packed text", packed, 64, {}),
    ):
        count = len(source["label"] if isinstance(source, dict) else source)
        task = Task(range(count), batch_size)
        ours = functools.partial(gristmill, task, lambda source=source: source, **settings)
        fixed = ours(threads=1), ours(threads=2), ours(workers=Processes(2))
        contestants = [dataclasses.replace(one, family="fixed") for one in fixed]
        contestants.append(ours(workers="auto"))
        if source is packed:
            contestants = [_labelled(one, count) for one in contestants]
        yield _held(f"auto, {name}", contestants, count, pace)


def _labelled(contestant: Contestant, num_rows: int) -> Contestant:
    """With the numbers of rows, as packed ones have none: all that is looked at is how many."""

    def batches() -> Batches:
        start = 0
        for batch in contestant.make():
            stop = start + len(batch["tokens"])
            yield {**batch, "label": np.arange(start, stop) % num_rows}
            start = stop

    return dataclasses.replace(contestant, make=batches)


def _held(title: str, contestants: Any, count: int, pace: Pace) -> Result:
    """With a look at three quarters of an epoch: at its end tf.data begins the next."""
    number = "int64" if "packed" in title or "token" in title else "int32"
    shapes = _SHAPES if "JPEG" in title or "crops" in title else {"label": ((), number)}
    promise = Promise(count, shapes, looked_at=min(3 * count // 4, 20_000))
    return hold(Contest(title, tuple(contestants), promise, warm_up=_WARM_UP), pace)


def _waited() -> None:
    time.sleep(_STEP_S)


def _python_of(seconds: float) -> Callable[[], int]:
    """A loop in Python that takes so long when it has a core to itself."""
    tried = 50_000
    taken = min(_timed(tried) for _ in range(10))
    return functools.partial(_counted, round(tried * seconds / taken))


def _timed(turns: int) -> float:
    began = time.perf_counter()
    _counted(turns)
    return time.perf_counter() - began


def _counted(turns: int) -> int:
    total = 0
    for number in range(turns):
        total += number
    return total
