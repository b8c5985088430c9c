"""What `gristmill bench` says of loaders whose bottleneck was planted.

Waiting is the slow work here, so it is real sleeping; bounds leave room for a busy machine.
"""

import dataclasses
import io
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from loader import DataLoader, Mapped, Shuffle, Threads
from loader.command.bench.measuring import Look, measure
from loader.command.bench.verdict import Verdict, advice, bench, bottleneck
from operators import Map
from tests.attempts import in_one_of_several_attempts

BATCH_SIZE = 32
NO_STAGES = {
    "read": 0.0,
    "mapped": 0.0,
    "operators": 0.0,
    "batch": 0.0,
    "place": 0.0,
    "dispatch": 0.0,
}


@dataclasses.dataclass
class SlowSource:
    """Records whose reading takes its time."""

    seconds: float
    count: int = 640

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.float32(index)}

    def gather(self, indices: np.ndarray) -> dict[str, Any]:
        time.sleep(self.seconds)
        return {"x": indices.astype(np.float32)}

    def record_spec(self) -> dict[str, Any]:
        return {"x": jax.ShapeDtypeStruct((), np.dtype(np.float32))}


def made(source: Any, threads: int = 0, prefetch: int = 2, **settings: Any) -> DataLoader:
    how = {"batch_size": BATCH_SIZE, "order": Shuffle(0), "epochs": None, **settings}
    return DataLoader(source, workers=Threads(threads), prefetch=prefetch, **how)


def step_of(seconds: float) -> Callable[[dict[str, Any]], Any]:
    def step(batch: dict[str, Any]) -> Any:
        time.sleep(seconds)
        return batch["x"].sum()

    return step


def shown(verdict: Verdict) -> str:
    console = Console(width=100, file=io.StringIO())
    verdict.show(console)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


# Planted


@in_one_of_several_attempts
def test_a_slow_read_is_named():
    verdict = bench(made(SlowSource(0.01)), seconds=0.6, step=step_of(0.001))
    assert verdict.bottleneck == "read"
    assert verdict.look.stages_ms["read"] >= 10
    assert verdict.look.waiting_share > 0.5
    assert verdict.look.rows_per_s < BATCH_SIZE / 0.01 * 1.1
    assert "the input sets the pace" in verdict.reason
    assert f"advice      {verdict.advice}" in shown(verdict)


@in_one_of_several_attempts
def test_a_slow_operator_is_named():
    def slow(rows: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.01)
        return rows

    loader = made(SlowSource(0.001), operators=[slow, Map(dict)])
    verdict = bench(loader, seconds=0.6, step=step_of(0.001))
    assert verdict.bottleneck == "operators"
    assert verdict.look.stages_ms["operators"] >= 10


@in_one_of_several_attempts
def test_operators_of_a_mapped_source_are_not_taken_for_reading():
    def slow(rows: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.01)
        return rows

    verdict = bench(made(Mapped(SlowSource(0.001), [slow])), seconds=0.6, step=step_of(0.001))
    assert verdict.bottleneck == "mapped"
    assert verdict.look.stages_ms["mapped"] >= 10 > verdict.look.stages_ms["read"]
    assert "gristmill tokenize CONFIG -o FOLDER" in verdict.advice


@in_one_of_several_attempts
def test_behind_a_slow_step_there_is_nothing_to_change():
    verdict = bench(made(SlowSource(0.001)), seconds=0.8, step=step_of(0.02))
    assert verdict.bottleneck == "step"
    assert "nothing in the loader is worth changing" in verdict.advice
    assert "the input does not hold it up" in verdict.reason
    assert verdict.look.step_ms is not None
    assert verdict.look.step_ms >= 20


@in_one_of_several_attempts
def test_a_step_is_over_when_its_result_is_there():
    class Later:
        def block_until_ready(self) -> "Later":
            time.sleep(0.02)
            return self

    verdict = bench(made(SlowSource(0.001)), seconds=0.6, step=lambda batch: Later())
    assert verdict.bottleneck == "step"
    assert verdict.to_json()["step_ms"] >= 20


@in_one_of_several_attempts
def test_without_prefetch_nothing_overlaps_and_prefetch_is_the_advice():
    verdict = bench(made(SlowSource(0.01), prefetch=0), seconds=0.6, step=step_of(0.01))
    assert verdict.bottleneck == "read"
    assert verdict.advice.startswith("prefetch = 2 under [loader]")
    assert verdict.look.lap_ms >= 20


@in_one_of_several_attempts
def test_without_a_step_it_is_the_fastest_the_input_can_go():
    verdict = bench(made(SlowSource(0.01)), seconds=0.6)
    assert verdict.bottleneck == "read"
    assert verdict.look.step_ms is None
    assert verdict.look.waiting_share == 1.0
    assert "no step: this is the fastest that the input can go" in verdict.notes


