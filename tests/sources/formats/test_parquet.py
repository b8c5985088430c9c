"""Rows of Parquet files as records."""

import datetime
import decimal
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loader import BlockShuffle, DataLoader, Mask, ParquetSource, Shuffle
from loader.sources.reading import blocks
from loader.testing import assert_covers_each_record_once
from tests.object_stores.fake_store import FakeStore
from tests.source_checks import assert_is_a_source_of
from tests.sources.formats.checks import (
    assert_reads_from_a_store,
    assert_same_rows,
    assert_the_spec_is_of_the_rows,
    damaged,
    keys_of,
    outcome,
    rows_of,
    seeds,
)

COUNT = 23
NUMBERS = {
    "id": np.arange(COUNT),
    "half": np.arange(COUNT, dtype=np.float16) / 4,
    "small": np.arange(COUNT, dtype=np.uint8) * 9,
    "odd": np.arange(COUNT) % 2 == 1,
    "grid": np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 2, 3),
}
TEXTS = [f"naïve {n} " + "☕" * n for n in range(COUNT)]
DAYS = [datetime.datetime(2020, 1, 1 + n, n) for n in range(COUNT)]
LISTS = [list(range(n, n + n % 4)) for n in range(COUNT)]


def grid() -> Any:
    inner = pa.FixedSizeListArray.from_arrays(pa.array(NUMBERS["grid"].ravel()), 3)
    return pa.FixedSizeListArray.from_arrays(inner, 2)


def table(**more: Any) -> Any:
    columns = {name: pa.array(NUMBERS[name]) for name in NUMBERS if name != "grid"}
    return pa.table({**columns, "grid": grid(), "text": TEXTS, **more})


def write(path: Path, data: Any = None, **how: Any) -> Path:
    pq.write_table(table() if data is None else data, path, **{"row_group_size": 5, **how})
    return path


def in_files(folder: Path) -> list[Path]:
    data = table()
    return [write(folder / "a.parquet", data[:12]), write(folder / "b.parquet", data[12:])]


def test_rows_of_parquet_files_are_a_source(tmp_path: Path):
    in_files(tmp_path)
    expected = {**NUMBERS, "text": np.array(TEXTS, object)}
    source = ParquetSource(tmp_path / "*.parquet")
    assert_is_a_source_of(source, expected, "id")
    assert_is_a_source_of(ParquetSource(tmp_path / "*.parquet", most_bytes=0), expected, "id")
    assert source.locate(18) == f"row 1 of row group 1 of {tmp_path / 'b.parquet'}"
    found = blocks(source)
    assert found is not None
    assert found.tolist() == [0, 5, 10, 12, 17, 22]
    assert_covers_each_record_once(
        DataLoader(source, batch_size=4, order=BlockShuffle(0, window=2)), "id", NUMBERS["id"]
    )


def test_every_kind_of_column_is_what_pyarrow_gives(tmp_path: Path):
    """Read by `to_pylist`, field by field, and then as the page says."""
    more: dict[str, Any] = {
        "bytes": [bytes([n]) * n for n in range(COUNT)],
        "money": pa.array([decimal.Decimal(n) / 4 for n in range(COUNT)], pa.decimal128(9, 2)),
        "time": pa.array(DAYS, pa.timestamp("us")),
        "zone": pa.array(DAYS, pa.timestamp("ms", tz="Europe/Rome")),
        "day": pa.array([day.date() for day in DAYS]),
        "clock": pa.array([day.time() for day in DAYS], pa.time32("s")),
        "kind": pa.array([str(n % 3) for n in range(COUNT)]).dictionary_encode(),
        "tokens": pa.array(LISTS, pa.list_(pa.int32())),
        "words": [["a" * k for k in range(n % 3)] for n in range(COUNT)],
        "pairs": [[[n, k] for k in range(n % 3)] for n in range(COUNT)],
        "meta": [{"n": n, "deep": {"name": str(n)}} for n in range(COUNT)],
        "image": [{"bytes": bytes([n]), "path": None} for n in range(COUNT)],
        "view": pa.array(TEXTS, pa.string_view()),
    }
    source = ParquetSource(write(tmp_path / "a.parquet", table(**more)))
    read = pq.read_table(tmp_path / "a.parquet")
    rows, plain = rows_of(source), read.to_pylist()
    for n, want in enumerate(plain):
        assert rows["text"][n] == rows["view"][n] == want["text"]
        assert rows["bytes"][n] == want["bytes"]
        assert rows["money"][n] == float(want["money"])
        assert rows["kind"][n] == want["kind"]
        assert rows["tokens"][n].tolist() == want["tokens"]
        assert rows["words"][n].tolist() == want["words"]
        assert rows["pairs"][n].tolist() == want["pairs"]
        assert rows["meta"]["n"][n] == want["meta"]["n"]
        assert rows["meta"]["deep"]["name"][n] == want["meta"]["deep"]["name"]
        assert rows["image"][n] == want["image"]["bytes"]
    for name, width in {"time": 64, "zone": 64, "day": 32, "clock": 32}.items():
        kind = pa.int32() if width == 32 else pa.int64()
        np.testing.assert_array_equal(rows[name], read[name].cast(kind).to_numpy())
        assert rows[name].dtype == f"int{width}"
    assert rows["tokens"][3].dtype == np.int32
    assert_the_spec_is_of_the_rows(source)
    some = ParquetSource(tmp_path / "a.parquet", columns=["meta", "tokens"])
    assert_same_rows(rows_of(some), {"meta": rows["meta"], "tokens": rows["tokens"]})


