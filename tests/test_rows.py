"""Rows copied from arrays are those of the arrays."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import ArraySource
from loader.rows import heads_of, take_rows


@pytest.fixture
def unlike_rows() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (5000, 4096), np.uint8)


def test_rows_are_those_of_the_array_however_it_lies():
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 60000, (400, 6, 8))
    texts = np.array([f"text {n}" for n in range(400)], object)
    arrays = [whole, whole[::2], whole[:, ::-1], np.asfortranarray(whole), whole[..., 0], texts]
    arrays += [whole.astype(">i4"), whole[:, :0], whole.astype(np.float16)]
    for array in arrays:
        for count in (0, 1, 7, 2000):
            indices = rng.integers(0, len(array), count)
            rows = take_rows(array, indices)
            assert rows.dtype == array.dtype
            np.testing.assert_array_equal(rows, array[indices])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_rows_that_are_looked_at_first_are_the_same(unlike_rows: np.ndarray, dtype: Any):
    array = unlike_rows.view(dtype)
    indices = np.random.default_rng(1).integers(0, len(array), 1000)
    heads = heads_of(array)
    assert heads is not None
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
