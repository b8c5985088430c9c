"""The benchmark: its smallest workloads through the command, and whom it refuses to time."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = ROOT / "scripts"
NUM_RECORDS, BATCH_SIZE = 23, 5


def test_the_command_writes_the_figures_it_measures(tmp_path: Path):
    file = tmp_path / "figures.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(
        [sys.executable, "scripts/bench.py", "overhead", "state", "--quick", "--json", str(file)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(file.read_text())
    workloads = document["workloads"]
    for place in ("one device", "mesh of eight"):
        outcome = workloads[f"overhead, {place}, batch 256"]
        assert outcome["refused"] == {}
        assert set(outcome["contestants"]) == {"device_put alone", "gristmill"}
        for figures in outcome["contestants"].values():
            assert figures["us_per_batch"] > 0
            assert figures["cpu_s_per_1000_records"] > 0
            assert figures["peak_mb"] > 0
    assert workloads["state"]["state, bytes"] <= 1024
    (figure,) = document["figures"]
    assert (figure["workload"], figure["bound"]) == ("overhead, one device, batch 256", "≤ 150")
    assert figure["verdict"] in ("met", "NOT MET")


def test_a_run_that_is_kept_adds_a_line_of_figures_and_the_lines_become_a_picture(
    contest: Any, tmp_path: Path
):
    history, figures = (importlib.import_module(f"bench_{name}") for name in ("history", "figures"))
    file, picture = tmp_path / "history.jsonl", tmp_path / "history.png"
    for value in (1.23456, 0.5):
        reached = [
            figures.Reached("jpeg", "over tf.data", "≥ 0.9", value, 0.1, value >= 0.9, "tf.data"),
            figures.Reached("jpeg", "over torch", "≥ 1.5", None, None, None),
        ]
        history.keep(history.document_of({}, reached, 12.3, (0.1, 0.2), quick=True), file)
    first, second = map(json.loads, file.read_text().splitlines())
    assert first["quick"]
    assert first["machine"]["cores"]
    assert first["machine"]["processor"]
    assert first["versions"]["numpy"] == np.__version__
    (figure,) = first["figures"]  # what was not measured is not there
    assert (figure["workload"], figure["rival"], figure["value"]) == ("jpeg", "tf.data", 1.235)
    assert [run["figures"][0]["verdict"] for run in (first, second)] == ["met", "NOT MET"]
    history.draw_history(str(picture), file)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_contestants_warm_up_in_one_go_before_their_turns(
    contest: Any, monkeypatch: pytest.MonkeyPatch
):
    timing, asked = importlib.import_module("bench_timing"), []

    class Lane:
        def __init__(self, contestant: Any, _: Any) -> None:
            self.contestant = contestant

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def begin(self) -> None:
            asked.append((self.contestant.name, "begin"))

        def check(self) -> None:
            asked.append((self.contestant.name, "check"))

        def turn(self, settle: int, batches: int) -> Any:
            asked.append((self.contestant.name, settle + batches))
            return contest.Turn(batches, batches, 1.0, 1.0)

        def peak_bytes(self) -> int:
            return 0

    monkeypatch.setattr(timing, "Lane", Lane)
    both = tuple(contest.Contestant(name, lambda: None, "limit") for name in "ab")
    timing.hold(contest.Contest("", both, promise(contest), warm_up=200), timing.QUICK)
    assert asked[:2] == [("a", "begin"), ("b", "begin")]  # imports disturb nobody
    assert asked[4:6] == [("a", 201), ("b", 201)]
    assert max(count for _, count in asked[6:]) < 20


@pytest.fixture
def contest(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("bench_contest")


def test_an_unknown_workload_is_refused_with_the_nearest_name(
    contest: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    bench = importlib.import_module("bench")
    monkeypatch.setattr(sys, "argv", ["bench.py", "memry"])
    with pytest.raises(SystemExit, match="2"):
        bench.main()
    assert "no workload 'memry': did you mean memory?" in capsys.readouterr().err


def records(labels: np.ndarray) -> dict[str, np.ndarray]:
    return {"image": np.stack([labels, labels**2], axis=1).astype(np.uint8)}


def batches(labels: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    while True:
        for start in range(0, len(labels), BATCH_SIZE):
            some = labels[start : start + BATCH_SIZE]
            yield {**records(some), "label": some}


def promise(contest: Any) -> Any:
    shapes = {"image": ((2,), "uint8"), "label": ((), "int64")}
    return contest.Promise(NUM_RECORDS, shapes, records)


def test_a_contestant_that_delivers_each_record_once_counts(contest: Any):
    order = np.random.default_rng(0).permutation(NUM_RECORDS)
    promise(contest).check(batches(order))
    padded = (
        {**batch, "valid_mask": batch["label"] != 99} for batch in batches(np.append(order, 99))
    )
    promise(contest).check(padded)


def test_a_contestant_that_loses_a_record_is_refused(contest: Any):
    order = np.random.default_rng(0).permutation(NUM_RECORDS)
    order[7] = order[8]
    with pytest.raises(contest.Refused, match="1 of the 23 records of an epoch were lost"):
        promise(contest).check(batches(order))


def test_a_contestant_that_delivers_other_bytes_is_refused(contest: Any):
    mixed_up = (
        {**batch, "image": batch["image"][::-1]} for batch in batches(np.arange(NUM_RECORDS))
    )
    with pytest.raises(contest.Refused, match="'image' of batch 0 is not that of its records"):
        promise(contest).check(mixed_up)


def test_a_contestant_that_leaves_out_a_leaf_is_refused(contest: Any):
    labels_only = ({"label": batch["label"]} for batch in batches(np.arange(NUM_RECORDS)))
    with pytest.raises(contest.Refused, match="'image' of batch 0 is nothing, not uint8"):
        promise(contest).check(labels_only)
