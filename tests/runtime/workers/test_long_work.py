"""Work that is done once, by workers of any kind: the same result, and nothing left of them."""

import concurrent.futures
import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import Filtered, On, Processes, Threads, WorkerLost, index_lengths
from loader.sources.packing import passes
from tests.data import unlike_records
from tests.runtime.workers.pipelines import Once, children, is_alive

COUNT = 15_003
RECORDS = unlike_records(1500)  # several times as many as are read at once


class Documents:
    """Documents of which no two are alike; some are None. Does something when one is read."""

    def __init__(self, do: Any = None) -> None:
        self.do = do

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if self.do is not None:
            self.do(index)
        if index % 7 == 5:
            return None
        return {"tokens": np.arange(index * 37 % 11, dtype=np.int32) + 20 * index}

    def fingerprint(self) -> dict[str, Any]:
        return {}


class Mine(LookupError):
    """An error of the user's."""


def refuse(bad: int, index: int) -> None:
    if index == bad:
        raise Mine(f"document {index} is not to my taste")


def meet(met: Once, index: int) -> None:
    met.map({"id": index})


class Keep:
    """Keeps some records; meets all of them."""

    def __init__(self, met: Once | None = None) -> None:
        self.met = met

    def __call__(self, record: Any) -> bool:
        if self.met is not None:
            self.met.map(record)
        return bool(record["id"] % 5 == 2)


@contextlib.contextmanager
def workers_of(kind: str) -> Iterator[Any]:
    with concurrent.futures.ThreadPoolExecutor(3) as executor:
        yield Threads(2) if kind == "threads" else On(executor)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files that the calling thread writes by itself."""
    folder = tmp_path_factory.mktemp("alone")
    index_lengths(Documents(), tokens=folder / "tokens.bin")
    return files(folder)


@pytest.mark.parametrize("kind", ["threads", "an executor"])
def test_any_workers_find_the_same(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    alone: dict[str, bytes],
):
    lengths = [0 if n % 7 == 5 else n * 37 % 11 for n in range(COUNT)]
    monkeypatch.setattr(passes, "BLOCK_BYTES", 50_000)
    with workers_of(kind) as workers:
        assert index_lengths(Documents(), workers=workers, progress=True).tolist() == lengths
        kept = Filtered(RECORDS, Keep(), workers=workers, progress=True).kept
        assert kept.tolist() == list(range(2, 1500, 5))
        for part in [None], [(1, 2), (0, 2), None]:
            path = tmp_path / str(len(part)) / "tokens.bin"
            for each in part:
                index_lengths(Documents(), tokens=path, part=each, workers=workers)
            assert files(path.parent) == alone
    bars = capsys.readouterr().err
    assert "lengths of records" in bars
    assert "filtering records" in bars


def test_a_process_that_is_killed_costs_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, bytes]
):
    monkeypatch.setattr(passes, "BLOCK_BYTES", 50_000)
    source = Documents(functools.partial(meet, Once("kill", 7654, tmp_path)))
    tokens = tmp_path / "found" / "tokens.bin"
    index_lengths(source, tokens=tokens, workers=Processes(2))
    assert files(tokens.parent) == alone
    assert not is_alive(int((tmp_path / "met-kill").read_text()))
    assert not children()


def test_records_that_are_never_answered_for_are_named(tmp_path: Path):
    class Deaf(concurrent.futures.Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            return concurrent.futures.Future()

    index, deaf = tmp_path / "index" / "kept.npy", On(Deaf(), timeout_s=0.1, restarts=2)
    words = r"the work on records 0 to 255 has cost 2 workers.*\nTo see .*: leave out workers"
    with pytest.raises(WorkerLost, match=words):
        Filtered(RECORDS, Keep(), index, workers=deaf)
    assert not list(index.parent.iterdir())


@pytest.mark.parametrize("workers", [Threads(2), Processes(1)])
def test_an_error_of_the_users_code_is_as_it_is_without_workers(workers: Any, tmp_path: Path):
    before = set(threading.enumerate())
    keep = Keep(Once("raise", 700, tmp_path, always=True))
    with pytest.raises(ValueError, match=r"record 700: .*Keep: LookupError") as here:
        Filtered(RECORDS, keep)
    with pytest.raises(type(here.value), match="record 700") as there:
        Filtered(RECORDS, keep, workers=workers)
    assert str(there.value) == str(here.value)
    notes = "".join(getattr(there.value, "__notes__", []))
    assert ("The traceback of worker 0" in notes) == isinstance(workers, Processes)
    assert not children()
    names = {thread.name for thread in set(threading.enumerate()) - before}
    assert not names & {"gristmill-workers", "gristmill-prefetch"}


def test_an_error_of_a_source_has_its_own_type(tmp_path: Path):
    bad = Documents(functools.partial(refuse, 3001))
    with workers_of("an executor") as executor:
        for workers in (Threads(2), executor):
            with pytest.raises(Mine, match="document 3001 is not to my taste"):
                index_lengths(bad, cache=tmp_path / "lengths.npy", workers=workers)
    assert not (tmp_path / "lengths.npy").exists()


class Widening(Documents):
    """Documents whose dtype changes on the way, which cannot be kept."""

    def __getitem__(self, index: int) -> Any:
        return {"tokens": np.arange(3, dtype=np.int32 if index < 512 else np.int64)}


def test_what_the_caller_cannot_keep_ends_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(passes, "BLOCK_BYTES", 10_000)
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="all tokens must be of one dtype") as caught:
        index_lengths(Widening(), tokens=tmp_path / "tokens.bin", workers=Threads(2))
    assert caught.traceback  # which refers to whatever was suspended
    new = set(threading.enumerate()) - before
    assert "gristmill-prefetch" not in {thread.name for thread in new}


_DISTURBED = """
import os, resource, signal, sys
from pathlib import Path
from loader import Processes, index_lengths
from loader.sources.packing import passes
from tests.runtime.workers.pipelines import children
from tests.runtime.workers.test_long_work import Documents

