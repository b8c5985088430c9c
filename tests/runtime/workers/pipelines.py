"""Loaders whose batches workers make, and operators that do what operators should not."""

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from loader import ArraySource, DataLoader, FilesSource, Shuffle
from tests.data import unlike_records


class Doubled:
    """A Python function over records; each record is another."""

    def map(self, record: Any) -> Any:
        return {**record, "double": record["x"] * 2}


class WhereIRun:
    """Adds the process that makes a record, and whether JAX has started a backend there."""

    def map(self, record: Any) -> Any:
        from jax._src import xla_bridge

        backends = np.int32(len(xla_bridge._backends))
        return {**record, "pid": np.int32(os.getpid()), "backends": backends}


class Once:
    """Does something bad when it meets a record, the first time or each time, in any process."""

    def __init__(self, what: str, record: int, folder: Path, *, always: bool = False) -> None:
        self.what, self.record, self.always = what, record, always
        self.file = folder / f"met-{what}"

    def map(self, record: Any) -> Any:
        if record["id"] == self.record and (self.always or not self.file.exists()):
            self.file.write_text(str(os.getpid()))
            getattr(self, f"_{self.what}")()
        return record

    def _exit(self) -> None:
        os._exit(3)

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def _loop(self) -> None:
        while True:
            pass

    def _busy_in_c(self) -> None:
        ctypes.CDLL(None).sleep(1000)

    def _raise(self) -> None:
        raise LookupError(f"record {self.record} is not to my taste")


class Slow:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def map(self, record: Any) -> Any:
        time.sleep(self.seconds)
        return record


class AnotherThere(FilesSource):
    """Reads other files where it was unpickled, as where another disk is mounted."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.paths = [path.replace("here", "there") for path in self.paths]


def another_there(folder: Path) -> AnotherThere:
    """Eight files, one of which has another content elsewhere."""
    for place in ("here", "there"):
        (folder / place).mkdir()
        for number in range(8):
            text = f"{number:04d}" if (place, number) != ("there", 3) else "7777"
            (folder / place / f"{number}.txt").write_text(text)
    return AnotherThere(str(folder / "here" / "*.txt"))


def loader_of(workers: Any, *operators: Any, count: int = 96, **arguments: Any) -> DataLoader:
    """Batches of eight of so many records, in two epochs."""
    settings = {"batch_size": 8, "order": Shuffle(seed=5), "epochs": 2, "prefetch": 2} | arguments
    source = ArraySource(unlike_records(count))
    return DataLoader(source, operators=[Doubled(), *operators], workers=workers, **settings)


def assert_same(batches: list[Any], expected: list[Any]) -> None:
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        jax.tree.map(np.testing.assert_array_equal, batch, other)


def children(pid: int | None = None) -> dict[int, str]:
    """The worker processes of a process, and the state of each."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                command = (folder / "cmdline").read_text()
            except OSError:
                continue
            if int(stat[1]) == (pid or os.getpid()) and "worker_main.py" in command:
                found[int(folder.name)] = stat[0]
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
