"""The folder of a run: what it was started with, so that it can go on."""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loader.records.whole_file import write_whole

CONFIG = "config.toml"
_STARTED = "run.json"


@dataclasses.dataclass(frozen=True)
class Started:
    """How a run was started, besides its configuration."""

    folder: str  # the working folder, where paths in the configuration begin
    changes: tuple[str, ...]  # made with --set


def make(folder: Path) -> None:
    """Make the folder of a new run; refused where there is one."""
    if (folder / _STARTED).exists():
        raise ValueError(
            f"there is a run in {folder} already: go on with `gristmill resume {folder}`, or name "
            "another folder with --into"
        )
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # of one that has taken no step
    folder.mkdir(parents=True, exist_ok=True)


def begin(folder: Path, config: Path, changes: Iterable[str]) -> None:
    """Keep how a run was started: from now on it can go on."""
    (folder / CONFIG).write_bytes(config.read_bytes())
    write(folder, Started(os.getcwd(), tuple(changes)))


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """While this lasts, no other process runs in the folder."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"another process is running in {folder}: wait for it") from error
        yield


def write(folder: Path, started: Started) -> None:
    write_whole(folder / _STARTED, json.dumps(dataclasses.asdict(started), indent=2).encode())


def read(folder: Path) -> Started:
    """How the run in this folder was started."""
    try:
        saved = json.loads((folder / _STARTED).read_text())
        return Started(str(saved["folder"]), tuple(map(str, saved["changes"])))
    except FileNotFoundError as error:
        raise ValueError(f"there is no run in {folder}: begin with `gristmill train`") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / _STARTED} is damaged: {error}") from error


def show(result: Any, folder: Path, console: Console) -> None:
    """What came of a run, for people."""
    table = Table(show_header=False, box=None, pad_edge=False)
    went_on = f", from step {result.first_step} on" if result.first_step else ""
    table.add_row("steps", f"{result.steps:,}{went_on}; {result.position:,} records")
    for name, value in result.figures.items():
        table.add_row(f"held out, {name}", f"{value:.4f}")
    stats = result.stats
    table.add_row("speed", f"{stats.rows_per_s:,.0f} rows/s, waiting {stats.waiting_share:.1%}")
    table.add_row("seen", result.digest)
    table.add_row("folder", Text(str(folder)))
    console.print(table)
