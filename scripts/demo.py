"""Trains, is killed in mid-epoch, resumes on other devices, and checks what came of it.

    bash scripts/demo.sh          sets up .venv if needed, and runs this

Two runs of `configs/digits.toml`. One is left alone, on a mesh of eight CPU devices with batches of
64. The other begins like it, is killed with SIGKILL in the middle of an epoch, and goes on from its
last checkpoint on four devices with batches of 48. Every claim at the end is computed from what the
runs left behind in `build/demo`; if one does not hold, the exit status is 1.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import make_data
import numpy as np
from rich.console import Console
from rich.table import Table
from train_journal import DIGEST_BYTES

from loader import ArrayRecordSource
from loader.command.config.config import read_config
from loader.command.main import ALL_KINDS

CONFIG = "configs/digits.toml"
DATA = "build/data/digits/train-*.array_record"
FOLDER = Path("build/demo")
WANTED_ACCURACY = 0.95
LEAST_EPOCHS = 6
RESUMED_WITH = {"mesh.data": 4, "loader.batch_size": 48}


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run has left behind in its folder."""

    folder: Path

    @property
    def lines(self) -> list[dict[str, Any]]:
        text = (self.folder / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.folder / "result.json").read_text())

    @property
    def positions(self) -> int:
        """How many records were trained on so far."""
        seen = self.folder / "seen"
        return seen.stat().st_size // DIGEST_BYTES if seen.exists() else 0

    @property
    def saved(self) -> bool:
        """Whether there is a whole checkpoint."""
        return any(path.name.isdigit() for path in self.folder.glob("checkpoints/*"))

    def digest(self) -> str:
        return hashlib.sha256((self.folder / "seen").read_bytes()).hexdigest()[:32]


@dataclasses.dataclass(frozen=True)
class Claim:
    """Something that was shown, or was not."""

    what: str
    holds: bool
    figure: str


def training(*words: Any) -> list[str]:
    return [sys.executable, "scripts/train.py", *map(str, words)]


def environment() -> dict[str, str]:
    """That of this process, but for a number of devices: the configuration says how many."""
    return {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}


def kill_in_mid_epoch(run: Run, epoch: int, after: int, *options: str) -> int:
    """Start a run, and kill it in the middle of an epoch, once it is behind a position and has a
    checkpoint; gives the position it reached."""
    words = training(CONFIG, "--into", run.folder, *options)
    child = subprocess.Popen(words, env=environment())
    while not (run.positions > after and 0.3 < run.positions % epoch / epoch < 0.7 and run.saved):
        if child.poll() is not None:
            raise SystemExit(f"the run has ended before it could be killed: {child.returncode}")
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    return run.positions


def claims(alone: Run, killed: Run, reached: int, epoch: int, epochs: int) -> list[Claim]:
    """What was shown: computed from the files of the two runs."""
    a, b = alone.result, killed.result
    devices = [sorted({line["devices"] for line in run.lines}) for run in (alone, killed)]
    sizes = sorted({line["batch_size"] for line in killed.lines})
    accuracy = b["figures"]["accuracy"]
    went_on = b["first_position"]
    resumed = [line for line in killed.lines if line["devices"] == RESUMED_WITH["mesh.data"]]
    same = alone.digest() == killed.digest() == a["digest"] == b["digest"]
    return [
        Claim(
            "killed with SIGKILL in mid-epoch",
            reached % epoch != 0 and killed.positions > reached,
            f"{reached % epoch / epoch:.0%} into epoch {reached // epoch + 1}, record {reached:,}",
        ),
        Claim(
            "went on from a checkpoint, not from the start",
            0 < went_on < reached,
            f"step {b['first_step']}, record {went_on:,}; {reached - went_on:,} were done again",
        ),
        Claim(
            "with the model that was saved",
            resumed[0]["loss"] < killed.lines[0]["loss"] / 2,
            f"loss {resumed[0]['loss']:.2f} right after, {killed.lines[0]['loss']:.2f} when new",
        ),
        Claim(
            "on other devices, with another batch size",
            devices == [[8], [4, 8]] and sizes == [48, 64],
            f"{devices[1][1]} devices x {sizes[1]} rows, then {devices[1][0]} x {sizes[0]}",
        ),
        Claim(
            "every record of every epoch was trained on once",
            {a["position"], b["position"], a["rows"], b["rows"]} == {epoch * epochs}
            and all(each_once(number, epoch) for number in range(epochs)),
            f"{epochs} epochs of {epoch:,}: {b['rows']:,} rows",
        ),
        Claim(
            "in the same order, augmented alike, bit for bit",
            same,
            f"{killed.digest()[:16]}" if same else f"{alone.digest()[:16]} {killed.digest()[:16]}",
        ),
        Claim(
            f"more than {WANTED_ACCURACY:.0%} of held-out digits are recognised",
            accuracy > WANTED_ACCURACY,
            f"{accuracy:.1%} (left alone: {a['figures']['accuracy']:.1%})",
        ),
    ]


