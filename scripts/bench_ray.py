"""Host work on Ray actors: handing over large batches, and waits that eight of them share."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from loader import DataLoader, Ray
from loader.records.optional import optional

_MIB = 16
_AHEAD = 4
_WAIT_S = 0.02


class Wait:
    """Waits, as reading from elsewhere does."""

    def __call__(self, rows: Any) -> Any:
        time.sleep(_WAIT_S)
        return rows


def on_ray() -> dict[str, float]:
    """Ratios of one run, on a cluster of this machine that stays for all of it."""
    keeps = _loader(_ray(1), 16)  # it starts the cluster
    next(keeps)
    with keeps:
        one, eight = (_waits_per_s(count) for count in (1, 8))
        bare, ours = _handed_over()
        shared, apart = _two_jobs(_ray(4, share="two jobs")), _two_jobs(_ray(2))
    return {
        f"batches of {_MIB} MiB, times a bare loop": ours / bare,
        f"batches of {_MIB} MiB, ms": 1e3 / ours,
        "a wait of 20 ms, eight actors, times one": eight / one,
        "two jobs on a service of four actors, times two with two actors each": shared / apart,
    }


def _ray(count: int, ahead: int | None = None, share: str | None = None) -> Ray:
    """Actors that find a place on any number of cores: most of them only wait."""
    return Ray(count, ahead=ahead, options={"num_cpus": 0}, share=share)


def _loader(kind: Ray, width: int, *operators: Any) -> DataLoader:
    x = np.random.default_rng(0).random((512, width), np.float32)
    return DataLoader({"x": x}, batch_size=64, epochs=None, operators=list(operators), workers=kind)


def _waits_per_s(count: int) -> float:
    with _loader(_ray(count, 3 * count), 16, Wait()) as loader:
        return _per_s(loader, 40 * count, 40 * count)


def _two_jobs(kind: Ray) -> float:
    """Batches a second that two jobs get together, each at its own speed."""
    one, other = (_loader(kind, 16, Wait()) for _ in range(2))
    with ThreadPoolExecutor(2) as pool, one, other:
        return sum(pool.map(lambda job: _per_s(job, 100, 300), (one, other)))


def _per_s(batches: Iterator[Any], first: int, timed: int) -> float:
    for _ in range(first):  # the actors start, all of them
        next(batches)
    began = time.perf_counter()
    for _ in range(timed):
        next(batches)
    return timed / (time.perf_counter() - began)


def _handed_over() -> tuple[float, float]:
    """Batches a second by a bare loop over two actors, and by a loader with two; in turns."""
    with _loader(_ray(2, _AHEAD), _MIB * 4096) as loader:
        bare = _bare_loop(loader)
        turns = [(_per_s(bare, 40, 100), _per_s(loader, 40, 100)) for _ in range(5)]
    bare_per_s, ours = (sorted(side)[len(turns) // 2] for side in zip(*turns, strict=True))
    return bare_per_s, ours


def _bare_loop(loader: DataLoader) -> Iterator[Any]:
    """What one would write: actors that have the pipeline, asked in turn, answers in order."""
    ray = optional("ray", "this workload", "ray")

    class Maker:
        def __init__(self, pipeline: Any) -> None:
            self._pipeline = pipeline

        def batch(self, step: int) -> Any:
            return self._pipeline.batch(step)

    pipeline = ray.put(loader.pipeline)
    actors = [ray.remote(Maker).options(num_cpus=0).remote(pipeline) for _ in range(2)]
    asked: list[Any] = []
    step = 0
    while True:
        while len(asked) < _AHEAD:
            asked.append(actors[step % 2].batch.remote(step))
            step += 1
        ray.wait(asked[:1])
        yield ray.get(asked.pop(0))