def test_nothing_in_a_column_is_refused_or_filled_as_asked(tmp_path: Path):
    gaps: dict[str, Any] = {
        "age": pa.array([None if n == 7 else n for n in range(COUNT)], pa.int16()),
        "name": [None if n == 7 else f"n{n}" for n in range(COUNT)],
        "list": [None if n == 7 else [n, None][: 1 + n % 2] for n in range(COUNT)],
        "pair": pa.array(
            [None if n == 7 else [n, n] for n in range(COUNT)], pa.list_(pa.int64(), 2)
        ),
        "meta": [None if n == 7 else {"x": float(n)} for n in range(COUNT)],
    }
    path = write(tmp_path / "a.parquet", table(**gaps))
    where = rf"record 7 \(row 2 of row group 1 of {re.escape(str(path))}\) has nothing \(null\) in "
    for name in gaps:
        leaf = "meta/x" if name == "meta" else name
        source = ParquetSource(path, columns=["id", name])
        good = [n for n in range(COUNT) if n != 7 and not (name == "list" and n % 2)]
        source.gather(np.array(good))  # the others are read
        with pytest.raises(ValueError, match=where + rf"'{leaf}': leave .* nulls=\{{'{leaf}'"):
            source.gather(np.array([6, 7]))
        if name != "list":
            masked = DataLoader(source, batch_size=COUNT, on_error=Mask(log=None))
            (batch,) = masked.host_batches()
            assert np.flatnonzero(~batch["valid_mask"]).tolist() == [7]
    fills = {"age": -1, "name": "", "list": 0, "pair": 5, "meta/x": np.nan}
    rows = rows_of(ParquetSource(path, columns=list(gaps), nulls=fills))
    assert (rows["age"][7], rows["name"][7], rows["list"][7].tolist()) == (-1, "", [])
    assert (rows["pair"][7].tolist(), rows["list"][9].tolist()) == ([5, 5], [9, 0])
    assert np.isnan(rows["meta"]["x"][7])
    assert np.delete(rows["age"], 7).tolist() == [n for n in range(COUNT) if n != 7]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"nulls": {"ages": 0}}, "nulls names 'ages', and there is no such leaf: there are"),
        ({"nulls": {"small": 300}}, "nulls gives 'small' the value 300: .* a number that is a u"),
        ({"nulls": {"small": 0.5}}, "nulls gives 'small' the value 0.5"),
        ({"nulls": {"text": 0}}, "nulls gives 'text' the value 0: it must be a text or bytes"),
        ({"columns": ["ids"]}, "there is no column 'ids': there are id, half"),
        ({"columns": []}, "columns must be different names"),
        ({"columns": ["id", "id"]}, "columns must be different names"),
        ({"most_bytes": -1}, "most_bytes must be an int of at least 0"),
    ],
)
def test_what_is_asked_for_must_be_there(how: Any, message: str, tmp_path: Path):
    path = write(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=message):
        ParquetSource(path, **how)


@pytest.mark.parametrize(
    "column",
    [
        [{"a": [{"b": n}]} for n in range(COUNT)],
        pa.array([[("k", n)] for n in range(COUNT)], pa.map_(pa.string(), pa.int64())),
        pa.array([None] * COUNT),
    ],
    ids=["structs in lists", "map", "nothing at all"],
)
def test_a_column_that_no_leaf_can_hold_is_refused_with_the_remedy(column: Any, tmp_path: Path):
    path = write(tmp_path / "a.parquet", table(odd_one=column))
    with pytest.raises(ValueError, match=r"a\.parquet: column 'odd_one.* leave it out, by columns"):
        ParquetSource(path)
    ParquetSource(path, columns=["id"])


