import itertools
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.table import Record
from tests.faults.train import KINDS, RECORDS, make_loader

SCRIPT = "tests.faults.train"
ROOT = Path(__file__).parent.parent.parent


def start(kind: str, folder: Path, *way: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", SCRIPT, kind, str(folder), *way],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def finish(kind: str, folder: Path) -> dict[str, Any]:
    child = start(kind, folder)
    _, errors = child.communicate(timeout=180)
    assert child.returncode == 0, errors
    return json.loads((folder / "result.json").read_text())


def kill_once(child: "subprocess.Popen[str]", rng: random.Random, in_a_save: bool) -> bool | None:
    """Kill the run with SIGKILL: whether that struck inside a save; None if it had ended before."""
    assert child.stdout is not None
    lines: list[str] = []
    chosen = rng.randrange(1, 12)
    for line in child.stdout:
        lines.append(line.strip())
        if in_a_save and line.startswith("save ") and len(lines) > chosen:
            time.sleep(rng.random() * 0.02)
            break
        if not in_a_save and line.startswith("saved ") and len(lines) > chosen:
            break
    child.send_signal(signal.SIGKILL)
    rest, _ = child.communicate(timeout=60)
    lines += rest.splitlines()
    return None if lines[-1] == "done" else lines[-1].startswith("save ")


def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(
    full: bool, record: Record, tmp_path: Path
):
    rng = random.Random(0)
    undisturbed = finish("plain", fresh(tmp_path / "undisturbed"))
    assert undisturbed["seen"] == [3] * RECORDS
    count, in_a_row = (200, 4) if full else (6, 2)
    kills, inside = 0, 0
    for number in itertools.count():
        if kills >= count:
            break
        kind, folder = list(KINDS)[number % len(KINDS)], fresh(tmp_path / str(number))
        for _ in range(in_a_row):
            struck = kill_once(start(kind, folder), rng, in_a_save=rng.random() < 0.8)
            if struck is None:
                break
            kills, inside = kills + 1, inside + struck
        resumed = finish(kind, folder)
        assert resumed["seen"] == undisturbed["seen"], (number, kind)
        assert resumed["w"] == undisturbed["w"], (number, kind)
        for step, ids in resumed["delivered"].items():
            assert ids == undisturbed["delivered"][step], (number, kind, step)
    assert inside * 2 >= kills or not full  # six are too few to be sure of that
    record("SIGKILL of a training process", kills, f"{inside} inside a save; all ended equal")


@pytest.mark.parametrize("where", ["save", "restore"])
def test_leaving_while_saving_or_restoring_leaves_nothing_half_done(
    where: str, full: bool, record: Record, tmp_path: Path
):
    ways = {"exit": 7, "exception": 1, "interrupt": -signal.SIGINT}
    count = 25 if full else 4
    for number in range(count):
        kind, way = list(KINDS)[number % 3], list(ways)[number // 3 % 3]
        folder = fresh(tmp_path / str(number))
        if where == "restore":  # of which there must be something
            kill_once(start(kind, folder), random.Random(number), in_a_save=False)
        child = start(kind, folder, where, way)
        _, errors = child.communicate(timeout=120)
        if kind == "plain":  # Orbax may abort when it is left in the middle of its own work
            # Python drops an exception that strikes inside a callback of its own, and goes on.
            assert child.returncode in (ways[way], 0), errors
            assert "Fatal" not in errors
        result = finish(kind, folder)
        assert result["seen"] == [3] * RECORDS
    record(f"exit, exception, Ctrl-C while {where[:-1]}ing", count, "clean; the next run equal")


def fresh(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_the_script_loads_what_it_should():
    assert len(make_loader()) == 21
