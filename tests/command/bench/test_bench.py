"""What `gristmill bench` says of loaders whose bottleneck was planted.

Waiting is the slow work here, so it is real sleeping; bounds leave room for a busy machine.
"""

import dataclasses
import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorstore as ts
from rich.console import Console

from loader import BlockShuffle, DataLoader, Sequential, Shuffle, TensorStoreSource, Threads
from loader.command.bench.advice import Case, bottleneck, proposals
from loader.command.bench.measuring import Knobs, Look, Loop, operators_ms
from loader.command.bench.verdict import Verdict, bench
from operators import Map, Normalize, RandomFlip
from tests.attempts import in_one_of_several_attempts

BATCH_SIZE = 32
NO_STAGES = {"read": 0.0, "operators": 0.0, "batch": 0.0, "place": 0.0, "dispatch": 0.0}


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


def building(source: Any, **settings: Any) -> Callable[[Knobs], DataLoader]:
    def build(knobs: Knobs) -> DataLoader:
        how = {"batch_size": BATCH_SIZE, "order": Shuffle(0), "epochs": None, **settings}
        return DataLoader(source, workers=Threads(knobs.threads), prefetch=knobs.prefetch, **how)

    return build


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
def test_a_slow_read_is_named_and_threads_are_tried_and_gain():
    build = building(SlowSource(0.01))
    verdict = bench(build, Knobs(0, 2), seconds=1.2, step=step_of(0.001), cores=4)
    assert verdict.bottleneck == "read"
    assert verdict.knob == "threads = 2"
    (trial,) = verdict.tried
    assert trial.gain > 1.3
    assert trial.rows_per_s_after < 2 * BATCH_SIZE / 0.01 * 1.1  # no more than two threads can give
    assert trial.rows_per_s_before < BATCH_SIZE / 0.01 * 1.1
    assert verdict.look.stages_ms["read"] >= 10
    assert verdict.look.waiting_share > 0.5
    assert "threads = 2 under [loader]; tried:" in shown(verdict)


@in_one_of_several_attempts
def test_a_slow_operator_is_named():
    def slow(rows: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.01)
        return rows

    build = building(SlowSource(0.001), operators=[slow, Map(dict)])
    verdict = bench(build, Knobs(0, 2), seconds=0.6, step=step_of(0.001), cores=4)
    assert verdict.bottleneck == "operators"
    assert verdict.look.stages_ms["operators"] >= 10
    assert "are for operators" in verdict.reason
    assert re.search(r"operators on their own, .*slow [\d.]+, Map [\d.]+", verdict.notes[0])


@in_one_of_several_attempts
def test_behind_a_slow_step_there_is_nothing_to_turn():
    build = building(SlowSource(0.001))
    verdict = bench(build, Knobs(0, 2), seconds=0.8, step=step_of(0.02), cores=4)
    assert verdict.bottleneck == "step"
    assert (verdict.knob, verdict.tried) == (None, ())
    assert "nothing in the loader is worth turning" in verdict.advice
    assert "hidden behind it: the loader could give about" in verdict.reason
    assert verdict.look.step_ms is not None
    assert verdict.look.step_ms >= 20
    assert verdict.look.queue_depth > 0.5


@in_one_of_several_attempts
def test_a_step_is_over_when_its_result_is_there():
    class Later:
        def block_until_ready(self) -> "Later":
            time.sleep(0.02)
            return self

    build = building(SlowSource(0.001))
    verdict = bench(build, Knobs(0, 2), seconds=0.6, step=lambda batch: Later(), cores=4)
    assert verdict.bottleneck == "step"
    assert verdict.to_json()["step_ms"] >= 20


@in_one_of_several_attempts
def test_without_prefetch_nothing_overlaps_and_prefetch_is_tried():
    build = building(SlowSource(0.01))
    verdict = bench(build, Knobs(0, 0), seconds=1.2, step=step_of(0.01), cores=4)
    assert verdict.bottleneck == "read"
    assert verdict.knob == "prefetch = 2"
    assert verdict.tried[-1].gain > 1.3
    assert "nothing overlaps" in verdict.advice


@in_one_of_several_attempts
def test_a_turn_that_gains_nothing_is_owned_up_to():
    def build(knobs: Knobs) -> DataLoader:
        crowded = SlowSource(0.01 * (1 + 2 * knobs.threads))  # two at once are slower than one
        return building(crowded)(knobs)

    verdict = bench(build, Knobs(0, 2), seconds=1.2, step=step_of(0.001), cores=4)
    assert verdict.bottleneck == "read"
    assert verdict.knob is None
    assert verdict.tried[0].line == "threads = 2"
    assert verdict.tried[0].gain < 1
    assert verdict.advice.startswith("read less")
    assert "no gain     threads = 2; tried: " in shown(verdict)


