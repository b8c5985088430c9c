"""What a loader says about what happened."""

import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from loader import DataLoader, Mapped, Shuffle, Threads
from loader.runtime.stats import STAGES, Stats
from operators import Map, RandomFlip
from tests.data import unlike_records


def images(count: int) -> dict[str, np.ndarray]:
    return {"image": np.arange(count * 48).reshape(count, 4, 4, 3).astype(np.float32)}


def test_rows_masked_rows_and_bytes_are_those_delivered():
    loader = DataLoader(unlike_records(10), batch_size=4, order=Shuffle(0), epochs=2)
    assert loader.stats() == Stats()
    next(loader)
    one = loader.stats()
    assert (one.batches, one.rows, one.masked_rows, one.bytes) == (1, 4, 0, 4 * (4 + 24 + 1))
    list(loader)
    assert (loader.stats().batches, loader.stats().rows, loader.stats().masked_rows) == (6, 20, 4)
    rest = loader.stats() - one
    assert (rest.batches, rest.rows, rest.masked_rows) == (5, 16, 4)
    assert loader.clone().stats() == Stats()


@pytest.mark.parametrize("threads", [0, 2])
def test_the_time_of_each_stage_is_where_it_was_spent(threads: int):
    def slow(record: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.005)
        return record

    operators = [Map(slow), RandomFlip("image", seed=0, on="device")]
    source = Mapped(images(24), [Map(dict)])
    loader = DataLoader(source, batch_size=4, operators=operators, workers=Threads(threads))
    list(loader)
    stages = loader.stats().stages_s
    assert set(stages) == set(STAGES)
    assert stages["operators"] >= 24 * 0.005
    assert stages["operators"] > stages["read"] + stages["batch"]
    assert min(stages.values()) > 0


def test_waiting_is_the_time_in_which_the_loop_has_no_batch():
    class Slow:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> dict[str, Any]:
            time.sleep(0.02)
            return {"x": np.float32(index)}

        def fingerprint(self) -> dict[str, Any]:
            return {}

    slow = DataLoader(Slow(), batch_size=1, prefetch=0)
    slow.batch_spec()
    list(slow)
    assert slow.stats().waiting_s >= 6 * 0.02
    assert slow.stats().waiting_share > 0.8
    ahead = DataLoader(unlike_records(9), batch_size=1)
    next(ahead)  # which may wait for JAX to start
    before = ahead.stats()
    for _ in ahead:
        time.sleep(0.05)
    after = ahead.stats() - before
    assert after.elapsed_s >= 7 * 0.05
    assert after.waiting_s < 0.5 * after.elapsed_s
    assert after.queue_depth > 0.5


def test_time_between_two_iterations_is_not_counted():
    loader = DataLoader(unlike_records(6), batch_size=3, prefetch=0)
    iterating = 0.0
    for _ in range(2):
        start = time.perf_counter()
        list(loader)
        iterating += time.perf_counter() - start
        time.sleep(0.2)
    assert loader.stats().batches == 4
    assert loader.stats().elapsed_s <= iterating


def test_figures_go_to_either_kind_of_writer():
    loader = DataLoader(unlike_records(10), batch_size=4)
    list(loader)
    scalars = loader.stats().scalars()
    written: dict[str, Any] = {}

    class Clu:
        def write_scalars(self, step: int, scalars: dict[str, float]) -> None:
            written.update({"step": step, **scalars})

    class TensorBoard:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            written[name] = (value, step)

    loader.stats().log_to(Clu(), step=7)
    assert written == {"step": 7, **{f"input/{name}": value for name, value in scalars.items()}}
    written.clear()
    loader.stats().log_to(TensorBoard(), step=8, prefix="")
    assert written == {name: (value, 8) for name, value in scalars.items()}
    with pytest.raises(TypeError, match=r"write_scalars.*add_scalar.*list has neither"):
        loader.stats().log_to([], step=1)
    assert "10 rows and 2 masked ones" in str(loader.stats())


def test_stages_show_up_in_a_trace(tmp_path: Path):
    operators = [Map(dict), RandomFlip("image", seed=0, on="device")]
    source = Mapped(images(12), [Map(dict)])
    loader = DataLoader(source, batch_size=4, operators=operators)
    loader.batch_spec()
    with jax.profiler.trace(str(tmp_path)):
        list(loader)
    (trace,) = tmp_path.rglob("*.xplane.pb")
    content = trace.read_bytes()
    for stage in STAGES:
        assert f"gristmill/{stage}".encode() in content
