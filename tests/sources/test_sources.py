import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from loader import (
    ArrayRecordSource,
    ArraySource,
    BlockShuffle,
    DataLoader,
    GrainSource,
    Msgpack,
    RawArrays,
    Shuffle,
)
from loader.testing import assert_covers_each_record_once, assert_resumes_exactly
from tests.data import RECORD_SPEC, unlike_records, write_array_record, write_raw_records

COUNT = 23


class OneByOne:
    """The least a source can be."""

    def __init__(self, count: int = COUNT) -> None:
        self.records = unlike_records(count)
        self.calls: list[str] = []

    def __len__(self) -> int:
        return len(self.records["id"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        assert type(index) is int
        self.calls.append("__getitem__")
        return {key: leaf[index] for key, leaf in self.records.items()}


class ByList(OneByOne):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert all(type(index) is int for index in indices)
        self.calls.append("__getitems__")
        return [{key: leaf[index] for key, leaf in self.records.items()} for index in indices]


class Gathering(ByList):
    def gather(self, indices: np.ndarray) -> dict[str, Any]:
        self.calls.append("gather")
        return {key: leaf[indices] for key, leaf in self.records.items()}


def memory_maps(folder: Path) -> dict[str, np.ndarray]:
    maps = {}
    for key, leaf in unlike_records(COUNT).items():
        np.save(folder / f"{key}.npy", leaf)
        maps[key] = np.load(folder / f"{key}.npy", mmap_mode="r")
    return maps


def msgpack_files(folder: Path) -> list[str]:
    records = unlike_records(COUNT)
    blobs = [Msgpack().encode({k: v[i] for k, v in records.items()}) for i in range(COUNT)]
    return [write_array_record(folder / "a.array_record", blobs)]


SOURCES = {
    "a dict of arrays": lambda folder: unlike_records(COUNT),
    "ArraySource": lambda folder: ArraySource(unlike_records(COUNT)),
    "memory maps": lambda folder: ArraySource(memory_maps(folder)),
    "ArrayRecord, raw": lambda folder: ArrayRecordSource(
        write_raw_records(folder, [9, 0, 14]), RawArrays(RECORD_SPEC)
    ),
    "ArrayRecord, msgpack": lambda folder: ArrayRecordSource(msgpack_files(folder), Msgpack()),
    "one by one": lambda folder: OneByOne(),
    "by list": lambda folder: ByList(),
    "gathering": lambda folder: Gathering(),
    "MapDataset": lambda folder: grain.MapDataset.source(OneByOne()),
    "a shuffled MapDataset": lambda folder: grain.MapDataset.source(OneByOne()).shuffle(3),
    "GrainSource": lambda folder: GrainSource(ByList()),
    "a list of records": lambda folder: [OneByOne()[i] for i in range(COUNT)],
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_same_batches_and_resumes(name: str, tmp_path: Path):
    source = SOURCES[name](tmp_path)

    def make() -> DataLoader:
        return DataLoader(source, batch_size=4, order=Shuffle(1), epochs=2)

    assert_resumes_exactly(make)
    assert_covers_each_record_once(make(), "id")
    expected = DataLoader(unlike_records(COUNT), batch_size=4, order=Shuffle(1), epochs=2)
    assert jax.tree.map(str, make().batch_spec()) == jax.tree.map(str, expected.batch_spec())
    if name != "a shuffled MapDataset":
        for got, want in zip(make().host_batches(), expected.host_batches(), strict=True):
            assert jax.tree.all(jax.tree.map(np.array_equal, got, want))


@pytest.mark.parametrize(
    ("source", "expected"),
    [(OneByOne(), "__getitem__"), (ByList(), "__getitems__"), (Gathering(), "gather")],
)
def test_the_best_way_to_read_is_taken(source: OneByOne, expected: str):
    loader = DataLoader(source, batch_size=4, prefetch=0)
    loader.batch_spec()
    source.calls.clear()
    next(loader.host_batches())
    assert set(source.calls) == {expected}
    assert len(source.calls) == (4 if expected == "__getitem__" else 1)


def test_a_known_spec_needs_no_reading():
    class Unreadable:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("read")

        def record_spec(self) -> Any:
            return RECORD_SPEC

    def double(rows: dict[str, Any]) -> dict[str, Any]:
        return {**rows, "twice": rows["x"] * 2}

    loader = DataLoader(Unreadable(), batch_size=4, operators=[double])
    assert loader.batch_spec()["twice"].shape == (4, 3, 2)


def test_any_tree_of_arrays_is_a_source():
    records = unlike_records(7)
    nested = {"a": {"id": records["id"]}, "b": [records["x"], records["x"] + 1]}
    batch = next(DataLoader(nested, batch_size=3).host_batches())
    np.testing.assert_array_equal(batch["a"]["id"], [0, 1, 2])
    np.testing.assert_array_equal(batch["b"][1], records["x"][:3] + 1)
    pair = next(DataLoader((records["id"], records["x"]), batch_size=3).host_batches())
    np.testing.assert_array_equal(pair["data"][0], [0, 1, 2])
    bare = next(DataLoader(records["id"], batch_size=3).host_batches())
    np.testing.assert_array_equal(bare["data"], [0, 1, 2])
    numbers = next(DataLoader(range(9), batch_size=3).host_batches())
    np.testing.assert_array_equal(numbers["data"], [0, 1, 2])


def test_a_map_dataset_is_asked_for_another_epoch_each_time():
    dataset = (
        grain.MapDataset.range(50)
        .seed(3)
        .random_map(lambda record, rng: {"id": np.int64(record), "noise": rng.random()})
    )
    loader = DataLoader(dataset, batch_size=50, epochs=2)
    first, second = loader.host_batches()
    np.testing.assert_array_equal(first["id"], second["id"])
    assert not np.any(first["noise"] == second["noise"])
    np.testing.assert_array_equal(second["noise"], [dataset[50 + i]["noise"] for i in range(50)])  # pyright: ignore[reportOptionalSubscript]


def test_a_grain_filter_masks_rows_and_keeps_shapes():
    dataset = grain.MapDataset.source(OneByOne()).filter(lambda record: record["id"] % 3 == 1)
    loader = DataLoader(dataset, batch_size=4)
    ids = []
    for batch in loader.host_batches():
        assert batch["x"].shape == (4, 3, 2)
        assert not batch["x"][~batch["valid_mask"]].any()
        ids += batch["id"][batch["valid_mask"]].tolist()
    assert ids == list(range(1, COUNT, 3))
    assert loader.get_operation_stats() == {"applied_count": 8, "skipped_count": 16}


def test_a_batch_that_is_filtered_out_whole_is_all_mask():
    dataset = grain.MapDataset.source(OneByOne()).filter(lambda record: record["id"] < 4)
    batches = list(DataLoader(dataset, batch_size=4).host_batches())
    assert [batch["valid_mask"].sum() for batch in batches] == [4, 0, 0, 0, 0, 0]


def test_what_is_no_source_of_records_is_refused_with_the_remedy():
    dataset = grain.MapDataset.range(8)
    with pytest.raises(ValueError, match=r"already batched.*batch_size="):
        DataLoader(dataset.batch(2), batch_size=2)
    with pytest.raises(ValueError, match="epochs=None"):
        DataLoader(dataset.repeat(), batch_size=2)
    with pytest.raises(ValueError, match=r"grain\.MapDataset it was made from"):
        DataLoader(dataset.to_iter_dataset(), batch_size=2)
    with pytest.raises(TypeError, match="__len__ and __getitem__"):
        DataLoader(iter([1, 2]), batch_size=2)


def test_paths_may_be_a_glob(tmp_path: Path):
    write_raw_records(tmp_path, [3, 4])
    source = ArrayRecordSource(tmp_path / "part-*.array_record", RawArrays(RECORD_SPEC))
    assert len(source) == 7
    np.testing.assert_array_equal(source[5]["x"], unlike_records(7)["x"][5])


def test_without_a_parser_a_record_is_its_bytes(tmp_path: Path):
    path = write_array_record(tmp_path / "a.array_record", [b"one", b"three"])
    batch = next(DataLoader(ArrayRecordSource(path), batch_size=3).host_batches())
    assert batch["data"].tolist() == [b"one", b"three", None]


def test_files_that_are_missing_or_cut_off_are_named(tmp_path: Path):
    paths = write_raw_records(tmp_path, [3, 4])
    with pytest.raises(FileNotFoundError, match=r"no ArrayRecord file '.*gone'"):
        ArrayRecordSource([paths[0], str(tmp_path / "gone")])
    with pytest.raises(FileNotFoundError, match="no file matches"):
        ArrayRecordSource(tmp_path / "gone-*")
    with pytest.raises(ValueError, match="no paths"):
        ArrayRecordSource([])
    whole = Path(paths[1]).read_bytes()
    for size in (len(whole) - 10, len(whole) // 2, 0):
        Path(paths[1]).write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"part-1\.array_record is not a whole"):
            ArrayRecordSource(paths)


def test_a_parser_that_fails_is_named_with_file_and_record(tmp_path: Path):
    paths = write_raw_records(tmp_path, [3, 4])

    def picky(data: bytes) -> Any:
        record = RawArrays(RECORD_SPEC)(data)
        if record["id"] == 5:
            raise KeyError("colour")
        return record

    loader = DataLoader(ArrayRecordSource(paths, picky), batch_size=7)
    with pytest.raises(ValueError, match=r"parse record 5 \(record 2 of .*part-1.*colour"):
        next(loader)
    wrong = {"id": jax.ShapeDtypeStruct((2,), np.dtype(np.int64))}
    source = ArrayRecordSource(paths, RawArrays(wrong))
    with pytest.raises(ValueError, match=r"record 4 \(record 1 of .*28 bytes.*asks for 16"):
        source.gather(np.array([4]))


def test_raw_arrays_are_written_and_read_alike_and_may_be_worked_on_in_place():
    records = unlike_records(5)
    parser = RawArrays(RECORD_SPEC)
    blobs = [parser.encode({k: v[i] for k, v in records.items()}) for i in range(5)]
    rows = parser.many(blobs)
    rows["x"] += 1
    np.testing.assert_array_equal(rows["x"], records["x"] + 1)
    single = RawArrays({"x": RECORD_SPEC["x"]})
    rows = single.many([single.encode({"x": records["x"][0]})])
    rows["x"] += 1
    with pytest.raises(ValueError, match=r"'x' is \(2,\) where"):
        parser.encode({"id": 1, "x": np.zeros(2)})


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "empty tree"),
        ({"a": np.zeros((0, 2))}, "the source is empty"),
        ({"a": np.zeros(3), "b": np.zeros(4)}, r"different numbers of rows: \{'a': 3, 'b': 4\}"),
        ({"a": np.zeros(3), "b": 5}, "leaf 'b' has no leading axis"),
    ],
)
def test_arrays_that_make_no_records_are_refused(arrays: Any, message: str):
    with pytest.raises(ValueError, match=message):
        ArraySource(arrays)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [{"a": np.zeros(2)}, {"a": np.zeros(3)}],
            r"leaf 'a' of record 1 is float64\[3\], of record 0",
        ),
        ([{"a": 1}, {"a": 1.5}], r"leaf 'a' of record 1 is float64\[\]"),
        ([{"a": 1}, {"b": 1}], "record 1 is built as"),
    ],
)
def test_records_that_differ_are_named(records: list[Any], message: str):
    with pytest.raises(ValueError, match=message):
        next(DataLoader(records, batch_size=2).host_batches())


