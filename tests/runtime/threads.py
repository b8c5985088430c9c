"""The helper threads that are alive, and that none is left after a test."""

import gc
import threading
from collections.abc import Iterator

import pytest

TIMEOUT_S = 30

_of_other_tests: set[threading.Thread] = set()  # whose loaders something still refers to


def prefetch_threads() -> list[threading.Thread]:
    # Python also counts those whose start was interrupted, and that never run.
    found = [t for t in threading.enumerate() if "prefetch" in t.name and t.is_alive()]
    return [thread for thread in found if thread not in _of_other_tests]


def all_threads_end() -> None:
    for thread in prefetch_threads():
        thread.join(TIMEOUT_S)
    assert not prefetch_threads()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    gc.collect()  # loaders of other tests
    for thread in prefetch_threads():
        thread.join(1)
    _of_other_tests.update(prefetch_threads())
    yield
    gc.collect()
    all_threads_end()