def each_once(number: int, epoch: int) -> bool:
    """Whether the positions of an epoch are those of every record once."""
    config = read_config(CONFIG, ALL_KINDS, ["mesh.data=1"])
    positions = np.arange(number * epoch, (number + 1) * epoch)
    return sorted(config.loader.pipeline.order.records(positions, epoch).tolist()) == list(
        range(epoch)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Train, be killed, resume, and prove it.")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data (20)")
    epochs = parser.parse_args().epochs
    if epochs < LEAST_EPOCHS:
        parser.error(f"it takes at least {LEAST_EPOCHS} epochs to be killed behind a checkpoint")
    os.chdir(Path(__file__).parent.parent)
    console, began = Console(), time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    make_data.main(["digits"])
    epoch = len(ArrayRecordSource(DATA))
    alone, killed = Run(FOLDER / "alone"), Run(FOLDER / "killed")
    set_epochs = ("--set", f"loader.epochs={epochs}")

    console.rule("a run that is killed in mid-epoch")
    reached = kill_in_mid_epoch(killed, epoch, epochs // 2 * epoch, *set_epochs)
    console.print(f"\nkilled after {reached:,} records", style="red")
    console.rule("the same run goes on: four devices, another batch size")
    changes = [part for key, value in RESUMED_WITH.items() for part in ("--set", f"{key}={value}")]
    subprocess.run(training("--resume", killed.folder, *changes), check=True, env=environment())
    console.rule("a run that is left alone")
    words = training(CONFIG, "--into", alone.folder, *set_epochs)
    subprocess.run(words, check=True, env=environment())

    console.rule("what was shown")
    made = claims(alone, killed, reached, epoch, epochs)
    table = Table(show_header=False, box=None)
    for claim in made:
        table.add_row("[green]yes" if claim.holds else "[bold red]NO", claim.what, claim.figure)
    console.print(table)
    picture = plot(alone, killed, reached, epoch)
    console.print(f"plot: {picture}; {time.monotonic() - began:.0f} s", highlight=False)
    return 0 if all(claim.holds for claim in made) else 1


def plot(alone: Run, killed: Run, reached: int, epoch: int) -> Path:
    """Loss, waiting time and speed of the killed run over its steps, and where it was killed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    went_on = killed.result["first_step"]
    lines = killed.lines
    split = next(i for i, line in enumerate(lines) if line["devices"] == RESUMED_WITH["mesh.data"])
    parts = (("8 devices, batches of 64", lines[:split]), ("4 devices, of 48", lines[split:]))
    figure, axes = pyplot.subplots(3, 1, figsize=(9, 8), sharex=True, layout="constrained")
    per_epoch = -(-epoch // lines[0]["batch_size"])
    reached_step = per_epoch * (reached / epoch)
    for (name, part), colour in zip(parts, ("tab:blue", "tab:orange"), strict=True):
        steps = [line["step"] for line in part]
        for axis, key in zip(axes, ("loss", "waiting_ms", "rows_per_s"), strict=True):
            axis.plot(steps, [line[key] for line in part], color=colour, label=name)
    whole = [line for line in lines[:split] if line["step"] <= went_on] + lines[split:]
    axes[0].plot(
        _interpolated([line["position"] for line in alone.lines], whole),
        [line["loss"] for line in alone.lines],
        color="grey", linewidth=1, zorder=0, label="left alone, at the same records",
    )  # fmt: skip
    titles = ("loss", "waiting for input, ms per step", "rows per second")
    for axis, title in zip(axes, titles, strict=True):
        axis.axvline(reached_step, color="tab:red", linestyle="--", label="SIGKILL")
        axis.axvline(went_on, color="tab:green", linestyle=":", label="checkpoint it went on from")
        axis.set_ylabel(title)
        axis.grid(alpha=0.3)
    axes[0].set_yscale("log")
    axes[0].legend(loc="upper right")
    axes[-1].set_xlabel("step")
    axes[0].set_title("Killed in mid-epoch, resumed on half the devices")
    path = FOLDER / "demo.png"
    figure.savefig(path, dpi=110)
    return path


def _interpolated(positions: list[int], lines: list[dict[str, Any]]) -> Any:
    """The steps of a run at which it had trained on so many records."""
    return np.interp(
        positions, [line["position"] for line in lines], [line["step"] for line in lines]
    )


if __name__ == "__main__":
    raise SystemExit(main())
