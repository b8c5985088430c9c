"""Loaders whose batches workers make, and operators that do what operators should not."""

import ctypes
import errno
import logging
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from loader import ArraySource, DataLoader, FilesSource, Shuffle, Source
from loader.sources.storage.stored_files import StoredFiles
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

    def _prints(self) -> None:
        while True:
            os.write(1, b"and so on " * 400)  # never a line's end

    def _logs(self) -> None:
        while True:
            logging.getLogger("a.user").warning("still at it")
            time.sleep(0.05)

    def _leaves_a_child_that_prints(self) -> None:
        subprocess.Popen(["yes"])
        os._exit(3)

    def _raise(self) -> None:
        raise LookupError(f"record {self.record} is not to my taste")


class RaisesWhile:
    """Raises at a record, as long as a file is there."""

    version = 1

    def __init__(self, x: float, file: str) -> None:
        self._x, self._file = x, file

    def map(self, record: Any) -> Any:
        if record["x"] == self._x and Path(self._file).exists():
            raise LookupError("not to my taste")
        return record


class Slow:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def map(self, record: Any) -> Any:
        time.sleep(self.seconds)
        return record


class AtLoading:
    """Does something bad where another process loads it, once its file is there."""

    def __init__(self, what: str, file: Path) -> None:
        self.what, self.file, self.pid = what, file, os.getpid()

    def map(self, record: Any) -> Any:
        return record

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if os.getpid() != self.pid and self.file.exists():
            getattr(self, f"_{self.what}")()

    def _exit(self) -> None:
        os._exit(3)

    def _hang(self) -> None:
        while True:
            pass

    def _raise(self) -> None:
        raise ModuleNotFoundError("no module named 'elsewhere'")

    def _wait(self) -> None:
        time.sleep(1.5)


class SourceAtLoading(AtLoading, Source):
    """A source that does that."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return {"x": np.full(3, index)}


class OddThere(Source):
    """Where it was unpickled, a record cannot be read, and another one is not the same."""

    def __init__(self, unread: int, other: int) -> None:
        self.unread, self.other, self._there = unread, other, False

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        if self._there and index == self.unread:
            raise OSError(errno.EIO, "a broken disk")
        return {"x": np.full(3, index + (self._there and index == self.other))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _there=True)


class AnotherThere(FilesSource):
    """Reads other files where it was unpickled, as where another disk is mounted."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._files = StoredFiles([path.replace("here", "there") for path in self.paths])


def another_there(folder: Path, count: int = 8, text_there: str = "7777") -> AnotherThere:
    """Files, one of which has another content elsewhere."""
    for place in ("here", "there"):
        (folder / place).mkdir()
        for number in range(count):
            text = f"{number:04d}" if (place, number) != ("there", 3) else text_there
            (folder / place / f"{number:03d}.txt").write_text(text)
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


def listening(pids: list[int]) -> list[str]:
    """The addresses on which processes listen for others."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                host = fields[1].split(":")[0]
                numbers = [str(int(host[i : i + 2], 16)) for i in (6, 4, 2, 0)]
                found.append(".".join(numbers) if table == "tcp" else host)
    return found