def test_a_record_of_another_dtype_is_named_among_records_of_different_lengths():
    lengths = [{"a": np.zeros(2)}, {"a": np.zeros(3)}, {"a": np.zeros(2, np.float32)}]
    loader = DataLoader(lengths, batch_size=3, operators=[lambda rows: rows])
    with pytest.raises(ValueError, match=r"leaf 'a' of record 2 is float32\[2\], of record 0"):
        next(loader.host_batches())


def test_an_empty_source_is_refused():
    with pytest.raises(ValueError, match="the source is empty"):
        DataLoader([], batch_size=2)


def test_an_order_that_leaves_the_source_is_refused():
    class Beyond:
        def records(self, positions: np.ndarray, num_records: int) -> np.ndarray:
            return positions % num_records + 1

    with pytest.raises(ValueError, match=r"records from 1 to 23 of a source with 23"):
        next(DataLoader(unlike_records(COUNT), batch_size=2, order=Beyond()).host_batches())


def test_block_shuffle_reads_whole_blocks_of_files(tmp_path: Path):
    source = ArrayRecordSource(write_raw_records(tmp_path, [10, 10]), RawArrays(RECORD_SPEC))
    loader = DataLoader(source, batch_size=6, order=BlockShuffle(1, block_size=5, window=2))
    assert_covers_each_record_once(loader, "id")


