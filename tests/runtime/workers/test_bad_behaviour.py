"""What operators and sources do to their process: the run goes on, or says what is wrong."""

import io
import logging
import os
import re
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loader import DataLoader, Mask, On, Processes
from loader.runtime import helper_threads
from loader.runtime.workers.processes import supervisor
from tests.runtime.workers.pipelines import (
    AtLoading,
    OddThere,
    Once,
    SourceAtLoading,
    another_there,
    assert_same,
    children,
    is_alive,
    loader_of,
)


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return list(loader_of(None))


class Written(io.TextIOBase):
    """A standard output that notes how much was written, and how much at once."""

    def __init__(self) -> None:
        self.total = self.longest = 0

    def write(self, text: str) -> int:
        self.total += len(text)
        self.longest = max(self.longest, len(text))
        return len(text)


@pytest.mark.parametrize("what", ["prints", "logs", "leaves_a_child_that_prints"])
def test_who_prints_or_logs_without_end_has_not_answered(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[Any]
) -> None:
    written = Written()
    monkeypatch.setattr(sys, "stdout", written)
    with loader_of(Processes(1, timeout_s=1), Once(what, 40, tmp_path)) as loader:
        assert_same(list(loader), expected)
        (why,) = loader.stats().asked_again
        assert not is_alive(int((tmp_path / f"met-{what}").read_text()))
    assert why == ("exit status 3" if "child" in what else "more than 1 s for one answer")
    if what != "logs":
        assert written.total > 1 << 16  # a line without an end reaches the trainer all the same
        assert written.longest < 1 << 20


@pytest.mark.parametrize("part", ["source", "operators"])
def test_what_ends_each_worker_that_loads_it_ends_the_run_by_name(
    part: str, tmp_path: Path
) -> None:
    file = tmp_path / "go"
    file.touch()
    source: Any = SourceAtLoading("exit", file) if part == "source" else {"x": np.arange(8)}
    operators = [] if part == "source" else [AtLoading("exit", file)]
    kind = Processes(1, restarts=2)
    with DataLoader(source, batch_size=4, operators=operators, workers=kind) as loader:
        words = f"no worker process manages to load the {part}: worker 0 .*: exit status 3"
        with pytest.raises(RuntimeError, match=words):
            next(loader)
        assert not loader.stats().asked_again  # no batch is to blame


def test_an_operator_that_cannot_be_loaded_is_refused_by_name_and_the_worker_goes_on(
    tmp_path: Path, expected: list[Any]
) -> None:
    operator = AtLoading("raise", tmp_path / "go")
    with loader_of(Processes(1), operator) as loader:
        assert_same([next(loader)], expected[:1])
        pids = set(children())
        operator.file.touch()
        loader.seek(0)
        words = "worker 0 cannot load the operators.*ModuleNotFoundError: no module named 'elsewh"
        with pytest.raises(RuntimeError, match=words):
            next(loader)
        operator.file.unlink()
        assert_same([next(loader)], expected[:1])
        assert set(children()) == pids


def test_loading_has_the_deadline_of_a_start_and_not_that_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[Any]
) -> None:
    operator = AtLoading("wait", tmp_path / "go")
    operator.file.touch()
    with loader_of(Processes(1, timeout_s=1), operator) as loader:
        assert_same([next(loader)], expected[:1])
        assert not loader.stats().asked_again
    operator = AtLoading("hang", tmp_path / "gone")
    with loader_of(Processes(1, restarts=1), operator) as loader:
        assert_same([next(loader)], expected[:1])
        operator.file.touch()
        monkeypatch.setattr(supervisor, "START_TIMEOUT_S", 1.0)
        loader.seek(0)
        with pytest.raises(RuntimeError, match="more than 1 s to load the operators") as caught:
            next(loader)
    assert "in _hang" in str(caught.value)  # the stack


