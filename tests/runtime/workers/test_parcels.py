"""What travels to workers, and how large it is."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from loader import ArraySource
from loader.runtime.workers.parcels import packed_source, packed_whole, unpacked


def test_a_memory_mapped_file_travels_by_its_name(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(60_000, dtype=np.float64).reshape(1000, 60))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for part in (mapped, mapped[17:900:3, 5:], np.asarray(mapped)[3:], mapped.T[2:]):
        data, buffers = packed_source({"x": part})
        assert len(data) + sum(len(buffer.raw()) for buffer in buffers) < 1500
        np.testing.assert_array_equal(pickle.loads(data, buffers=buffers)["x"], part)
    source = ArraySource({"x": mapped})
    assert len(packed_whole(source)) < 3000


def test_what_was_changed_in_memory_alone_travels_itself(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(100.0))
    changed = np.load(tmp_path / "x.npy", mmap_mode="c")
    changed[:] = -1
    assert set(unpacked(packed_whole(changed))) == {-1.0}
    result = np.load(tmp_path / "x.npy", mmap_mode="r") + 1
    np.testing.assert_array_equal(unpacked(packed_whole(result)), np.arange(100.0) + 1)


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_travel_without_a_copy(order: str) -> None:
    array = np.asarray(np.random.default_rng(0).normal(size=(64, 64)), order=order)  # pyright: ignore
    data, buffers = packed_source(array)
    assert len(data) < 1000
    assert sum(len(buffer.raw()) for buffer in buffers) == array.nbytes