def test_a_source_that_gives_other_rows_than_asked_for_is_named():
    class Short(Gathering):
        def gather(self, indices: np.ndarray) -> dict[str, Any]:
            return super().gather(indices[:1])

    class ShortList(ByList):
        def __getitems__(self, indices: list[int]) -> Any:
            return super().__getitems__(indices[:1])

    class Columns(ByList):
        def __getitems__(self, indices: list[int]) -> Any:
            return {"id": indices}

    for source, message in (
        (Short(), r"Short\.gather was asked for 3 rows and gave a leaf of shape \(1,\)"),
        (ShortList(), r"ShortList\.__getitems__ was asked for 3 records"),
        (Columns(), r"Columns\.__getitems__ .* gave a dict"),
    ):
        loader = DataLoader(source, batch_size=3)
        loader.pipeline.specs.row = RECORD_SPEC
        with pytest.raises(ValueError, match=message):
            next(loader.host_batches())


def test_a_list_of_numbers_is_an_array():
    rows = [{"ids": [n, n + 1, n + 2], "grid": [[n, 1.5]], "t": "x"} for n in range(4)]
    batch = next(DataLoader(rows, batch_size=2).host_batches())
    assert (batch["ids"].shape, batch["grid"].shape) == ((2, 3), (2, 1, 2))
    with pytest.raises(ValueError, match=r"leaf 'ids' of record 1 is int64\[2\]"):
        next(DataLoader([{"ids": [1]}, {"ids": [1, 2]}], batch_size=2).host_batches())
    with pytest.raises(ValueError, match="a record needs at least one leaf"):
        next(DataLoader([{}, {}], batch_size=2).host_batches())


