"""The attack: cases one after the other, each under a watchdog, until the time is up.

`run(case)` runs one case and raises `Violation`; it is what a printed program calls.
"""

import faulthandler
import gc
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.attack.cases import random_case
from tests.attack.moves import MOVES, overwrite
from tests.attack.oracle import Violation
from tests.attack.pipelines import Built, Case
from tests.attack.streams import random_stream, run_stream
from tests.attack.subject import Counts, Subject
from tests.attack.sweep import AT_LINE, at_line, sweep

DEADLINE_S = 30.0
_THREADS_END_S = 10.0
_SLOW_WORKERS = 5  # times the deadline: each loader starts processes of its own
_LAST_BATCHES = 25
_SWEPT = {"arrays", "plain", "gathering", "gaps", "windows", "mapped", "mixture"}


class Hung(BaseException):
    """The watchdog's: a case has not ended in its time."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """What hangs is a violation: all stacks are printed, and the main thread is called back."""
    over = threading.Event()
    main = threading.main_thread().ident or 0

    def hung(number: int, frame: Any) -> None:
        if not over.is_set():
            raise Hung

    def watch() -> None:
        if over.wait(seconds):
            return
        faulthandler.dump_traceback(all_threads=True)
        for _ in range(5):
            signal.pthread_kill(main, signal.SIGUSR1)
            if over.wait(5):
                return

    before = signal.signal(signal.SIGUSR1, hung)
    watcher = threading.Thread(target=watch, name="attack-watchdog", daemon=True)
    watcher.start()
    try:
        yield
    except Hung as error:
        raise Violation(f"not ended after {seconds} s") from error
    finally:
        over.set()
        watcher.join()
        signal.signal(signal.SIGUSR1, before)


def run(case: Case, counts: Counts | None = None, seconds: float = DEADLINE_S) -> None:
    """Run a case; raises `Violation` if the loader does not do as the oracle says."""
    counts = Counts() if counts is None else counts
    doing: object = "the start"
    interval = sys.getswitchinterval()
    # How often threads take turns: another one in each case.
    sys.setswitchinterval(random.Random(case.seed).choice([1e-6, 1e-5, 1e-4, 5e-3]))
    try:
        seconds *= _SLOW_WORKERS if case.workers == "processes" else 1
        before = set(threading.enumerate())
        with deadline(seconds), tempfile.TemporaryDirectory() as folder:
            it = Subject(Built(case, Path(folder)), Path(folder), counts)
            try:
                for doing in case.moves:
                    name, argument = doing
                    it = perform(it, name, argument) or it
                    counts.moves += 1
                to_the_end(it)
            finally:
                it.close()
            del it
            _threads_end(before)
    except Violation:
        raise
    except Exception as error:
        raise Violation(f"in {doing}: {type(error).__name__}: {error}") from error
    finally:
        sys.setswitchinterval(interval)
    counts.pipelines += 1


def to_the_end(it: Subject) -> None:
    """What is left of the run, and a run from its start: nothing that was done has left a trace."""
    for again in (False, True):
        if again:
            it.move(it.loader.reset, it.run.fresh(), 0)
        for _ in range(_LAST_BATCHES):
            batch = it.take(1, lambda: next(it.loader.host_batches()), placed=False)
            if batch is None:
                break
            overwrite(batch)  # which is the loop's, and nobody else's
    it.check_kept()


def perform(it: Subject, name: str, argument: int) -> Subject | None:
    """One move of a case."""
    if name not in AT_LINE:
        return MOVES[name](it, random.Random(argument))
    at_line(it, name, argument)
    return None


def _threads_end(before: set[threading.Thread]) -> None:
    """No new helper thread is left once its loader is closed or dropped."""
    new = set(threading.enumerate()) - before
    helpers = [thread for thread in new if "prefetch" in thread.name]
    if not helpers:
        return
    gc.collect()
    end = time.monotonic() + _THREADS_END_S
    for thread in helpers:
        # One that was interrupted in its `start` is listed for ever, and has never worked.
        with suppress(RuntimeError):
            thread.join(max(0.0, end - time.monotonic()))
    left = [thread.name for thread in helpers if thread.is_alive()]
    if left:
        raise Violation(f"threads are left: {left}")


def failure(case: Case, seconds: float = DEADLINE_S) -> Violation | None:
    """What is wrong with a case, if anything."""
    try:
        with quiet():
            run(case, seconds=seconds)
    except Violation as violation:
        return violation
    return None


@contextmanager
def quiet() -> Iterator[None]:
    """Without the messages of interrupts that struck where Python drops exceptions."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda args: (
        None if isinstance(args.exc_value, KeyboardInterrupt) else hook(args)
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook


def attack(seed: int, seconds: float, counts: Counts) -> tuple[Case, Violation] | None:
    """Random cases until the time is up: the first that fails, with what is wrong."""
    end = time.monotonic() + seconds
    numbers = random.Random(seed)
    with quiet():
        while time.monotonic() < end:
            case = random_case(numbers.randrange(2**48))
            try:
                run(case, counts)
            except Violation as violation:
                return case, violation
    return None


def attack_at_lines(
    seed: int, seconds: float, counts: Counts, every: int
) -> tuple[Case, Violation] | None:
    """Interrupts at every line, or each `every`-th, of every method of random pipelines."""
    end = time.monotonic() + seconds
    numbers, found = random.Random(seed), None
    with quiet():
        while found is None and (left := end - time.monotonic()) > 0:
            case = random_case(numbers.randrange(2**48))
            if case.source in _SWEPT and case.workers != "processes":
                with deadline(left + 60):
                    found = sweep(case, counts, left, numbers, every)
    return found


def attack_streams(seed: int, seconds: float, counts: Counts) -> None:
    """Random streams until the time is up; raises what is wrong with one."""
    end, numbers = time.monotonic() + seconds, random.Random(seed)
    with quiet():
        while time.monotonic() < end:
            case = random_stream(numbers)
            try:
                with deadline(DEADLINE_S):
                    run_stream(case, counts)
            except BaseException:
                print(f"seed {seed}: from tests.attack.streams import *; run_stream({case})")
                raise
