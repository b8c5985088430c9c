from collections.abc import Callable, Iterable
from typing import Any

import grain
import jax
import numpy as np
import pytest

from loader import BatcherModule, DataLoader, DefaultBatcher, PadBatcher, StructuralConfig
from loader.records.spec import refuse_unlike, spec_of
from loader.testing import assert_resumes_exactly
from tests.data import unlike_records


def records(count: int) -> list[dict[str, Any]]:
    rows = unlike_records(count)
    return [{key: leaf[index] for key, leaf in rows.items()} for index in range(count)]


def test_process_pads_the_last_batch_and_masks_what_is_not_there():
    batches = list(PadBatcher().process(records(7), batch_size=3))
    assert [batch["valid_mask"].tolist() for batch in batches] == [
        [True, True, True],
        [True, True, True],
        [True, False, False],
    ]
    np.testing.assert_array_equal(batches[2]["id"], [6, 0, 0])
    assert not batches[2]["x"][1:].any()
    dropped = PadBatcher().process(iter(records(7)), batch_size=3, drop_remainder=True)
    assert [batch["id"].tolist() for batch in dropped] == [[0, 1, 2], [3, 4, 5]]


def test_calling_a_batcher_is_calling_process():
    called = PadBatcher()(records(4), batch_size=4)
    assert [batch["id"].tolist() for batch in called] == [[0, 1, 2, 3]]


@pytest.mark.parametrize("batcher", [PadBatcher(), DefaultBatcher()])
@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True])
def test_a_bad_batch_size_is_refused_at_the_call(batcher: BatcherModule, batch_size: Any):
    with pytest.raises(ValueError, match=f"at least 1, got {batch_size}"):
        batcher.process(records(3), batch_size=batch_size)
    with pytest.raises(ValueError, match=f"at least 1, got {batch_size}"):
        batcher.batch_spec(spec_of(records(1)[0]), batch_size=batch_size)


def test_an_option_that_process_does_not_know_is_refused():
    with pytest.raises(TypeError, match="shuffle"):
        PadBatcher().process(records(3), batch_size=2, shuffle=True)


@pytest.mark.parametrize(
    "record",
    [
        {"a": np.zeros((2, 3), np.float32), "b": {"c": np.int64(1)}},
        (np.arange(3), 1.5),
        np.ones(4, np.uint8),
        7,
        {"text": "abc", "n": 1},
    ],
)
@pytest.mark.parametrize("batcher", [PadBatcher(), DefaultBatcher()])
def test_what_process_yields_is_what_batch_spec_says(batcher: BatcherModule, record: Any):
    (batch,) = batcher.process([record] * 4, batch_size=4)
    refuse_unlike(batch, batcher.batch_spec(spec_of(record), batch_size=4), "the batch")


def test_a_record_that_is_no_dict_becomes_data():
    assert set(PadBatcher().batch_spec(spec_of(1), batch_size=2)) == {"data", "valid_mask"}
    spec = PadBatcher().batch_spec(spec_of({"a": np.zeros(3)}), batch_size=2)
    assert (spec["a"].shape, spec["valid_mask"].shape) == ((2, 3), (2,))


def test_a_record_with_a_mask_of_its_own_is_refused():
    data = {"valid_mask": np.zeros(4)}
    with pytest.raises(ValueError, match="rename it"):
        PadBatcher().batch_spec(spec_of({"valid_mask": 1}), batch_size=2)
    with pytest.raises(ValueError, match="rename it"):
        list(PadBatcher().process([{"valid_mask": 1}], batch_size=2))
    with pytest.raises(ValueError, match="rename it"):
        DataLoader(data, batch_size=2)


def test_the_default_batcher_gives_a_short_batch_and_no_mask():
    batches = list(DefaultBatcher(StructuralConfig()).process(records(5), batch_size=3))
    assert [batch["id"].tolist() for batch in batches] == [[0, 1, 2], [3, 4]]
    assert "valid_mask" not in batches[0]


def test_the_default_batcher_stacks_keys_and_lists_texts():
    elements = [{"key": jax.random.key(i), "text": f"t{i}"} for i in range(3)]
    (batch,) = DefaultBatcher().process(elements, batch_size=3)
    assert batch["text"] == ["t0", "t1", "t2"]
    assert batch["key"].shape == (3,)
    assert jax.random.key_data(batch["key"][2]).tolist() == [0, 2]
    (padded,) = PadBatcher().process(elements, batch_size=4)
    assert padded["text"].tolist() == ["t0", "t1", "t2", None]
    assert padded["key"].shape == (4,)