def test_a_file_that_breaks_after_opening_is_still_named_right(tmp_path: Path):
    paths = write_raw_records(tmp_path, [10, 20, 10])

    def picky(data: bytes) -> Any:
        record = RawArrays(RECORD_SPEC)(data)
        if record["id"] == 35:
            raise KeyError("colour")
        return record

    source = ArrayRecordSource(paths, picky)
    source.gather(np.array([15, 34]))
    Path(paths[1]).unlink()
    with pytest.raises(ValueError, match=r"record 35 \(record 5 of .*part-2"):
        source.gather(np.array([34, 35]))
    with pytest.raises(IndexError, match="records 34 to 40 of a source of 40"):
        source.gather(np.array([34, 40]))


def test_a_file_of_another_dtype_is_named_with_the_record(tmp_path: Path):
    for name, dtype in (("a", np.float32), ("b", np.float64)):
        blobs = [Msgpack().encode({"x": np.arange(3, dtype=dtype)}) for _ in range(4)]
        write_array_record(tmp_path / f"{name}.array_record", blobs)
    source = ArrayRecordSource(tmp_path / "*.array_record", Msgpack())
    whole_batch = (
        r"record 4 \(record 0 of .*b\.array_record\): leaf 'x' is float64\[3\] where.*anew"
    )
    part_of_it = (
        r"leaf 'x' of record 4 \(record 0 of .*b\.array_record\) is float64\[3\].*cast them"
    )
    for batch_size, message in ((4, whole_batch), (3, part_of_it)):
        batches = DataLoader(source, batch_size=batch_size).host_batches()
        next(batches)
        with pytest.raises(ValueError, match=message) as caught:
            next(batches)
        assert re.search(message, str(caught.value))  # in the message, not in a note


def test_a_file_may_have_brackets_in_its_name(tmp_path: Path):
    path = write_array_record(tmp_path / "d[1].array_record", [b"one"])
    assert len(ArrayRecordSource(path)) == 1


def test_raw_arrays_refuse_to_write_what_would_come_back_otherwise():
    parser = RawArrays({"a": jax.ShapeDtypeStruct((), np.dtype(np.int8))})
    for value in (300, 1.7):
        with pytest.raises(ValueError, match="leaf 'a' holds values that do not fit int8"):
            parser.encode({"a": value})
    with pytest.raises(ValueError, match="the record is built as"):
        parser.encode({"b": 1})


@pytest.mark.parametrize("dtype", [jnp.bfloat16, "datetime64[s]", ">f4", "f8", "c8", "?"])
def test_data_of_any_dtype_can_be_saved(dtype: Any):
    data = {"x": np.arange(5).astype(dtype)}
    state = DataLoader(data, batch_size=3).get_state()
    DataLoader(data, batch_size=3).set_state(state)
    changed = {"x": np.arange(5)[::-1].astype(dtype)}
    with pytest.raises(ValueError, match=r"data\.sample"):
        DataLoader(changed, batch_size=3).set_state(state)


def test_a_path_is_no_source():
    with pytest.raises(TypeError, match=r"is a path or a text.*ArrayRecordSource\(path"):
        DataLoader("data/*.array_record", batch_size=4)
    with pytest.raises(TypeError, match="__len__ and __getitem__"):
        DataLoader(object(), batch_size=4)
    with pytest.raises(ValueError, match=r"leaf 'k' holds PRNG keys.*key_data"):
        DataLoader({"k": jax.random.split(jax.random.key(0), 5)}, batch_size=3)