@in_one_of_several_attempts
def test_a_loader_of_three_batches_is_started_again_and_again():
    loader = made(SlowSource(0.004, count=70), epochs=1)
    verdict = bench(loader, seconds=0.6, step=step_of(0.01))
    assert verdict.bottleneck == "step"  # though at each start the loop waits
    assert verdict.look.batches > 5
    rows_per_batch = verdict.look.rows_per_s * verdict.look.lap_ms / 1e3
    assert rows_per_batch == pytest.approx(70 / 3, rel=0.2)
    assert verdict.look.masked_share == pytest.approx(1 - 70 / 96, abs=0.1)
    share = f"{verdict.look.masked_share:.0%}"
    assert verdict.notes == (f"{share} of the rows are padding, or left out by filters",)
    one = bench(made(SlowSource(0.0, count=32), epochs=1), seconds=0.2)
    assert "what is timed is starting it again" in one.notes[-1]


def test_a_loader_that_was_left_behind_its_last_batch_starts_again():
    loader = DataLoader({"x": np.arange(8)}, batch_size=8)
    next(loader)  # the last, but it is not told yet that there is no other
    assert measure(loader, None, 0.01).batches > 1


def test_what_a_verdict_says_can_be_read_by_programs_and_people():
    verdict = bench(made(SlowSource(0.002), threads=2), seconds=0.3)
    document = json.loads(json.dumps(verdict.to_json()))
    assert document["bottleneck"] == verdict.bottleneck
    assert set(document["stages_ms"]) == set(NO_STAGES)
    assert (document["threads"], document["prefetch"]) == (2, 2)
    text = shown(verdict)
    assert "each of 2 threads" in text
    assert f"bottleneck  {verdict.bottleneck}: " in text
    assert max(map(len, text.splitlines())) <= 100


def test_what_cannot_be_timed_is_refused():
    with pytest.raises(ValueError, match="seconds must be more than 0, got 0"):
        bench(made(SlowSource(0.0)), seconds=0)
    with pytest.raises(ValueError, match=r"has no batches"):
        bench(made(SlowSource(0.0), steps=0), seconds=0.1)


# The rules, on figures made up


def seen(threads: int = 1, prefetch: int = 2, **figures: Any) -> Look:
    """A loop that waits 10 ms for each batch; stages by their names."""
    stages = {**NO_STAGES, **{name: figures.pop(name) for name in NO_STAGES if name in figures}}
    usual: dict[str, Any] = {
        "batches": 100,
        "rows_per_s": 3200.0,
        "bytes_per_s": 4e8,
        "masked_share": 0.0,
        "waiting_ms": 10.0,
        "arriving_ms": 0.0,
        "step_ms": None,
        "cores": 2,
        "busy_cores": 2.0,
    }
    return Look(threads, prefetch, stages_ms=stages, **{**usual, **figures})


@pytest.mark.parametrize(
    ("look", "part"),
    [
        (seen(read=8, place=1), "read"),
        (seen(read=1, operators=3, batch=5), "batch"),
        (seen(threads=4, read=8, operators=4, place=20), "place"),
        (seen(threads=2, read=12, operators=8, place=9), "read"),
        (seen(threads=2, prefetch=0, read=4, operators=1, place=5), "place"),
        (seen(threads=2, prefetch=0, read=5, operators=1, place=4), "read"),
        (seen(read=2, place=1), "overhead"),
        (seen(threads=4, read=8, place=4), "overhead"),  # 3 ms for each of the threads
        (seen(read=2, place=1, arriving_ms=20), "device"),
        (seen(read=1, waiting_ms=2, dispatch=1, arriving_ms=5), "device"),
        (seen(read=9, dispatch=1, arriving_ms=0.5, step_ms=1), "read"),
        (seen(read=9, waiting_ms=0.5, step_ms=10), "step"),
        (seen(prefetch=0, read=4, place=1, waiting_ms=5, step_ms=30), "read"),
    ],
)
def test_the_largest_part_of_the_input_is_the_bottleneck(look: Look, part: str):
    assert bottleneck(look) == part


def test_threads_are_the_advice_where_cores_are_free():
    assert "threads = 2 under" in advice(seen(read=9, busy_cores=0.2), "read")
    assert "threads = 6 under" in advice(seen(threads=3, read=30, busy_cores=0.2), "read")
    assert advice(seen(read=9, busy_cores=1.8), "read").startswith("read less")
    assert "remedies for batch" in advice(seen(batch=9, busy_cores=1.8), "batch")
    assert "remedies for device" in advice(seen(busy_cores=0.2), "device")