def test_collate_fn_makes_the_batch_of_its_records():
    ragged = [np.arange(n) for n in (1, 3)]
    (batch,) = DefaultBatcher(collate_fn=lambda r: [len(x) for x in r]).process(
        ragged, batch_size=2
    )
    assert batch == [1, 3]
    batcher = DefaultBatcher(collate_fn=lambda r: {"sum": np.stack([x["x"].sum() for x in r])})
    loader = DataLoader(unlike_records(7), batch_size=3, batcher=batcher, remainder="drop")
    assert loader.batch_spec()["sum"].shape == (3,)
    expected = unlike_records(7)["x"].sum((1, 2))
    sums = [batch["sum"].tolist() for batch in loader.host_batches()]
    assert sums == [expected[:3].tolist(), expected[3:6].tolist()]


def test_records_of_other_shapes_are_named():
    elements = [{"a": np.zeros(2)}, {"a": np.zeros(2)}, {"a": np.zeros(2)}, {"a": np.zeros(5)}]
    batches = iter(PadBatcher().process(elements, batch_size=2))
    next(batches)
    with pytest.raises(
        ValueError, match=r"'a' of record 3 is float64\[5\], of record 2 float64\[2\]"
    ):
        next(batches)


def test_batchers_count():
    batcher = PadBatcher()
    list(batcher.process(records(7), batch_size=3))
    assert batcher.get_operation_stats() == {"applied_count": 7, "skipped_count": 2}


class Doubling(PadBatcher):
    def collate(self, rows: Any, valid: np.ndarray) -> dict[str, Any]:
        return {**super().collate(rows, valid), "twice": np.repeat(valid, 2)}


class Halves(BatcherModule):
    """Overrides process alone: is given the records of a batch one by one."""

    def process(
        self,
        elements: Iterable[Any],
        *args: Any,
        batch_size: int,
        drop_remainder: bool = False,
        **kw: Any,
    ) -> list[Any]:
        ids = [int(element["id"]) for element in elements]
        padded = np.array(ids + [-1] * (batch_size - len(ids)))
        return [{"even": padded[0::2], "odd": padded[1::2]}]


class Sums(PadBatcher):
    def process(self, elements: Iterable[Any], *args: Any, **kw: Any) -> list[Any]:
        return [{"sum": np.sum([element["x"] for element in elements]).reshape(1)}]


@pytest.mark.parametrize(
    ("make", "leaf", "expected"),
    [
        (Doubling, "twice", [True] * 6 + [False] * 2),
        (Halves, "even", [4, 6]),
        (Sums, "sum", [unlike_records(7)["x"][4:].sum()]),
    ],
)
def test_a_loader_uses_its_batcher(make: Callable[[], BatcherModule], leaf: str, expected: Any):
    loader = DataLoader(unlike_records(7), batch_size=4, batcher=make())
    last = list(loader.host_batches())[-1]
    assert last[leaf].tolist() == expected
    assert loader.batch_spec()[leaf].shape == last[leaf].shape
    assert_resumes_exactly(lambda: DataLoader(unlike_records(7), batch_size=4, batcher=make()))


def test_a_batcher_that_says_neither_is_not_guessed_at():
    with pytest.raises(NotImplementedError, match="collate"):
        list(BatcherModule().process(records(2), batch_size=2))


def test_a_batcher_that_never_pads_needs_drop():
    with pytest.raises(ValueError, match=r"never pads.*remainder='drop'"):
        DataLoader(unlike_records(7), batch_size=3, batcher=DefaultBatcher())
    loader = DataLoader(unlike_records(7), batch_size=3, batcher=DefaultBatcher(), remainder="drop")
    assert [batch["id"].tolist() for batch in loader.host_batches()] == [[0, 1, 2], [3, 4, 5]]
    assert "valid_mask" not in loader.batch_spec()