def test_files_with_other_columns_are_refused(tmp_path: Path):
    write(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet", table().set_column(0, "id", pa.array(range(COUNT), pa.int32())))
    message = r"b\.parquet has int32\[\] as 'id', and .*a\.parquet has int64\[\]: all files need"
    with pytest.raises(ValueError, match=message):
        ParquetSource(tmp_path / "*.parquet")
    ParquetSource(tmp_path / "*.parquet", columns=["text"])


def test_files_that_are_not_there_or_not_whole_are_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="no file matches"):
        ParquetSource(tmp_path / "*.parquet")
    content = write(tmp_path / "a.parquet").read_bytes()
    for cut in (0, 3, len(content) // 2, len(content) - 1):
        (tmp_path / "a.parquet").write_bytes(content[:cut])
        with pytest.raises(ValueError, match=r"a\.parquet is not a whole Parquet file"):
            ParquetSource(tmp_path / "a.parquet")
    write(tmp_path / "a.parquet", table()[:0])
    with pytest.raises(ValueError, match=r"the source is empty: no row in .*a\.parquet"):
        ParquetSource(tmp_path / "a.parquet")


def test_a_page_with_a_wrong_checksum_is_refused_and_the_others_are_read(tmp_path: Path):
    path = write(tmp_path / "a.parquet", write_page_checksum=True, compression="none")
    content = bytearray(path.read_bytes())
    content[content.index("☕".encode() * 13)] ^= 1  # in a text of record 13
    path.write_bytes(content)
    source = ParquetSource(path)
    message = r"cannot read row group 2 of .*a\.parquet, records 10 to 14: .* write or copy"
    with pytest.raises(ValueError, match=message):
        source.gather(np.array([3, 12]))
    assert source.gather(np.array([3, 20]))["text"].tolist() == [TEXTS[3], TEXTS[20]]
    (batch,) = DataLoader(source, batch_size=COUNT, on_error=Mask(log=None)).host_batches()
    assert np.flatnonzero(~batch["valid_mask"]).tolist() == [10, 11, 12, 13, 14]


def test_a_shuffle_over_groups_that_do_not_fit_is_warned_of_once(tmp_path: Path):
    data = pa.table({"id": np.arange(4000), "x": np.arange(4000.0)})
    path = write(tmp_path / "a.parquet", data, row_group_size=200)
    message = r"decoded .* rows .* for \d+ .*most_bytes=4000\. Use order=BlockShuffle\(seed\)"
    shuffled = DataLoader(
        ParquetSource(path, most_bytes=4000), batch_size=8, order=Shuffle(0), steps=80, prefetch=0
    )
    with pytest.warns(UserWarning, match=message) as told:
        list(shuffled.host_batches())
    assert len(told) == 1
    for source in (ParquetSource(path, most_bytes=4000), ParquetSource(path)):
        order = BlockShuffle(0, window=1)
        list(DataLoader(source, batch_size=40, order=order, prefetch=0).host_batches())
    list(DataLoader(source, batch_size=80, order=Shuffle(0), prefetch=0).host_batches())


def test_what_is_decoded_stays_within_most_bytes(tmp_path: Path):
    data = pa.table({"x": np.arange(2_000_000)})
    path = write(tmp_path / "a.parquet", data, row_group_size=100_000)
    source, held = ParquetSource(path, most_bytes=2_000_000), pa.total_allocated_bytes()
    for first in range(0, 2_000_000, 50_000):
        source.gather(np.arange(first, first + 50_000))
        # And one that may yet be freed.
        assert pa.total_allocated_bytes() - held <= 2_000_000 + 800_000 + 200_000
    assert source._decoded.rows == 2_000_000  # each group once


def test_files_in_a_store_are_the_same_source(store: FakeStore, tmp_path: Path):
    assert_reads_from_a_store(store, in_files(tmp_path), ParquetSource)


def test_a_footer_longer_than_most_is_read_whole(store: FakeStore, tmp_path: Path):
    data = pa.table({f"column {n}": [n, n + 1] for n in range(900)})
    path = write(tmp_path / "a.parquet", data)
    assert int.from_bytes(path.read_bytes()[-8:-4], "little") > 2**16
    store.put("bucket", "a.parquet", path.read_bytes())
    source = ParquetSource("gs://bucket/a.parquet", columns=["column 7", "column 800"])
    assert_same_rows(
        rows_of(source), {"column 7": np.array([7, 8]), "column 800": np.array([800, 801])}
    )


def test_a_damaged_file_gives_right_records_or_an_error(full: bool, tmp_path: Path):
    path = write(tmp_path / "a.parquet", write_page_checksum=True)
    content, right = path.read_bytes(), keys_of(ParquetSource(path))
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") :]
    found = set[str]()
    for seed in seeds(full):
        changed = damaged(content, seed)
        result = outcome(path, changed, ParquetSource, right)
        if result != "wrong" or changed.endswith(footer):  # the footer has no checksum
            found.add(result)
    assert found == {"right", "masked", "refused"}
