"""A record is the same one each time it is read; a source of which that is not true is noticed."""

import logging
from collections.abc import Callable
from typing import Any

import grain
import numpy as np
import pytest

from loader import DataLoader, Mapped, Mixture, Shuffle
from loader.testing import assert_reads_the_same_twice
from operators import PadTokens

Record = dict[str, Any]


def replace_a_leaf(record: Record) -> Record:
    record["x"] = record["x"] * 2
    return record


def write_into_an_array(record: Record) -> Record:
    record["x"] *= 2
    return record


def write_and_return_another(record: Record) -> Record:
    record["x"] *= 2
    return {"x": record["x"] + 1, "id": record["id"]}


WRITERS = [replace_a_leaf, write_into_an_array, write_and_return_another]


def records_in_memory(first: int = 1) -> list[Record]:
    return [{"x": np.full(3, n + 0.5), "id": n} for n in range(first, first + 10)]


class Writer:
    """A source of the user's own that writes into the records it keeps."""

    def __init__(self, records: list[Record]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        return replace_a_leaf(self._records[index])


class Counted:
    """Records with NaN, texts and a None in between, and how often they were read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Record | None:
        self.reads += 1
        if index == 0:
            return None
        return {"x": np.array([np.nan, index]), "text": f"text {index}", "id": index}


class Noisy:
    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Record:
        return {"x": self._rng.random(3), "id": index}


@pytest.mark.parametrize("write", WRITERS)
def test_a_map_dataset_that_writes_into_its_records_gives_no_batch(write: Callable[..., Record]):
    dataset = grain.MapDataset.source(records_in_memory()).map(write)
    what = r"leaf 'x' of record 0 of GrainSource\(MapMapDataset, 10 records\) is another one each"
    with pytest.raises(ValueError, match=rf"{what} time.*\*\*rec"):
        next(DataLoader(dataset, batch_size=4))
    with pytest.raises(ValueError, match=what):
        Mixture({"a": (grain.MapDataset.source(records_in_memory()).map(write), 1)})


def test_what_the_first_record_does_not_show_the_samples_of_the_fingerprint_do():
    records = records_in_memory()
    records[0]["x"] = np.zeros(3)
    loader = DataLoader(grain.MapDataset.source(records).map(replace_a_leaf), batch_size=4)
    loader.batch_spec()
    with pytest.raises(
        ValueError, match=r"leaf 'x' of record 9 of GrainSource.* is another one each time"
    ):
        loader.get_state()


def test_a_source_of_ones_own_that_writes_into_its_records_gives_no_batch():
    with pytest.raises(
        ValueError, match=r"of record 0 of Writer\(10 records\) is another one each time"
    ):
        next(DataLoader(Writer(records_in_memory()), batch_size=4))


def test_the_check_names_every_record_and_leaf_that_differs():
    records = records_in_memory()
    records[3]["x"] = np.zeros(3)
    dataset = grain.MapDataset.source(records).map(replace_a_leaf)
    with pytest.raises(AssertionError, match=r"9 of 10 records.*\nrecord 0: leaf 'x'\nrecord 1: "):
        assert_reads_the_same_twice(dataset)
    with pytest.raises(AssertionError, match=r"10 of 10 records") as raised:
        assert_reads_the_same_twice(Noisy())
    assert "'id'" not in str(raised.value)
    for stable in (Counted(), records, {"x": np.arange(5)}):
        assert_reads_the_same_twice(stable)
    assert_reads_the_same_twice(grain.MapDataset.range(5000).shuffle(1))


def test_random_numbers_by_index_are_the_same_each_time():
    dataset = grain.MapDataset.source(records_in_memory()).seed(3).shuffle().filter(_is_odd)
    dataset = dataset.random_map(lambda record, rng: {**record, "x": rng.random(3)})
    assert_reads_the_same_twice(dataset)
    loader = DataLoader(dataset, batch_size=4, epochs=2)
    loader.get_state()
    first = [batch["x"].tolist() for batch in loader.host_batches()]
    assert first == [batch["x"].tolist() for batch in loader.host_batches()]


def _is_odd(record: Record) -> bool:
    return record["id"] % 2 == 1


def test_nan_and_texts_and_gaps_are_no_difference_and_two_reads_are_all_it_costs():
    source = Counted()
    loader = DataLoader(source, batch_size=1, steps=1)
    (batch,) = loader.host_batches()
    assert not batch["valid_mask"].any()
    assert source.reads <= 1 + 3  # the batch; records 0 and 1 to see the spec, and 1 again
    loader.get_state()
    assert source.reads <= 4 + 16 + 1 + 3  # samples, one of them again, and the spec once more


def test_samples_of_different_lengths_are_no_difference():
    records = [{"tokens": np.arange(1 + n % 7)} for n in range(40)]
    loader = DataLoader(records, batch_size=4, operators=[PadTokens("tokens", 8)])
    next(loader)
    loader.get_state()


def test_a_source_that_draws_its_own_numbers_is_named_once_in_the_log(
    caplog: pytest.LogCaptureFixture,
):
    with caplog.at_level(logging.WARNING):
        loader = DataLoader(Noisy(), batch_size=4)
        for _ in loader:
            loader.get_state()
        list(loader.from_start())
    (line,) = [record.getMessage() for record in caplog.records]
    assert "leaf 'x' of record 0 of Noisy(10 records) is another one" in line
    assert "move that into an operator" in line


class Twice(grain.transforms.Map):
    def __init__(self, write: Callable[..., Record]) -> None:
        self.write = write

    def map(self, element: Record) -> Any:
        return self.write(element)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("ragged", [False, True])
def test_an_operator_may_write_into_its_records(write: Callable[..., Record], ragged: bool):
    def records() -> list[Record]:
        lengths = (1 + n % 3 if ragged else 3 for n in range(10))
        return [{"x": np.full(k, n + 0.5), "id": n} for n, k in enumerate(lengths)]

    kept, same = records(), records()
    for source in (kept, Mapped(kept, [Twice(dict)], cache_bytes=10**6)):
        operators = [Twice(write), PadTokens("x", 3)]
        loader = DataLoader(source, batch_size=4, order=Shuffle(1), epochs=2, operators=operators)
        first, second = (list(loader.host_batches()) for _ in range(2))
        for one, two in zip(first, second, strict=True):
            np.testing.assert_array_equal(one["x"], two["x"])
            want = (one["id"] + 0.5) * 2 + (write is write_and_return_another)
            valid = one["valid_mask"]
            np.testing.assert_array_equal(one["x"][valid, 0], want[valid])
    for record, other in zip(kept, same, strict=True):
        np.testing.assert_array_equal(record["x"], other["x"])
