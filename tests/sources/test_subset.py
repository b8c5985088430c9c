"""A subset is a source of the records that were chosen, and of no other."""

import pickle
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

from loader import ArraySource, DataLoader, Packed, Shuffle, Subset, TextLinesSource, Threads
from loader.testing import assert_covers_each_record_once, assert_resumes_exactly, assert_same_batch
from tests.data import unlike_records

CHOSEN = np.random.default_rng(3).permutation(50)[:17]


class OneReader:
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        return {"id": np.int32(index)} if index % 7 else None


@pytest.mark.parametrize("threads", [1, 2])
def test_a_subset_gives_the_records_that_were_chosen(threads: int):
    records = unlike_records(50)
    some = {name: leaf[CHOSEN] for name, leaf in records.items()}
    for given in (CHOSEN, CHOSEN.tolist(), CHOSEN.astype(np.uint8)):
        settings: dict[str, Any] = {"batch_size": 4, "order": Shuffle(1), "epochs": 2}
        ours = DataLoader(Subset(records, given), workers=Threads(threads), **settings)
        for got, want in zip(ours, DataLoader(some, **settings), strict=True):
            assert_same_batch(got, want, "")
    assert_resumes_exactly(lambda: DataLoader(Subset(records, CHOSEN), **settings))
    assert_covers_each_record_once(ours, "id", some["id"])
    source = Subset(records, CHOSEN)
    assert source[-1]["id"] == records["id"][CHOSEN[-1]]
    again = pickle.loads(pickle.dumps(source))
    DataLoader(again, **settings).set_state(ours.get_state())


def test_records_that_are_filtered_out_stay_so():
    loader = DataLoader(Subset(OneReader(), [7, 3, 21, 5, 14]), batch_size=5)
    batch = next(loader.host_batches())
    assert batch["valid_mask"].tolist() == [False, True, False, True, False]
    assert batch["id"][batch["valid_mask"]].tolist() == [3, 5]


def test_another_subset_of_the_same_size_is_refused():
    records = unlike_records(50)
    state = DataLoader(Subset(records, CHOSEN), batch_size=4).get_state()
    other = CHOSEN.copy()
    other[4] = next(n for n in range(50) if n not in CHOSEN)  # not among those that are sampled
    with pytest.raises(ValueError, match=r"data\.subset: saved digest"):
        DataLoader(Subset(records, other), batch_size=4).set_state(state)


def test_an_error_names_the_record_of_the_source(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n\xff\nfour")
    loader = DataLoader(Subset(TextLinesSource(tmp_path / "a.txt"), [3, 2]), batch_size=2)
    with pytest.raises(ValueError, match=r"line 3 of .*a\.txt"):
        next(loader.host_batches())


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([], r"at least one, such as np\.flatnonzero\(mask\), got float64\[0\]"),
        ([[1, 2]], r"got int64\[1, 2\]"),
        ([True, False], r"got bool\[2\]"),
        ([0.5], r"got float64\[1\]"),
    ],
)
def test_what_is_not_a_list_of_numbers_is_refused(indices: Any, words: str):
    with pytest.raises(ValueError, match=words):
        Subset(unlike_records(5), indices)


@pytest.mark.parametrize("outside", [-1, 5])
def test_records_that_are_not_there_are_refused(outside: int):
    with pytest.raises(IndexError, match="of a source of 5"):
        Subset(unlike_records(5), [1, outside])


def test_a_source_that_changes_with_the_epoch_is_refused():
    with pytest.raises(ValueError, match="no fixed records to choose from"):
        Subset(grain.MapDataset.range(10).shuffle(1), [1, 2])


def test_a_subset_says_what_it_is():
    assert repr(Subset(ArraySource({"x": np.arange(5)}), [1])).startswith(
        "Subset(1 of ArraySource("
    )


def test_a_subset_of_another_subset_is_other_data():
    records = unlike_records(50)
    parts = [Subset(Subset(records, np.arange(n, n + 20)), np.arange(10)) for n in (0, 20)]
    first, second = (DataLoader(part, batch_size=2) for part in parts)
    with pytest.raises(ValueError, match=r"data\.subset: saved digest"):
        second.set_state(first.get_state(), allow_changes={"data.sample"})


def test_numbers_are_those_within_the_subset_and_refused_where_there_are_none():
    loader = DataLoader(Subset(unlike_records(50), CHOSEN), batch_size=17, with_index="record")
    batch = next(loader.host_batches())
    assert batch["record"].tolist() == list(range(17))
    packed = Packed([{"tokens": np.arange(3)}] * 4, np.full(4, 3), 6)
    with pytest.raises(ValueError, match="with_index has no meaning"):
        DataLoader(Subset(packed, [1]), batch_size=1, with_index="record")