class KilledWhileSent(str):
    """A folder of `sys.path`. The worker to which it is sent first is killed before it comes."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        for pid in [] if _killed else children():
            _killed.append(pid)
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return str, (str(self),)


_killed: list[int] = []


def test_a_worker_that_is_killed_before_it_is_told_anything_is_replaced(
    monkeypatch: pytest.MonkeyPatch, expected: list[Any]
) -> None:
    _killed.clear()
    monkeypatch.setattr(sys, "path", [*sys.path, KilledWhileSent("/nowhere")])
    with loader_of(Processes(1)) as loader:
        assert_same([next(loader)], expected[:1])
    assert len(_killed) == 1


@pytest.mark.parametrize("masks", [False, True])
def test_a_log_record_that_cannot_be_formatted_changes_no_batch(
    masks: bool, capfd: pytest.CaptureFixture[str], expected: list[Any]
) -> None:
    here = os.getpid()  # where pytest hears what is logged, and raises

    class Talks:
        def map(self, record: Any) -> Any:
            if os.getpid() != here:
                logging.getLogger("a.user").warning("%d", "x")
            return record

    settings: dict[str, Any] = {"on_error": Mask(log=None)} if masks else {}
    with loader_of(Processes(1), Talks(), **settings) as loader:
        assert_same([next(loader), next(loader)], expected[:2])
        assert loader.stats().bad_records == 0
    written = capfd.readouterr().err
    assert re.search(r"^\[worker 0\] --- Logging error ---$", written, re.MULTILINE)


def test_a_log_record_that_the_trainer_cannot_handle_changes_no_batch(
    expected: list[Any],
) -> None:
    here = os.getpid()

    class Talks:
        def map(self, record: Any) -> Any:
            if os.getpid() != here:
                logging.getLogger("a.user").warning("hear me")
            return record

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())
            raise OSError("the disk of the log is full")

    heard: list[str] = []
    logger, handler = logging.getLogger("a.user"), Broken()
    logger.addHandler(handler)
    try:
        with loader_of(Processes(1), Talks()) as loader:
            assert_same([next(loader)], expected[:1])
    finally:
        logger.removeHandler(handler)
    assert "[worker 0] hear me" in heard


def test_close_says_what_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Held(io.TextIOBase):
        def write(self, text: str) -> int:
            reached.set()
            released.wait(60)
            return len(text)

    class Talks:
        def map(self, record: Any) -> Any:
            print("who hears me?")
            return record

    reached, released = threading.Event(), threading.Event()
    monkeypatch.setattr(helper_threads, "CLOSE_TIMEOUT_S", 0.2)
    loader = loader_of(Processes(1), Talks())
    loader.start()
    (thread,) = loader._employer._crew._supervisor.threads._threads  # pyright: ignore
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Held())
        assert reached.wait(60)
        with pytest.warns(RuntimeWarning, match="gristmill-workers is still running") as caught:
            loader.close()
        released.set()
        thread.join(60)
    assert caught[0].filename == __file__
    assert not children()


def test_time_in_which_the_trainer_is_held_up_is_not_charged_to_a_worker(
    monkeypatch: pytest.MonkeyPatch, expected: list[Any]
) -> None:
    class HeldUp(io.TextIOBase):
        def write(self, text: str) -> int:
            if not held and text.startswith("[worker 0]"):
                held.append(text)
                threading.Event().wait(3)  # the worker answers meanwhile
            return len(text)

    class Talks:
        def map(self, record: Any) -> Any:
            print("hear me out")
            return record

    held: list[str] = []
    with loader_of(Processes(1, timeout_s=2), Talks()) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", HeldUp())
            assert_same(list(loader), expected)
        assert not loader.stats().asked_again
    assert held


def test_a_file_of_another_size_is_seen_even_where_it_is_not_sampled(tmp_path: Path) -> None:
    source = another_there(tmp_path, count=200, text_there="77777")
    loader = DataLoader(source, batch_size=4, workers=Processes(1))
    with loader, pytest.raises(RuntimeError, match=r"sees other .*: sizes of files of the source"):
        next(loader.host_batches())


def test_a_record_that_a_worker_cannot_read_does_not_hide_that_another_one_differs() -> None:
    with DataLoader(OddThere(2, 9), batch_size=4, workers=Processes(1)) as loader:
        words = "worker 0 sees other data than the trainer: record 9 of the source differ"
        with pytest.raises(RuntimeError, match=words):
            next(loader.host_batches())
    # If that is all, the error is that of the batch which has the record.
    loader = DataLoader(OddThere(6, -1), batch_size=4, workers=Processes(1), retries=0)
    with loader:
        batches = loader.host_batches()
        np.testing.assert_array_equal(next(batches)["x"][:, 0], np.arange(4))
        with pytest.raises(OSError, match="a broken disk"):
            next(batches)


class ByJAX:
    """What it gives depends on how JAX is set."""

    def map(self, record: Any) -> Any:
        key = jax.random.key_data(jax.random.key(3))
        return {"third": np.asarray(jnp.asarray(record["x"], float) / 3), "key": np.asarray(key)}


@pytest.mark.parametrize("kind", ["processes", "executor"])
def test_what_jax_is_set_to_holds_in_workers_too(kind: str) -> None:
    usual = list(loader_of(None, ByJAX(), epochs=1).host_batches())
    setting = "jax_default_prng_impl"
    was = getattr(jax.config, setting)
    executor = ThreadPoolExecutor(1)  # settings are those of a thread
    workers = Processes(1) if kind == "processes" else On(executor)
    try:
        with executor, loader_of(workers, ByJAX(), epochs=1) as loader:
            assert_same(list(loader.host_batches()), usual)
            jax.config.update(setting, "rbg")
            with jax.enable_x64(True):  # the same process, with other settings
                loader.seek(0)
                expected = list(loader_of(None, ByJAX(), epochs=1).host_batches())
                batches = list(loader.host_batches())
    finally:
        jax.config.update(setting, was)
    assert_same(batches, expected)
    assert batches[0]["third"].dtype == np.float64
    assert usual[0]["third"].dtype == np.float32
    assert batches[0]["key"].shape != usual[0]["key"].shape