def test_views_of_a_sources_memory_are_copied():
    class Views(Gathering):
        def gather(self, indices: np.ndarray) -> dict[str, Any]:
            first = int(indices[0])
            return {key: leaf[first : first + len(indices)] for key, leaf in self.records.items()}

    def double(rows: dict[str, Any]) -> dict[str, Any]:
        rows["x"] *= 2
        return rows

    loader = DataLoader(Views(), batch_size=4, epochs=3, operators=[double])
    for step, batch in enumerate(loader.host_batches()):
        first = step % 6 * 4
        expected = unlike_records(COUNT)["x"][first : first + 4] * 2
        np.testing.assert_array_equal(batch["x"][batch["valid_mask"]], expected)


# Records of several files


def test_records_of_many_files_come_in_the_order_asked_for(tmp_path: Path):
    counts = [3, 1, 7, 2, *([1] * 30), 5]  # more files than are read at once
    source = ArrayRecordSource(write_raw_records(tmp_path, counts), RawArrays(RECORD_SPEC))
    expected = unlike_records(sum(counts))
    for seed in range(20):
        indices = np.random.default_rng(seed).integers(0, sum(counts), 1 + 4 * seed)
        rows = source.gather(indices)
        for key, leaf in expected.items():
            np.testing.assert_array_equal(rows[key], leaf[indices])
    assert source.gather(np.array([], int))["x"].shape == (0, 3, 2)
    again = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(again.gather(np.array([40, 0, 11]))["id"], [40, 0, 11])


def test_a_file_without_records_is_passed_over(tmp_path: Path):
    source = ArrayRecordSource(write_raw_records(tmp_path, [0, 3, 0, 2, 0]), RawArrays(RECORD_SPEC))
    assert len(source) == 5
    assert source.gather(np.array([4, 2, 3, 0]))["id"].tolist() == [4, 2, 3, 0]
    assert "record 0 of" in source.locate(3)
    assert "part-3" in source.locate(3)
    DataLoader(source, batch_size=2).get_state()


def test_a_file_that_becomes_unreadable_is_named_with_its_record(tmp_path: Path):
    paths = write_raw_records(tmp_path, [3, 4, 2])
    source = ArrayRecordSource(paths, RawArrays(RECORD_SPEC))
    Path(paths[1]).write_bytes(b"\0" * Path(paths[1]).stat().st_size)
    with pytest.raises(ValueError, match=r"read record 4 \(record 1 of .*part-1"):
        source.gather(np.array([8, 4, 0]))
    assert source.gather(np.array([8, 0]))["id"].tolist() == [8, 0]


@pytest.mark.parametrize("lengths", [[3, 4], [3, 6]])
@pytest.mark.parametrize("sent", [False, True])
def test_a_file_replaced_before_it_is_read_is_refused(
    sent: bool, lengths: list[int], tmp_path: Path
):
    source: Any = ArrayRecordSource(write_raw_records(tmp_path, [3, 4]), RawArrays(RECORD_SPEC))
    source = pickle.loads(pickle.dumps(source)) if sent else source
    (tmp_path / "other").mkdir()
    for path in map(Path, write_raw_records(tmp_path / "other", lengths)):
        path.replace(tmp_path / path.name)
    if sent and lengths == [3, 4]:  # on another machine files have other times
        assert source.gather(np.array([5]))["id"].tolist() == [5]
        return
    with pytest.raises(ValueError, match=r"part-1.* is not the file of 4 records.*source again"):
        source.gather(np.array([5]))


def test_records_that_are_stored_in_groups_are_read_and_warned_of(tmp_path: Path):
    path = str(tmp_path / "grouped.array_record")
    writer = ArrayRecordWriter(path, "group_size:4")
    for number in range(10):
        writer.write(b"record %d" % number)
    writer.close()
    with pytest.warns(UserWarning, match=r"grouped.*group_size:4.*with group_size:1") as warned:
        source = ArrayRecordSource(path)
    assert warned[0].filename == __file__
    assert source.gather(np.array([7, 2])).tolist() == [b"record 7", b"record 2"]


AFTER_A_FORK = """
import os, signal, sys, time
import numpy as np
from loader import ArrayRecordSource
source = ArrayRecordSource(sys.argv[1:])
before = source.gather(np.arange(6)).tolist()
source._files._slow = True  # so that threads read, which a fork does not have
source._files._threads().call(time.sleep, [0.1] * 16)  # all of them are there, and idle
child = os.fork()
if child == 0:
    signal.alarm(50)  # should it hang, it does not stay
    os._exit(source.gather(np.arange(6)).tolist() != before)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_reads_too(tmp_path: Path):
    paths = write_raw_records(tmp_path, [2, 2, 2])
    done = subprocess.run(
        [sys.executable, "-c", AFTER_A_FORK, *paths], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "0", done.stderr