folder, trainer = Path(sys.argv[1]), os.getpid()
passes.BLOCK_BYTES = 150_000  # what is found of some 9,000 records
# Few files may be open, though what is found of each 256 records comes in one.
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 25, 1000))

def disturb(index):
    if index == 12_000 and not (folder / "interrupted").exists():
        (folder / "interrupted").touch()
        os.kill(trainer, signal.SIGINT)
    if index == 14_500:
        (folder / "killed").write_text(str(os.getpid()))
        os.kill(trainer, signal.SIGKILL)

for _ in range(2):
    try:
        index_lengths(Documents(disturb), tokens=folder / "tokens.bin", workers=Processes(1))
    except KeyboardInterrupt:
        print("interrupted", children(), flush=True)
"""


def test_an_interrupt_or_a_kill_leaves_no_worker_and_the_next_call_goes_on(
    tmp_path: Path, alone: dict[str, bytes]
):
    done = subprocess.run(
        [sys.executable, "-c", _DISTURBED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "interrupted {}\n", done.stderr
    assert done.returncode == -signal.SIGKILL, done.stderr
    worker, deadline = int((tmp_path / "killed").read_text()), time.monotonic() + 5
    while is_alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(worker)
    reads: list[int] = []
    index_lengths(Documents(reads.append), tokens=tmp_path / "tokens.bin")
    assert len(reads) < COUNT // 2  # what was kept was used
    assert (tmp_path / "tokens.bin").read_bytes() == alone["tokens.bin"]


def test_what_cannot_do_the_work_is_refused_before_anything_is_read():
    lock = threading.Lock()

    def locked(record: Any) -> bool:
        with lock:
            return True

    locked.version = 1  # pyright: ignore[reportFunctionMemberAccess]
    with pytest.raises(TypeError, match=r"^keep\..*\(its variable lock\) cannot be sent"):
        Filtered(RECORDS, locked, workers=Processes(1))
    others: list[Any] = [4, Processes, "Processes"]
    for workers in others:
        with pytest.raises(TypeError, match=r"workers are Threads\(2\).*got"):
            index_lengths(Documents(functools.partial(refuse, 0)), workers=workers)
        with pytest.raises(TypeError, match=r"workers are Threads\(2\).*got"):
            Filtered(Documents(functools.partial(refuse, 0)), Keep(), workers=workers)