@in_one_of_several_attempts
def test_without_a_step_it_is_the_fastest_the_input_can_go():
    verdict = bench(building(SlowSource(0.01)), Knobs(0, 2), seconds=0.6, cores=4)
    assert verdict.bottleneck == "read"
    assert verdict.look.step_ms is None
    assert verdict.look.waiting_share == 1.0
    assert "no step: the fastest the input can go" in verdict.notes


@in_one_of_several_attempts
def test_a_loader_of_three_batches_is_started_again_and_again():
    build = building(SlowSource(0.004, count=70), epochs=1)
    verdict = bench(build, Knobs(0, 2), seconds=0.6, step=step_of(0.01), cores=4)
    assert verdict.bottleneck == "step"  # though at each start the loop waits
    assert verdict.look.batches > 5
    assert verdict.look.rows_per_batch == pytest.approx(70 / 3, rel=0.2)
    assert verdict.look.masked_share == pytest.approx(1 - 70 / 96, abs=0.1)
    assert (
        verdict.advice
        == f"{verdict.look.masked_share:.0%} of the rows are padding at the end "
        + ("of an epoch: take batch_size = 24")
    )
    one = bench(building(SlowSource(0.0, count=32), epochs=1), Knobs(0, 2), seconds=0.2, cores=4)
    assert "what is timed is starting it again" in one.notes[-1]


def test_a_loader_that_was_left_behind_its_last_batch_starts_again():
    loader = DataLoader({"x": np.arange(8)}, batch_size=8)
    next(loader)  # the last, but it is not told yet that there is no other
    assert Loop(loader, Knobs(0, 2), None).run(0.01).batches > 1


def test_what_a_verdict_says_can_be_read_by_programs_and_people():
    verdict = bench(building(SlowSource(0.002)), Knobs(2, 2), seconds=0.3, cores=4)
    document = json.loads(json.dumps(verdict.to_json()))
    assert document["bottleneck"] == verdict.bottleneck
    assert set(document["stages_ms"]) == set(NO_STAGES)
    assert document["knobs"] == {"threads": 2, "prefetch": 2}
    text = shown(verdict)
    assert "each of 2 threads" in text
    assert f"bottleneck  {verdict.bottleneck}: " in text
    assert max(map(len, text.splitlines())) <= 100


def test_what_cannot_be_timed_is_refused():
    with pytest.raises(ValueError, match="seconds must be more than 0, got 0"):
        bench(building(SlowSource(0.0)), Knobs(0, 2), seconds=0)
    with pytest.raises(ValueError, match=r"has no batches"):
        bench(building(SlowSource(0.0), steps=0), Knobs(0, 2), seconds=0.1)


# The rules, on figures made up


def seen(threads: int = 0, prefetch: int = 2, **figures: Any) -> Look:
    """A loop that waits 10 ms for each batch; stages by their names."""
    stages = {**NO_STAGES, **{name: figures.pop(name) for name in NO_STAGES if name in figures}}
    usual: dict[str, Any] = {
        "batches": 100,
        "rows_per_s": 3200.0,
        "rows_per_batch": 32.0,
        "bytes_per_batch": 4e6,
        "masked_share": 0.0,
        "queue_depth": 0.0,
        "waiting_ms": 10.0,
        "arriving_ms": 0.0,
        "step_ms": None,
        "cores": 2,
        "busy_cores": 2.0,
    }
    return Look(Knobs(threads, prefetch), stages_ms=stages, **{**usual, **figures})


@pytest.mark.parametrize(
    ("look", "part"),
    [
        (seen(read=8, place=1), "read"),
        (seen(read=1, operators=3, batch=5), "batch"),
        (seen(threads=4, read=20, operators=4, place=9), "place"),  # 6 ms for each of the threads
        (seen(threads=2, read=12, operators=8, place=9), "read"),
        (seen(threads=2, prefetch=0, read=4, operators=1, place=5), "place"),  # the loop does all
        (seen(threads=2, prefetch=0, read=5, operators=1, place=4), "read"),
        (seen(read=2, place=1), "overhead"),
        (seen(read=2, place=1, arriving_ms=20), "place"),
        (seen(read=9, dispatch=1, arriving_ms=0.5, step_ms=1), "read"),
        (seen(read=9, waiting_ms=0.5, step_ms=10), "step"),
        (seen(prefetch=0, read=4, place=1, waiting_ms=5, step_ms=30), "read"),
    ],
)
def test_the_largest_part_of_the_slowest_is_the_bottleneck(look: Look, part: str):
    assert bottleneck(look, device_operators=False) == part


