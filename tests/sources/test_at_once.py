"""Several files read at once: the same records, and no lock is left behind by an interrupt."""

import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import ArrayRecordSource, RawArrays
from loader.sources.array_record.at_once import AtOnce
from tests.data import RECORD_SPEC, write_raw_records


def test_slow_storage_gives_the_same_records(tmp_path: Path) -> None:
    paths = write_raw_records(tmp_path, [3, 1, 7, *([1] * 30), 5])
    source = ArrayRecordSource(paths, RawArrays(RECORD_SPEC))
    numbers = np.random.default_rng(0).permutation(len(source))
    one_by_one = source.gather(numbers)
    source._files._slow = True  # as if a record took longer than a millisecond
    at_once = source.gather(numbers)
    for name in one_by_one:
        np.testing.assert_array_equal(at_once[name], one_by_one[name])
    np.testing.assert_array_equal(at_once["id"], numbers)


def test_an_error_of_one_call_is_raised_and_the_threads_go_on() -> None:
    threads, seen = AtOnce(3), []

    def call(number: int) -> None:
        if number == 2:
            raise LookupError("two")
        seen.append(number)

    with pytest.raises(LookupError, match="two"):
        threads.call(call, range(5))
    threads.call(call, [7, 8])
    assert sorted(seen) == [0, 1, 3, 4, 7, 8]


def test_an_interrupt_leaves_no_lock_behind(full: bool) -> None:
    threads, random_ = AtOnce(4), random.Random(5)

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupts, until = 0, time.monotonic() + (20 if full else 1)
    found: list[int] = []
    try:
        while time.monotonic() < until:
            try:
                signal.setitimer(signal.ITIMER_REAL, random_.uniform(1e-5, 3e-4))
                while True:
                    found = []
                    threads.call(found.append, range(8))
                    assert sorted(found) == list(range(8))
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    threads.call(found.append, [1])  # else it hangs
    assert interrupts > 50
