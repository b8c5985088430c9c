"""Where sources say that their blocks begin."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import (
    ArrayRecordSource,
    BlockShuffle,
    DataLoader,
    Filtered,
    JSONLinesSource,
    Mapped,
    Mixture,
    RawArrays,
    Subset,
    TensorStoreSource,
    TextLinesSource,
)
from loader.sources.reading import blocks
from loader.testing import assert_covers_each_record_once
from operators import Cast
from tests.data import RECORD_SPEC, unlike_records, write_raw_records
from tests.sources.test_tensorstore_source import write_records


def record_files(folder: Path, counts: list[int]) -> ArrayRecordSource:
    return ArrayRecordSource(write_raw_records(folder, counts), RawArrays(RECORD_SPEC))


def text_files(folder: Path, counts: list[int], line: str) -> list[Path]:
    paths = [folder / f"{number}.txt" for number in range(len(counts))]
    for path, count in zip(paths, counts, strict=True):
        path.write_text("".join(line % number + "\n" for number in range(count)))
    return paths


def begins(source: Any) -> list[int] | None:
    found = blocks(source)
    return None if found is None else found.tolist()


def test_files_are_the_blocks_of_records_in_files(tmp_path: Path):
    assert begins(record_files(tmp_path, [4, 0, 9, 1])) == [0, 4, 13]
    paths = text_files(tmp_path, [0, 3, 5, 0, 1, 0], '{"id": %d}')
    assert begins(TextLinesSource(paths)) == [0, 3, 8]
    assert begins(JSONLinesSource(paths, ["id"])) == [0, 3, 8]


def test_chunks_are_the_blocks_of_an_array(tmp_path: Path):
    source = TensorStoreSource(write_records(tmp_path, 30)["id"])
    assert begins(source) == list(range(0, 30, source.block_size))


def test_a_source_of_the_same_records_has_the_same_blocks(tmp_path: Path):
    source = record_files(tmp_path, [4, 9, 1])
    assert begins(Mapped(source, [Cast("id", np.int64)])) == [0, 4, 13]
    assert begins(Mapped(unlike_records(9), [Cast("id", np.int64)])) is None


def test_of_some_records_in_order_the_blocks_are_what_is_left_of_them(tmp_path: Path):
    source = record_files(tmp_path, [4, 9, 1, 6])
    assert begins(Subset(source, [1, 2, 3, 8, 9, 14, 19])) == [0, 3, 5]
    assert begins(Subset(source, [8, 1, 2])) is None
    assert begins(Subset(unlike_records(9), [1, 2])) is None
    assert begins(Filtered(source, lambda record: bool(record["id"] % 5 != 2))) == [0, 3, 10, 11]


def test_other_sources_have_none(tmp_path: Path):
    source = record_files(tmp_path, [4, 9])
    assert begins(Mixture({"a": (source, 1)})) is None
    assert begins([{"id": 1}, {"id": 2}]) is None


@pytest.mark.parametrize("window", [1, 3])
def test_an_epoch_opens_each_file_in_one_window(tmp_path: Path, window: int):
    source = record_files(tmp_path, [4, 9, 1, 6, 2, 7, 7])
    loader = DataLoader(source, batch_size=4, order=BlockShuffle(2, window=window), epochs=2)
    assert_covers_each_record_once(loader, "id")
    starts = blocks(source)
    assert starts is not None
    file = np.searchsorted(starts, loader.pipeline.records(0, 36), side="right") - 1
    last = {one: place for place, one in enumerate(file.tolist())}
    for place in range(36):
        under_way = {one for one in file[: place + 1].tolist() if last[one] >= place}
        assert len(under_way) <= window
