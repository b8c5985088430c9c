"""Memory of large rows is used again, but never while anything refers to it."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from loader import DataLoader, Shuffle
from loader.records import kept_memory as memory
from loader.records.memory import empty_rows

LARGE = 2**22


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_pieces", [bytearray()] * 8)


def rows(count: int = LARGE // 4096, value: int = 0) -> np.ndarray:
    made = empty_rows((count, 4096), np.uint8)
    made[...] = value
    return made


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_what_is_freed_is_used_again():
    first = address(rows())
    assert address(rows()) == first
    a, b = rows(), rows()
    places = {address(a), address(b)}
    del a, b
    assert {address(one) for one in (rows(), rows())} == places


def test_memory_that_is_little_larger_is_used_and_what_is_much_larger_is_not():
    first = address(rows(2000))
    small = rows(1500)
    assert address(small) != first
    assert address(rows(1700)) == first
    assert address(rows(2000)) == first


def test_nothing_is_used_again_that_anything_refers_to():
    random = np.random.default_rng(0)
    held: dict[int, np.ndarray] = {}
    for number in range(200):
        held[number] = rows(int(random.integers(1024, 1300)), number % 256)[random.integers(500) :]
        if len(held) > 4:
            del held[int(random.choice(list(held)))]
        spans = sorted((address(one), one.nbytes) for one in held.values())
        assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(spans))
        assert all((one == value % 256).all() for value, one in held.items())


def test_an_array_on_a_device_keeps_what_it_was_made_of():
    placed = [jax.device_put(rows(value=value)[10:]) for value in range(1, 6)]
    for _ in range(10):
        rows(value=99)
    assert all((np.asarray(one) == value).all() for value, one in enumerate(placed, 1))


def test_what_nobody_uses_is_kept_up_to_a_bound():
    held = [rows() for _ in range(40)]
    del held
    assert [len(piece) for piece in memory._pieces] == [LARGE + 64] * 8
    rows(memory.MOST_KEPT // 4096 + 1)
    assert [len(piece) for piece in memory._pieces] == [LARGE + 64] * 8


def test_batches_that_a_step_takes_for_its_own_are_not_disturbed():
    """Donated, forgotten while they are worked on, seen through numpy."""
    data = np.random.default_rng(0).integers(0, 100, (2048, 2048), np.int32)
    step = jax.jit(lambda x, total: (x + 1, total + x.sum()), donate_argnums=0)
    loader = DataLoader(data, batch_size=256, order=Shuffle(0), epochs=8)
    kept, total, expected = [], 0, 0
    for number, batch in enumerate(loader):
        rows = loader.host_batch_at(number)["data"]
        seen = np.asarray(batch["data"]) if number % 3 == 0 else None
        out, total = step(batch["data"], total)
        expected += int(rows.sum())
        kept.append((rows, out if number % 2 else None, seen))
    assert int(total) == expected
    for rows, out, seen in kept:
        assert out is None or (np.asarray(out) == rows + 1).all()
        assert seen is None or (seen == rows).all()


def test_threads_that_make_and_free_at_once_do_not_share():
    barrier = threading.Barrier(4)

    def work(value: int) -> bool:
        barrier.wait()
        right = True
        for _ in range(50):
            one, other = rows(value=value), rows(value=value + 100)
            right &= bool((one == value).all() and (other == value + 100).all())
        return right

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


def test_small_rows_and_texts_are_made_by_numpy():
    assert empty_rows((2**14,), np.uint8).base is None
    assert empty_rows((LARGE,), object).base is None
