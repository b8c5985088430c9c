"""A source seen through operators."""

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, Filter, Mapped, Packed, Shuffle, Threads, index_lengths
from loader.testing import assert_covers_each_record_once, assert_resumes_exactly, assert_same_batch
from operators import (
    ByteTokenizer,
    CenterCrop,
    Map,
    MapBatch,
    PadTokens,
    RandomFlip,
    Rename,
    Sequence,
    ShiftTargets,
    Tokenize,
)
from tests.operators.test_operators import COUNT, Records


def test_mapped_records_are_those_that_the_loader_would_make():
    def operators() -> list[Any]:
        return [Tokenize(into="ids"), PadTokens("ids", 40), CenterCrop("image", 4)]

    def make(**settings: Any) -> DataLoader:
        source = Mapped(Records(), operators())
        return DataLoader(source, batch_size=5, order=Shuffle(2), epochs=2, **settings)

    assert_resumes_exactly(make)
    assert_covers_each_record_once(make(), "id")
    expected = DataLoader(
        Records(), batch_size=5, order=Shuffle(2), epochs=2, operators=operators()
    ).host_batches()
    for got, threaded, want in zip(
        make().host_batches(), make(workers=Threads(2)).host_batches(), expected, strict=True
    ):
        assert_same_batch(got, want, "mapped")
        assert_same_batch(threaded, want, "mapped, in threads")
    unreadable = Mapped(Records(readable=False), operators())
    assert DataLoader(unreadable, batch_size=5).batch_spec()["ids"].shape == (5, 40)
    assert Mapped(Records(), [Tokenize()])[3]["tokens"].tolist()[:2] == [117, 104]
    again = pickle.loads(pickle.dumps(Mapped(Records(), operators())))
    assert np.array_equal(again[4]["image"], Mapped(Records(), operators())[4]["image"])


def test_texts_are_tokenised_indexed_packed_and_shifted(tmp_path: Path):
    texts = [f"line {n} " + "wörd " * (n * 7 % 23) for n in range(200)]
    source = Mapped([{"text": text} for text in texts], [Tokenize()])
    lengths = index_lengths(source, cache=tmp_path / "lengths.npy")
    assert lengths.tolist() == [len(text.encode()) for text in texts]

    def make(**settings: Any) -> DataLoader:
        packed = Packed(source, lengths, row_length=257, seed=3)
        settings = {"batch_size": 4, "order": Shuffle(1), **settings}
        return DataLoader(packed, operators=[ShiftTargets()], **settings)

    assert_resumes_exactly(make)
    seen = []
    for batch in make().host_batches():
        for row in np.flatnonzero(batch["valid_mask"]):
            segments = batch["segment_ids"][row]
            for segment in range(1, segments.max() + 1):
                own = segments == segment
                counted = own & batch["loss_mask"][row]
                tokens = [*batch["tokens"][row][own][:1], *batch["targets"][row][counted]]
                seen.append(ByteTokenizer().decode(tokens))
    assert sorted(seen) == sorted(texts)
    other = Mapped(
        [{"text": text} for text in texts], [Tokenize(tokenizer=ByteTokenizer(eos=True))]
    )
    longer = index_lengths(other, cache=tmp_path / "lengths.npy")  # the cache is of other data
    assert (longer == lengths + 1).all()


def read_json(record: dict[str, Any]) -> dict[str, Any]:
    return json.loads(record["text"])  # which fails on an empty text


def same_rows(rows: dict[str, Any]) -> dict[str, Any]:
    assert all(rows["number"] > 0)  # which no row of zeros has
    return rows


def test_an_operator_that_must_see_a_record_leaves_the_next_ones_to_say_their_specs():
    lines = [{"text": json.dumps({"text": "hello " * n, "number": n})} for n in range(1, 9)]
    for operators in (
        [Map(read_json), Tokenize()],
        [Map(read_json), Tokenize(), Map(dict)],
        [Map(read_json), Tokenize(), MapBatch(same_rows)],
        [Sequence([Map(read_json), Tokenize()]), Rename({"tokens": "tokens"})],
    ):
        source = Mapped(lines, operators)
        assert source.record_spec()["tokens"].shape == (None,), operators
        assert source.record_spec()["tokens"].dtype == np.int32
        packed = Packed(source, index_lengths(source), row_length=64, seed=1)
        batches = list(DataLoader(packed, batch_size=2).host_batches())
        texts = [ByteTokenizer().decode(row) for batch in batches for row in batch["tokens"]]
        assert sorted("".join(texts).split("hello ")) == [""] * 37


def test_lengths_that_differ_are_seen_where_only_records_show_them():
    lines = [{"text": json.dumps({"ids": list(range(n)), "pair": [n, 1]})} for n in range(1, 9)]
    spec = Mapped(lines, [Map(read_json)]).record_spec()
    assert spec["ids"].shape == (None,)
    assert spec["pair"].shape == (2,)


def test_other_operators_are_other_data():
    state = DataLoader(Mapped(Records(), [PadTokens("tokens", 20)]), batch_size=5).get_state()
    with pytest.raises(ValueError, match=r"data\.mapped: saved"):
        DataLoader(Mapped(Records(), [PadTokens("tokens", 20, value=1)]), batch_size=5).set_state(
            state
        )


def test_records_are_found_by_index_as_in_a_list():
    source = Mapped({"x": np.arange(4)}, [Map(dict)])
    assert [int(record["x"]) for record in source] == [0, 1, 2, 3]
    assert source[-1]["x"] == 3
    with pytest.raises(IndexError, match="record 4 of a source of 4"):
        source[4]


def test_what_a_mapped_source_is_made_of_is_part_of_what_it_is():
    def made(by: int) -> DataLoader:
        return DataLoader(Mapped(Mapped({"x": np.arange(4)}, [Add(by)]), [Map(dict)]), batch_size=2)

    with pytest.raises(ValueError, match=r"data\.mapped: saved"):
        made(2).set_state(made(1).get_state())
    made(2).set_state(made(2).get_state())


@dataclasses.dataclass(frozen=True)
class Add:
    by: int

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        return {"x": rows["x"] + self.by}


def test_what_would_not_give_the_same_records_every_time_is_refused():
    for operator in (
        RandomFlip("image", seed=0),
        Filter(bool),
        CenterCrop("image", 3, on="device"),
    ):
        with pytest.raises(ValueError, match="is random, a filter, or runs on the device"):
            Mapped(Records(), [operator])

    def picky(record: dict[str, Any]) -> dict[str, Any]:
        return {"id": 1 // (int(record["id"]) - 9)}

    with pytest.raises(ValueError, match=r"record 9 \(line 9 of the list\): Map: .*ZeroDivision"):
        Mapped(Records(), [Map(picky)]).gather(np.arange(COUNT))
