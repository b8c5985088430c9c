"""Arrays that a source takes as they are, and those that it refuses."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import ArraySource, DataLoader

ROWS = np.arange(7, dtype=np.int32)
TEXTS = np.array([f"text {n}" for n in ROWS], np.dtypes.StringDType())
MASKED = np.ma.MaskedArray(np.arange(7), ROWS == 3)


class Records:
    """A source of whatever a function gives."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Spec(Records):
    def record_spec(self) -> Any:
        return self.make(0)


def test_leaves_of_one_name_are_refused_whatever_their_lengths():
    words = "two leaves are called 'a/b': .* rename the key that has a '/' in it"
    for short in (ROWS, ROWS[:5]):
        with pytest.raises(ValueError, match=words):
            DataLoader({"a": {"b": short}, "a/b": ROWS}, batch_size=2)
    records = Records(lambda n: {"a": {"b": np.int32(n)}, "a/b": np.int32(-n)})
    with pytest.raises(ValueError, match=words):
        next(DataLoader(records, batch_size=2))
    with pytest.raises(ValueError, match=words):
        DataLoader(Spec(records.make), batch_size=2)


def test_leaves_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"different numbers of rows: {'a': 7, 'b': 5}"):
        ArraySource({"a": ROWS, "b": ROWS[:5]})


@pytest.mark.parametrize("outside", [[7], [0, -1], [3, 8]])
def test_no_row_is_read_in_place_of_one_that_is_not_there(outside: list[int]):
    with pytest.raises(IndexError, match="of a source of 7"):
        ArraySource({"a": ROWS}).gather(np.array(outside))


@pytest.mark.parametrize(
    ("leaf", "words"),
    [
        (MASKED, r"leaf 'a' is a masked array.* give array\.filled\(\.\.\.\)"),
        (TEXTS, r"leaf 'a' is of numpy's StringDType.* give array\.astype\(object\)"),
    ],
)
def test_arrays_that_would_lose_something_are_refused_with_the_remedy(leaf: Any, words: str):
    with pytest.raises(ValueError, match=words):
        DataLoader({"a": leaf, "id": ROWS}, batch_size=2)
    with pytest.raises(ValueError, match=words):
        next(DataLoader(Records(lambda n: {"a": leaf[n : n + 1]}), batch_size=2))


def test_a_masked_value_is_refused_too():
    records = Records(lambda n: {"a": MASKED[3]})
    with pytest.raises(ValueError, match="leaf 'a' is a masked array"):
        next(DataLoader(records, batch_size=2))


def test_time_spans_stay_on_the_host_as_dates_do():
    source = {"a": ROWS.astype("m8[s]"), "id": ROWS}
    with pytest.raises(ValueError, match=r"leaf 'a' holds timedelta64\[s\] values, which no devi"):
        next(DataLoader(source, batch_size=2))
    batch = next(DataLoader(source, batch_size=2).host_batches())
    np.testing.assert_array_equal(batch["a"], source["a"][:2])


@pytest.mark.parametrize("keys", [(1, 2), (1, "a")])
def test_keys_that_are_not_texts_are_refused(keys: Any):
    words = re.escape(f"the keys of records must be texts, got {list(keys)}: give each leaf a name")
    with pytest.raises(ValueError, match=words):
        DataLoader(dict.fromkeys(keys, ROWS), batch_size=2)
    with pytest.raises(ValueError, match=words):
        next(DataLoader(Records(lambda n: dict.fromkeys(keys, n)), batch_size=2))


@pytest.mark.parametrize("offset", [0, 8192])
def test_a_memory_map_whose_file_is_cut_off_is_refused_and_not_read(tmp_path: Path, offset: int):
    path = tmp_path / "rows.bin"
    rows = np.arange(20000, dtype=np.int64)
    path.write_bytes(bytes(offset) + rows.tobytes())
    mapped = np.memmap(path, np.int64, "r", offset, (20000,))
    source = ArraySource({"a": mapped[10:]})
    assert source.gather(np.array([3]))["a"].tolist() == [13]
    with path.open("r+b") as file:
        file.truncate(offset + 100)
    for read in (lambda: source.gather(np.array([19000])), lambda: source[19000]):
        with pytest.raises(ValueError, match=f"has {offset + 100} bytes, and {offset + 160000} we"):
            read()
    with pytest.raises(ValueError, match="was cut off, or is being written anew"):
        ArraySource({"a": mapped})