def test_time_on_devices_is_that_of_device_operators_if_there_are_any():
    look = seen(read=1, waiting_ms=2, dispatch=1, arriving_ms=5)
    assert bottleneck(look, device_operators=True) == "dispatch"
    assert bottleneck(look, device_operators=False) == "place"


def advice(loader: DataLoader, look: Look, part: str) -> str:
    """The first words that need not be tried."""
    times = operators_ms(loader) if part == "operators" else {}
    case = Case(look, loader, part, times)
    return next(proposal.words for proposal in proposals(case) if proposal.knobs is None)


def lines(look: Look, part: str) -> list[Knobs]:
    case = Case(look, building(SlowSource(0.0))(look.knobs), part)
    return [proposal.knobs for proposal in proposals(case) if proposal.knobs is not None]


def test_threads_are_proposed_where_cores_are_free_and_they_could_gain():
    assert lines(seen(read=9, busy_cores=0.2), "read") == [Knobs(2, 2)]
    assert lines(seen(threads=3, read=30, busy_cores=0.2), "read") == [Knobs(6, 2)]
    assert lines(seen(read=9, busy_cores=1.8), "read") == []
    assert lines(seen(place=9.5, read=0.5, busy_cores=0.2), "place") == []  # it stays in one thread
    assert lines(seen(read=10.5, waiting_ms=0.5, step_ms=10, busy_cores=0.2), "read") == []


def test_a_chunked_store_in_random_order_is_read_by_blocks(tmp_path: Path):
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(tmp_path / "x.zarr")}}
    store = ts.open(
        spec,
        create=True,
        dtype=ts.float32,
        shape=[100, 2],
        chunk_layout=ts.ChunkLayout(chunk_shape=[10, 2]),
    ).result()
    store.write(np.arange(200, dtype=np.float32).reshape(100, 2)).result()
    source = TensorStoreSource({"x": str(tmp_path / "x.zarr")})
    shuffled = building(source)(Knobs(0, 2))
    assert "BlockShuffle(seed, block_size=10, window=16)" in advice(shuffled, seen(read=9), "read")
    for order in (BlockShuffle(0, 10, 4), Sequential()):
        by_block = building(source, order=order)(Knobs(0, 2))
        assert advice(by_block, seen(read=9), "read").startswith("read less")


def test_operators_that_can_go_to_the_device_are_named():
    def slow(rows: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.02)
        return rows

    images = {"image": np.zeros((64, 64, 64, 3), np.uint8)}
    flip, normalize = RandomFlip("image", seed=0), Normalize("image", mean=0.0, std=1.0)
    movable = building(images, operators=[flip, normalize])(Knobs(0, 2))
    assert advice(movable, seen(operators=9), "operators").endswith(
        "Normalize, if the devices have time to spare"
    )
    stuck = building(images, operators=[flip, slow, normalize])(Knobs(0, 2))
    assert "slow cheaper, or apply it once" in advice(stuck, seen(operators=9), "operators")
    on_device = building(images, operators=[RandomFlip("image", seed=0, on="device")])(Knobs(0, 2))
    assert advice(on_device, seen(), "dispatch").startswith('on = "host" for RandomFlip')


def test_the_times_of_operators_with_one_label_are_added():
    def slow(rows: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.01)
        return rows

    loader = building(SlowSource(0.0), operators=[slow, slow])(Knobs(0, 2))
    (ms,) = operators_ms(loader).values()
    assert ms >= 20


def test_the_leaf_with_most_bytes_is_named():
    loader = building({"id": np.arange(64), "image": np.ones((64, 9), np.float32)})(Knobs(0, 2))
    words = advice(loader, seen(place=9), "place")
    assert "4.0 MB go onto the devices" in words
    assert "leaf 'image' (float32[32, 9])" in words
    assert "larger batch_size" in advice(loader, seen(place=9, bytes_per_batch=1e4), "place")


def test_rows_that_are_padding_are_told_from_rows_that_are_filtered_out():
    look = seen(masked_share=0.3, step_ms=50)
    short = building(SlowSource(0.0, count=40), epochs=5)(Knobs(0, 2))
    assert 'remainder = "carry"' in advice(short, look, "step")
    assert advice(short, look, "step").endswith("or batch_size = 20")
    assert "by filters" in advice(building(SlowSource(0.0))(Knobs(0, 2)), look, "step")
