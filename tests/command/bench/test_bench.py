"""What `gristmill bench` says of loaders whose bottleneck was planted.

Waiting is the slow work here, so it is real sleeping; bounds leave room for a busy machine.
"""

import dataclasses
import io
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from loader import DataLoader, Mapped, On, Shuffle, Threads
from loader.command.bench.measuring import Look, measure
from loader.command.bench.trial import tried
from loader.command.bench.verdict import Verdict, advice, bench, bottleneck
from operators import Map
from tests.attempts import in_one_of_several_attempts
from tests.command.bench.looks import NO_STAGES, seen

BATCH_SIZE = 32


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
    assert f"advice {verdict.advice}" in " ".join(shown(verdict).split())


@in_one_of_several_attempts
def test_a_slow_operator_is_named():
    def slow(rows: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.01)
        return rows

    loader = made(SlowSource(0.001), operators=[slow, Map(dict)])
    look = measure(loader, step_of(0.001), 0.6)
    assert bottleneck(look) == "operators"
    assert look.stages_ms["operators"] >= 10


@in_one_of_several_attempts
def test_operators_of_a_mapped_source_are_not_taken_for_reading():
    def slow(rows: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.01)
        return rows

    look = measure(made(Mapped(SlowSource(0.001), [slow])), step_of(0.001), 0.6)
    assert bottleneck(look) == "mapped"
    assert look.stages_ms["mapped"] >= 10 > look.stages_ms["read"]
    assert "gristmill tokenize CONFIG -o FOLDER" in advice(look, "mapped")


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
    loader = made(SlowSource(0.001, count=70), epochs=1)
    verdict = bench(loader, seconds=0.6, step=step_of(0.02))
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
    made_by = document["worker_kind"], document["workers"], document["prefetch"]
    assert made_by == ("Threads", 2, 2)
    text = shown(verdict)
    assert "each of 2 threads" in text
    assert f"bottleneck  {verdict.bottleneck}: " in text
    assert max(map(len, text.splitlines())) <= 100


def test_workers_elsewhere_are_timed_too():
    with ThreadPoolExecutor(2) as executor:
        how: dict[str, Any] = {"batch_size": BATCH_SIZE, "workers": On(executor), "epochs": None}
        look = measure(DataLoader(SlowSource(0.004), **how), None, 0.2)
    assert (look.worker_kind, look.workers) == ("On", 1)  # both answer as this process
    assert look.stages_ms["read"] >= 4
    assert look.busy_cores is None  # a part of the work may be elsewhere
    assert advice(look, "read").startswith("read less")
    assert "the worker" in shown(Verdict(look, "read", "", ""))


def test_what_cannot_be_timed_is_refused():
    with pytest.raises(ValueError, match="seconds must be more than 0, got 0"):
        bench(made(SlowSource(0.0)), seconds=0)
    with pytest.raises(ValueError, match=r"has no batches"):
        bench(made(SlowSource(0.0), steps=0), seconds=0.1)


def test_what_cannot_be_compared_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch):
    lock = threading.Lock()

    def locks(rows: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return rows

    def why_not(look: Look, **settings: Any) -> str:
        trial = tried(made(SlowSource(0.0), **settings), None, look, 0.05)
        assert trial.to_json()["why_not"] == trial.why_not
        assert trial.advice() is None
        assert trial.in_words() == f"threads and processes were not compared: {trial.why_not}"
        return str(trial.why_not)

    look, two = seen(operators=9), 'workers = { kind = "Processes", count = 2 }'
    assert "(its variable lock) cannot be sent to a worker" in why_not(look, operators=[locks])
    assert why_not(look, steps=3) == "the run has only 3 batch(es)"
    assert why_not(seen(waiting_ms=2345)) == f"a batch takes 2.3 s; try --set 'loader.{two}'"
    monkeypatch.setattr("sys.executable", "")  # as in a program that Python is part of
    assert "Processes needs Linux and a Python that can be started" in why_not(look)
