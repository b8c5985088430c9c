"""Large copies are shared with a second thread, and are what one thread would have made."""

import multiprocessing
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader.second_thread
from loader import ArraySource, DataLoader, Shuffle
from loader.rows import heads_of, take_rows
from loader.second_thread import SecondThread, second_thread

TIMEOUT_S = 30


@pytest.fixture
def unlike_rows() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (5000, 4096), np.uint8)


@pytest.fixture
def busy() -> Iterator[SecondThread]:
    """A second thread that does something else, and does not come to an end with it."""
    begun, ended = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert ended.wait(TIMEOUT_S)

    thread = SecondThread()
    other = threading.Thread(target=thread.share, args=(begun.wait, hold))
    other.start()
    assert begun.wait(TIMEOUT_S)
    yield thread
    ended.set()
    other.join(TIMEOUT_S)


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 1000])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_rows_are_those_of_a_plain_copy(unlike_rows: np.ndarray, rows: int, dtype: Any):
    array = unlike_rows.view(dtype)  # 256 rows are exactly large
    indices = np.random.default_rng(rows).integers(0, len(array), rows)
    for heads in (None, heads_of(array)):
        np.testing.assert_array_equal(take_rows(array, indices, heads), array[indices])


def test_rows_are_looked_at_where_they_are_long_and_in_memory(
    unlike_rows: np.ndarray, tmp_path: Path
):
    heads = heads_of(unlike_rows.view(np.int64))
    assert heads is not None
    np.testing.assert_array_equal(heads, unlike_rows.view(np.int64)[:, 0])
    assert heads_of(unlike_rows[:, :1024].copy()) is None
    assert heads_of(unlike_rows[:, :3000]) is None  # not contiguous
    assert heads_of(unlike_rows[:0]) is None
    assert heads_of(unlike_rows.view("S4096")) is None  # an element is all of the row
    copied = pickle.loads(pickle.dumps(ArraySource(unlike_rows)))
    assert np.shares_memory(copied._heads[0], copied._leaves[0])
    with pytest.raises(ValueError, match="the source is empty: its arrays have no rows"):
        ArraySource(unlike_rows[:0])
    np.save(tmp_path / "rows.npy", unlike_rows)
    on_disk = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert heads_of(on_disk) is None
    assert heads_of(np.asarray(on_disk)[100:]) is None


def test_both_parts_are_done_the_other_one_in_the_thread():
    seen: dict[str, str] = {}
    begun = threading.Event()

    def other() -> None:
        seen["other"] = threading.current_thread().name
        begun.set()

    def mine() -> None:
        seen["mine"] = threading.current_thread().name
        assert begun.wait(TIMEOUT_S)

    SecondThread().share(mine, other)
    assert seen == {"mine": "MainThread", "other": "gristmill-copy"}


def test_a_thread_that_is_busy_is_not_waited_for(busy: SecondThread):
    done: list[str] = []
    for _ in range(3):
        busy.share(lambda: done.append("mine"), lambda: done.append("other"))
    assert done == ["mine", "other"] * 3


def test_what_fails_in_the_thread_is_raised_where_it_is_waited_for():
    thread, begun = SecondThread(), threading.Event()

    def fails() -> None:
        begun.set()
        raise MemoryError("of the other")

    def fails_here() -> None:
        raise MemoryError("of mine")

    for mine in (begun.wait, lambda: None):  # in the thread, and taken back if it was too late
        with pytest.raises(MemoryError, match="of the other"):
            thread.share(mine, fails)
    with pytest.raises(MemoryError, match="of mine"):
        thread.share(fails_here, lambda: None)
    done: list[str] = []
    thread.share(lambda: done.append("mine"), lambda: done.append("other"))  # it lives on
    assert sorted(done) == ["mine", "other"]


def test_many_who_copy_at_once_get_their_own_rows(unlike_rows: np.ndarray):
    def copy(seed: int) -> bool:
        indices = np.random.default_rng(seed).integers(0, len(unlike_rows), 300)
        return bool((take_rows(unlike_rows, indices) == unlike_rows[indices]).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(copy, range(100)))


def test_the_batches_are_the_same_on_one_core(
    unlike_rows: np.ndarray, monkeypatch: pytest.MonkeyPatch
):
    def batches() -> list[np.ndarray]:
        loader = DataLoader(ArraySource(unlike_rows), batch_size=700, order=Shuffle(1), epochs=2)
        return [batch["data"] for batch in loader.host_batches()]

    shared = batches()
    monkeypatch.setattr(loader.second_thread, "_started", [])
    monkeypatch.setattr(loader.second_thread, "_cores", lambda: 1)
    assert second_thread() is None
    for one, other in zip(shared, batches(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_process_has_a_thread_of_its_own(unlike_rows: np.ndarray):
    indices = np.arange(0, 5000, 7)
    take_rows(unlike_rows, indices)

    def child() -> None:
        took = take_rows(unlike_rows, indices)
        names = [thread.name for thread in threading.enumerate()]
        good = (took == unlike_rows[indices]).all() and names.count("gristmill-copy") == (
            second_thread() is not None
        )
        raise SystemExit(0 if good else 1)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(TIMEOUT_S)
    process.kill()
    process.join()
    assert process.exitcode == 0