def other_shape(rows: dict[str, Any]) -> dict[str, Any]:
    return {"id": rows["id"], "x": rows["x"][:, : 1 + int(rows["id"].max()) // 3]}


def other_dtype(rows: dict[str, Any]) -> dict[str, Any]:
    return {**rows, "x": rows["x"].astype(np.float64 if rows["id"].max() > 2 else np.float32)}


def other_leaf(rows: dict[str, Any]) -> dict[str, Any]:
    return rows if rows["id"].max() < 3 else {**rows, "y": rows["x"]}


def other_tree(rows: dict[str, Any]) -> dict[str, Any]:
    return rows if rows["id"].max() < 3 else {**rows, "x": {"inner": rows["x"]}}


@pytest.mark.parametrize(
    ("operator", "of_record", "of_batch"),
    [
        (
            other_shape,
            r"leaf 'x' is float32\[2, 2\] where other records have float32\[1",
            r"leaf 'x' is float32\[3, 2, 2\] where the spec says float32\[3, 1",
        ),
        (
            other_dtype,
            r"leaf 'x' is float64\[3, 2\] where other records have float32",
            r"leaf 'x' is float64\[3, 3, 2\] where the spec says float32",
        ),
        (
            other_leaf,
            "the record has the leaves .*'y'",
            r"leaf 'y' is float32\[3, 3, 2\] where the spec says no such leaf",
        ),
        (
            other_tree,
            "the record has the leaves .*'x/inner'",
            "leaf 'x' is missing where the spec says float32",
        ),
    ],
)
def test_a_batch_that_is_not_like_its_spec_is_refused(operator: Any, of_record: str, of_batch: str):
    class Careless(PadBatcher):
        def collate(self, rows: Any, valid: np.ndarray) -> dict[str, Any]:
            return super().collate(operator(rows), valid)

    for loader, words in (
        (
            DataLoader(unlike_records(9), batch_size=3, operators=[operator]),
            f"record 3: {of_record}",
        ),
        (DataLoader(unlike_records(9), batch_size=3, batcher=Careless()), f"batch 1: {of_batch}"),
    ):
        batches = loader.host_batches()
        next(batches)
        with pytest.raises(ValueError, match=words):
            next(batches)


def test_a_collate_of_texts_needs_no_zeros():
    texts = [{"t": "a" * n} for n in range(1, 9)]

    class Lengths(PadBatcher):
        def collate(self, rows: Any, valid: np.ndarray) -> dict[str, Any]:
            return super().collate({"n": np.array([len(t) for t in rows["t"]])}, valid)

    loader = DataLoader(texts, batch_size=3, batcher=Lengths())
    assert [batch["n"].tolist() for batch in loader] == [[1, 2, 3], [4, 5, 6], [7, 8, 0]]
    by_list = DefaultBatcher(collate_fn=lambda r: {"t": [x["t"] for x in r], "count": len(r)})
    loader = DataLoader(texts, batch_size=4, batcher=by_list, remainder="drop")
    assert [batch["t"][0] for batch in loader.host_batches()] == ["a", "aaaaa"]


def test_arrays_of_texts_are_padded_with_nothing_and_listed():
    data = {"t": np.array(["a", "bb", "c"]), "s": np.array([b"a", b"b", b"c"])}
    last = list(DataLoader(data, batch_size=2).host_batches())[-1]
    assert (last["t"].tolist(), last["s"].tolist()) == (["c", ""], [b"c", b""])
    loader = DataLoader(data, batch_size=2, batcher=DefaultBatcher(), remainder="drop")
    assert next(loader.host_batches())["t"] == ["a", "bb"]


class ThroughProcess(PadBatcher):
    def process(self, elements: Iterable[Any], *args: Any, batch_size: int, **kw: Any) -> Any:
        return super().process(elements, batch_size=batch_size)


def test_rows_are_counted_once_however_a_batcher_is_written():
    batcher = ThroughProcess()
    loader = DataLoader(unlike_records(7), batch_size=3, batcher=batcher)
    list(loader)
    loader.batch_at(0)
    assert batcher.get_operation_stats() == {"applied_count": 7, "skipped_count": 2}
    list(batcher.process(records(4), batch_size=2))
    assert batcher.get_operation_stats() == {"applied_count": 11, "skipped_count": 2}


def test_a_batch_without_records_is_all_mask_also_by_process():
    dataset = grain.MapDataset.source(records(8)).filter(lambda record: record["id"] < 4)
    loader = DataLoader(dataset, batch_size=4, batcher=ThroughProcess())
    assert [batch["valid_mask"].sum() for batch in loader.host_batches()] == [4, 0]
    with pytest.raises(ValueError, match=r"DefaultBatcher never pads: use PadBatcher"):
        list(DataLoader(dataset, batch_size=3, batcher=DefaultBatcher(), remainder="drop"))


def test_a_leaf_without_rows_cannot_be_cut_into_microbatches():
    class Adding(PadBatcher):
        def collate(self, rows: Any, valid: np.ndarray) -> dict[str, Any]:
            return {**super().collate(rows, valid), "w": np.arange(4.0)}

    loader = DataLoader(unlike_records(8), batch_size=8, microbatches=2, batcher=Adding())
    for call in (loader.batch_spec, lambda: next(loader.host_batches())):
        with pytest.raises(ValueError, match="leaf 'w' has no row for each of the 8 records"):
            call()


def test_keys_and_texts_that_differ_are_named_too():
    with pytest.raises(ValueError, match="leaf 'k' of record 1"):
        list(PadBatcher().process([{"k": "a"}, {"k": 3}], batch_size=2))
    keys = [{"k": jax.random.key(0)}, {"k": jax.random.split(jax.random.key(0), 2)}]
    with pytest.raises(ValueError, match="leaf 'k' of record 1"):
        list(PadBatcher().process(keys, batch_size=2))
