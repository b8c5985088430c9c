import itertools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import grain
import jax
import numpy as np
import pytest

from loader import (
    ArrayRecordSource,
    DataLoader,
    GrainSource,
    Mapped,
    Mixture,
    Msgpack,
    Packed,
    Shuffle,
    Threads,
    index_lengths,
)
from loader.records.spec import leaf_spec, refuse_unlike
from loader.sources.packing import lengths as lengths_file
from loader.sources.packing.fit_plan import FitPlan, fit_rows
from loader.testing import assert_resumes_exactly, assert_same_batch
from tests.data import write_array_record

Fit = Literal["best", "first"]
FITS: list[Fit] = ["best", "first"]
ROOT = Path(__file__).parent.parent.parent


def log_normal_lengths(count: int, longest: int = 2048, seed: int = 0) -> np.ndarray:
    drawn = np.exp(np.random.default_rng(seed).normal(np.log(200), 1, count))
    return np.clip(drawn, 1, longest).astype(np.int64)


def documents(lengths: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
    """Records in which no two tokens are alike; `weights` follow from tokens."""
    ends = np.cumsum(lengths)
    tokens = [
        np.arange(end - length, end, dtype=np.int32) + 1
        for end, length in zip(ends, lengths, strict=True)
    ]
    return [{"tokens": t, "weights": t / 2, "name": f"d{i}"} for i, t in enumerate(tokens)]


def small_lengths(count: int = 61, longest: int = 20) -> np.ndarray:
    lengths = np.random.default_rng(1).integers(0, longest + 1, count)
    lengths[[5, 6]] = [0, longest]
    return lengths


class Known:
    """A source that knows its spec, says where its records are, and counts reads."""

    def __init__(self, records: list[Any]) -> None:
        self.records = records
        self.reads: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        return self.records[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.reads.append(indices)
        return [self.records[index] for index in indices]

    def record_spec(self) -> Any:
        ragged = leaf_spec((None,), np.dtype(np.int32))
        weights = leaf_spec((None,), np.dtype(np.float64))
        text = jax.ShapeDtypeStruct((), np.dtype(object))
        return {"tokens": ragged, "weights": weights, "name": text}

    def locate(self, record: int) -> str:
        return f"page {record // 10}"


def rows_of(plan: FitPlan) -> list[list[tuple[int, int, int]]]:
    pieces = list(
        zip(plan.record_of.tolist(), plan.start_of.tolist(), plan.length_of.tolist(), strict=True)
    )
    return [pieces[a:b] for a, b in itertools.pairwise(plan.offsets.tolist())]


# The plan


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("longest", [20, 75])
def test_every_token_of_every_record_has_exactly_one_place(fit: Fit, longest: int):
    lengths = small_lengths(400, longest)
    plan = fit_rows(lengths, 20, 3, fit, "split")
    seen: list[list[tuple[int, int]]] = [[] for _ in lengths]
    for row in rows_of(plan):
        assert 0 < sum(length for _, _, length in row) <= 20
        for record, start, length in row:
            assert length > 0
            seen[record].append((start, start + length))
    for length, spans in zip(lengths.tolist(), seen, strict=True):
        edges = sorted(spans)
        assert [a for a, _ in edges] == list(range(0, length, 20))
        assert [b for _, b in edges] == [*range(20, length, 20), *([length] if length else [])]
    assert plan.num_tokens == lengths.sum()


def one_by_one(lengths: np.ndarray, row_length: int, fit: Fit, most: int) -> list[list[int]]:
    """Best or first fit of single pieces, longest first, as the books have it."""
    rows: list[list[int]] = []
    for length in sorted(lengths.tolist(), reverse=True):
        room = [row_length - sum(row) for row in rows]
        fits = [i for i, left in enumerate(room) if left >= length and len(rows[i]) < most]
        if fits:
            rows[min(fits, key=lambda i: room[i]) if fit == "best" else fits[0]].append(length)
        else:
            rows.append([length])
    return rows


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("most", [None, 1, 3])
@pytest.mark.parametrize(("count", "row_length"), [(1, 5), (60, 11), (300, 64), (200, 1000)])
def test_placing_equal_lengths_at_once_is_placing_them_one_by_one(
    fit: Fit, count: int, row_length: int, most: int | None
):
    for seed in range(5):
        drawn = np.random.default_rng(seed).exponential(row_length / 4, count)
        lengths = np.clip(drawn, 1, row_length).astype(int)
        plan = fit_rows(lengths, row_length, seed, fit, most_segments=most)
        got = sorted(sorted((n for _, _, n in row), reverse=True) for row in rows_of(plan))
        assert got == sorted(one_by_one(lengths, row_length, fit, most or row_length))


def test_rows_are_full_and_at_least_as_full_as_grains():
    lengths = log_normal_lengths(3000)
    dataset = grain.MapDataset.source(lengths.tolist()).map(
        lambda length: {"tokens": np.ones(length, np.int32)}
    )
    grains = grain.experimental.BestFitPackIterDataset(
        dataset.to_iter_dataset(), length_struct={"tokens": 2048}, num_packing_bins=64
    )
    theirs = [np.count_nonzero(row["tokens"]) for row in grains]
    assert sum(theirs) == lengths.sum()
    for fit in FITS:
        plan = fit_rows(lengths, 2048, 0, fit)
        assert lengths.sum() / (len(plan) * 2048) >= max(0.97, sum(theirs) / (len(theirs) * 2048))


def test_the_seed_decides_records_pieces_and_rows_and_nothing_else_does():
    lengths = small_lengths(300)
    plans = [fit_rows(lengths, 20, seed) for seed in (0, 0, 1)]
    same, other = rows_of(plans[1]), rows_of(plans[2])
    assert rows_of(plans[0]) == same
    by_contents = [[sorted(row) for row in rows] for rows in (same, other)]
    assert by_contents[0] != by_contents[1]  # another order of rows
    assert sorted(by_contents[0]) != sorted(by_contents[1])  # other records share a row
    first_lengths = [[row[0][2] for row in rows if len(row) > 1] for rows in (same, other)]
    assert any(row[0][2] < max(row, key=lambda p: p[2])[2] for row in same)  # not longest first
    assert first_lengths[0] != first_lengths[1]
    assert sorted(len(row) for row in same) == sorted(len(row) for row in other)


def test_another_process_plans_the_same():
    code = (
        "import numpy as np; from loader.records.digest import content_key\n"
        "from loader.sources.packing.fit_plan import fit_rows\n"
        "p = fit_rows(np.arange(5000) * 7919 % 900, 512, 11, 'first', 'split')\n"
        "print(content_key((p.offsets, p.record_of, p.start_of, p.length_of)))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    # Written down: a plan that changes is a change in the order of data.
    assert printed == "9d751cd3c016459f13dbc342dc61e0eaee654307326e00b5b8cd86887d96cff7\n"


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_nothing_to_pack_is_a_plan_without_rows(lengths: list[int]):
    plan = fit_rows(lengths, 8, 0)
    assert (len(plan), plan.num_tokens, plan.cuts) == (0, 0, False)


@pytest.mark.parametrize(
    ("lengths", "settings", "message"),
    [
        ([3, 9, 12], {}, r'record 1 has length 9, and a row has 8: give long="split"'),
        ([3, -1], {}, "record 1 has length -1: lengths are at least 0"),
        ([3.0, 4.0], {}, r"lengths must be integers.*float64\[2\].*index_lengths"),
        ([[3], [4]], {}, r"one for each record, got int64\[2, 1\]"),
        ([True, False], {}, "lengths must be integers"),
        ([3], {"row_length": 0}, "row_length must be an integer from 1 to .*, got 0"),
        ([3], {"row_length": 2.5}, r"row_length must be an integer from 1 to .*, got 2\.5"),
        ([3], {"seed": "a"}, "seed must be an integer, got 'a'"),
        ([3], {"fit": "worst"}, r"fit must be one of \['best', 'first'\], got 'worst'"),
        ([3], {"long": "cut"}, r"long must be one of \['refuse', 'split'\], got 'cut'"),
        ([3], {"most_segments": 0}, "most_segments must be .*, got 0"),
    ],
)
def test_what_cannot_be_planned_is_refused(lengths: Any, settings: Any, message: str):
    with pytest.raises(ValueError, match=message):
        fit_rows(lengths, **{"row_length": 8, "seed": 0, **settings})


# The source


def unpacked(batches: Any, pad_value: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tokens and positions of every segment; checks that segments stand in order at the front."""
    segments = []
    for batch in batches:
        for tokens, ids, positions in zip(
            batch["tokens"], batch["segment_ids"], batch["positions"], strict=True
        ):
            count = np.count_nonzero(ids)
            assert (ids[:count] > 0).all()
            assert set(np.diff(ids[:count], prepend=0).tolist()) <= {0, 1}
            assert (tokens[count:] == pad_value).all()
            assert not positions[count:].any()
            for number in range(1, ids.max() + 1):
                segments.append((tokens[ids == number], positions[ids == number]))
    return segments


@pytest.mark.parametrize("fit", FITS)
def test_a_packed_source_gives_each_record_once_an_epoch_and_resumes(fit: Fit):
    records = documents(small_lengths())
    source = Known(records)
    packed = Packed(source, small_lengths(), 20, 3, fit=fit)

    def make(batch_size: int = 4, **settings: Any) -> DataLoader:
        return DataLoader(packed, batch_size=batch_size, order=Shuffle(1), epochs=2, **settings)

    assert_resumes_exactly(make)
    segments = unpacked(make().host_batches())
    expected = [record["tokens"].tolist() for record in records if len(record["tokens"])]
    assert sorted(tokens.tolist() for tokens, _ in segments) == sorted(expected * 2)
    for tokens, positions in segments:
        np.testing.assert_array_equal(positions, np.arange(len(tokens)))
    whole = make(batch_size=len(packed)).host_batches()
    rows = {key: leaf for key, leaf in next(whole).items() if key != "valid_mask"}
    with make(workers=Threads(2)) as threaded:
        for step, (plain, other) in enumerate(
            zip(make().host_batches(), threaded.host_batches(), strict=True)
        ):
            assert_same_batch(other, plain, f"batch {step} with threads")
            if step < len(packed) // 4:
                part = {key: leaf[step * 4 : step * 4 + 4] for key, leaf in rows.items()}
                plain.pop("valid_mask")
                assert_same_batch(plain, part, f"batch {step} of one large one")


def test_the_spec_of_packed_rows_is_known_without_reading():
    source = Known(documents(small_lengths()))
    packed = Packed(source, small_lengths(), 20, leaf=["tokens", "weights"], pad_value=7)
    loader = DataLoader(packed, batch_size=3, prefetch=0)
    spec = {name: (s.shape, str(s.dtype)) for name, s in loader.pipeline.batch_spec().items()}
    assert spec == {
        "tokens": ((3, 20), "int32"),
        "weights": ((3, 20), "float64"),
        "segment_ids": ((3, 20), "int32"),
        "positions": ((3, 20), "int32"),
        "valid_mask": ((3,), "bool"),
    }
    assert source.reads == []
    batch = next(loader.host_batches())
    refuse_unlike(batch, loader.pipeline.batch_spec(), "the batch")
    real = batch["segment_ids"] > 0
    np.testing.assert_array_equal(batch["weights"][real], batch["tokens"][real] / 2)
    assert (batch["weights"][~real] == 7).all()
    assert len(source.reads) == 1  # one read for a whole batch


@pytest.mark.parametrize("positions", ["row", "record"])
def test_positions_of_a_split_record_begin_again_in_each_row_or_go_on(positions: Any):
    lengths = [50, 3, 20, 47]
    packed = Packed(documents(lengths), lengths, 20, long="split", positions=positions)
    pieces = unpacked([packed.gather(np.arange(len(packed)))])
    starts = np.cumsum([0, *lengths])
    found = []
    for tokens, counted in pieces:
        record = int(np.searchsorted(starts, tokens[0] - 1, side="right")) - 1
        begin = int(tokens[0]) - 1 - int(starts[record])
        shift = 0 if positions == "row" else begin
        np.testing.assert_array_equal(counted, np.arange(len(tokens)) + shift)
        found.append((record, begin, len(tokens)))
    assert sorted(found) == [
        *((0, 0, 20), (0, 20, 20), (0, 40, 10)),
        *((1, 0, 3), (2, 0, 20), (3, 0, 20), (3, 20, 20), (3, 40, 7)),
    ]
    assert packed.fraction_real == 120 / (20 * len(packed))


def test_a_state_knows_how_positions_were_counted_where_records_are_cut():
    def loader(longest: int, positions: Any, **how: Any) -> DataLoader:
        lengths = small_lengths(61, longest)
        packed = Packed(documents(lengths), lengths, 20, positions=positions, **how)
        return DataLoader(packed, batch_size=2)

    for how in ({"long": "split"}, {"mode": "concat"}):
        by_row, by_record = (loader(75, kind, **how) for kind in ("row", "record"))
        with pytest.raises(
            ValueError, match=r"data\.pack\.positions: .*absent, here .*'record' goes"
        ):
            by_row.set_state(by_record.get_state())
        with pytest.raises(ValueError, match=r"data\.pack\.positions: saved .*, here absent"):
            by_record.set_state(by_row.get_state())
    whole = [loader(20, kind, long="split").get_state() for kind in ("row", "record")]
    assert whole[0] == whole[1]  # no record is cut, and the batches are the same


def test_records_may_be_bare_arrays_of_any_item():
    lengths = [2, 3, 1]
    packed = Packed([np.full((n, 2), n, np.int8) for n in lengths], lengths, 3)
    rows = packed.gather(np.arange(2))
    assert (rows["tokens"].shape, rows["tokens"].dtype) == ((2, 3, 2), np.int8)
    assert sorted(rows["tokens"][:, :, 1].ravel().tolist()) == [1, 2, 2, 3, 3, 3]


def test_records_of_one_length_and_nested_leaves_are_packed_too():
    data = {"text": {"ids": np.arange(1, 13).reshape(4, 3)}, "label": np.arange(4)}
    packed = Packed(data, [3, 3, 3, 3], 7, leaf="text/ids")
    assert packed.record_spec()["text/ids"].shape == (7,)
    rows = packed.gather(np.array([0, 1]))
    assert sorted(rows["text/ids"].ravel().tolist()) == [0, 0, *range(1, 13)]


def test_the_same_index_is_always_the_same_row_also_after_pickle():
    packed = Packed(documents(small_lengths()), small_lengths(), 20)
    again = pickle.loads(pickle.dumps(packed))
    for index in (0, 7, -1, 7):
        row = packed.gather(np.array([3, index % len(packed)]))
        for source in (packed, again):
            assert_same_batch(source[index], {k: v[1] for k, v in row.items()}, f"row {index}")
    known = Packed(Known(documents([3, 4])), [3, 4], 8)
    assert pickle.loads(pickle.dumps(known)).record_spec() == known.record_spec()
    with pytest.raises(IndexError, match="rows 99 to 99 of a source of"):
        packed[99]


def test_a_row_names_the_records_in_it():
    packed = Packed(Known(documents([1] * 30)), [1] * 30, 6)
    numbers = packed._plan.pieces(np.array([0])).record.tolist()
    named = ", ".join(f"record {n} (page {n // 10})" for n in numbers[:4])
    assert packed.locate(0) == f"{named} and 2 more"


def test_a_state_of_other_packing_is_refused():
    lengths = small_lengths()
    records = documents(lengths)
    state = DataLoader(Packed(records, lengths, 20), batch_size=2).get_state()
    for settings in (
        {"seed": 1},
        {"row_length": 21},
        {"fit": "first"},
        {"long": "split"},
        {"mode": "concat"},
        {"most_segments": 9},
        {"pad_value": 1},
        {"leaf": ["tokens", "weights"]},
    ):
        other = Packed(records, lengths, **{"row_length": 20, **settings})
        with pytest.raises(ValueError, match=r"  data\.pack: saved digest"):
            DataLoader(other, batch_size=2).set_state(state)
    shorter = np.where(np.arange(61) == 20, 0, lengths)
    with pytest.raises(ValueError, match=r"data\.pack\.lengths: saved"):
        DataLoader(Packed(records, shorter, 20), batch_size=2).set_state(state)
    changed = [*documents(lengths)[:-1], {**records[-1], "tokens": records[-1]["tokens"] + 1}]
    with pytest.raises(ValueError, match=r"data\.sample: saved"):
        DataLoader(Packed(changed, lengths, 20), batch_size=2).set_state(state)


def test_a_record_that_is_not_as_long_as_was_said_is_named():
    lengths = small_lengths()
    source = Known(documents(lengths))
    source.records[33] = documents([9])[0]
    packed = Packed(source, lengths, 20)
    message = (
        rf"'tokens' of record 33 \(page 3\) has 9 tokens where lengths say {lengths[33]}"
        r".*index it again"
    )
    with pytest.raises(ValueError, match=message):
        list(DataLoader(packed, batch_size=4).host_batches())
    source = Known(documents(lengths))
    source.records[33]["weights"] = np.zeros(1)
    with pytest.raises(ValueError, match=r"'weights' of record 33 \(page 3\) has 1 tokens"):
        list(DataLoader(Packed(source, lengths, 20, leaf=["tokens", "weights"]), batch_size=4))


def test_a_record_that_is_filtered_out_is_named_or_left_out():
    records: list[Any] = documents([3, 4, 5])
    records[1] = None
    packed = Packed(Known(records), [3, 4, 5], 12)
    with pytest.raises(ValueError, match=r"record 1 \(page 0\) is filtered out.*length 0"):
        packed.gather(np.array([0]))
    lengths = index_lengths(records)
    assert lengths.tolist() == [3, 0, 5]
    assert Packed(records, lengths, 12).fraction_real == 8 / 12


@pytest.mark.parametrize(
    ("lengths", "settings", "message"),
    [
        ([3], {}, "1 lengths and 2 records: give index_lengths"),
        ([0, 0], {}, "all records have length 0"),
        ([3, 4], {"leaf": "positions"}, "neither 'segment_ids' nor 'positions'"),
        ([3, 4], {"leaf": []}, "leaf must be a name or several"),
        ([3, 4], {"leaf": "ids"}, r"no leaf 'ids', they have \['name', 'tokens', 'weights'\]"),
        ([3, 4], {"leaf": "name"}, r"'name' is object\[\], which has no tokens"),
        ([3, 4], {"pad_value": 0.5}, "0.5 is no value to pad leaf 'tokens' with, which is int32"),
        ([3, 4], {"pad_value": float("nan")}, "nan is no value to pad leaf 'tokens'"),
        ([3, 40], {}, r'record 1 has length 40.*long="split"'),
        ([3, 4], {"mode": "best"}, r"mode must be one of \['fit', 'concat'\], got 'best'"),
        ([3, 4], {"positions": "doc"}, r"positions must be one of \['row', 'record'\], got 'doc'"),
        ([0, 0], {"mode": "concat"}, "all records have length 0"),
        ([3, 4], {"mode": "concat", "seed": 1}, "seed has no effect with mode='concat'"),
        ([3, 4], {"mode": "concat", "fit": "first"}, "fit has no effect with mode='concat'"),
        ([3, 4], {"mode": "concat", "long": "split"}, "long has no effect.*leave it out"),
        ([3, 4], {"mode": "concat", "most_segments": 2}, "most_segments has no effect"),
        ([3, 4], {"mode": "concat", "row_length": 0}, "row_length must be an integer from 1"),
    ],
)
def test_what_cannot_be_packed_is_refused_at_once(lengths: Any, settings: Any, message: str):
    source = Known(documents([3, 4]))
    with pytest.raises(ValueError, match=message):
        Packed(source, lengths, **{"row_length": 8, **settings})
    assert source.reads == []


def test_a_source_that_changes_from_epoch_to_epoch_is_refused():
    dataset = grain.MapDataset.source(documents([3, 4])).shuffle(1)
    mixture = Mixture({"a": (Known(documents([3, 4])), 1)})
    calls = [lambda: Packed(dataset, [3, 4], 8), lambda: index_lengths(dataset)]
    for call in (*calls, lambda: Packed(mixture, [3, 4], 8)):
        with pytest.raises(ValueError, match=r"in each epoch.*varies_by_epoch=False.*made from"):
            call()


def test_a_grain_dataset_that_is_said_to_stay_the_same_is_packed():
    lengths = small_lengths()
    dataset = (
        grain.MapDataset.source(documents(lengths))
        .seed(3)
        .shuffle()
        .filter(lambda record: record["name"] != "d7")
        .map(lambda record: {"tokens": record["tokens"] * 2})
        .repeat(1, reseed_each_epoch=False)
    )
    source = GrainSource(dataset, varies_by_epoch=False)
    found = index_lengths(source)
    elements: list[Any] = [dataset[index] for index in range(len(dataset))]
    assert found.tolist() == [0 if e is None else len(e["tokens"]) for e in elements]
    assert elements.count(None) == 1  # which is in no row
    settings: list[dict[str, Any]] = [{}, {"mode": "concat"}]
    for how in settings:
        packed = Packed(source, found, 20, **how)
        assert_resumes_exactly(lambda packed=packed: DataLoader(packed, batch_size=4, epochs=2))
        rows = packed.gather(np.arange(len(packed)))
        want = np.concatenate([e["tokens"] for e in elements if e is not None])
        got = rows["tokens"][rows["segment_ids"] > 0]
        np.testing.assert_array_equal(got if how else np.sort(got), want if how else np.sort(want))
    wrong = np.array([3 if e is None else len(e["tokens"]) for e in elements])
    with pytest.raises(ValueError, match=r"is filtered out \(it is None\) and is to be packed"):
        Packed(source, wrong, 10**4).gather(np.array([0]))
    whole = grain.MapDataset.source(documents([3, 4])).map(lambda record: record["tokens"])
    assert Mapped(GrainSource(whole, varies_by_epoch=False), [])[1].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("chain", "found"),
    [
        (lambda ds: ds.shuffle(), "it has a Shuffle"),
        (lambda ds: ds.random_map(lambda r, g: r), "it has a RandomMap"),
        (lambda ds: ds.shuffle().repeat(1), "element 0 is another one in the second epoch"),
        (lambda ds: ds.map_with_index(lambda n, r: {"n": n}), "element 0 is another one"),
        (lambda ds: grain.MapDataset.mix([ds, ds[:9]], [1, 2]), "element . is another one"),
    ],
)
def test_a_grain_dataset_that_is_wrongly_said_to_stay_the_same_is_refused(chain: Any, found: str):
    dataset = chain(grain.MapDataset.source(documents([3] * 20)).seed(4))
    message = rf"varies_by_epoch=False was given, and {found}.*reseed_each_epoch=False"
    with pytest.raises(ValueError, match=message):
        GrainSource(dataset, varies_by_epoch=False)
    assert GrainSource(dataset).varies_by_epoch


def test_only_a_grain_dataset_can_vary_by_epoch():
    with pytest.raises(ValueError, match=r"only a grain\.MapDataset can vary by epoch.*list"):
        GrainSource(documents([3]), varies_by_epoch=True)
    assert not GrainSource(documents([3]), varies_by_epoch=False).varies_by_epoch


# Lengths


def test_lengths_are_found_in_files(tmp_path: Path):
    lengths = small_lengths(600)
    blobs = [Msgpack().encode(record) for record in documents(lengths)]
    path = write_array_record(tmp_path / "a.array_record", blobs)
    source = ArrayRecordSource(path, Msgpack())
    found = index_lengths(source)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, lengths)
    assert_resumes_exactly(lambda: DataLoader(Packed(source, found, 64), batch_size=50))
    assert index_lengths([np.zeros(n) for n in (2, 5)]).tolist() == [2, 5]
    assert index_lengths(np.zeros((4, 3))).tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"tokens": "abc"}], "'tokens' holds values of type str.*no tokens to count"),
        ([{"tokens": 3}], "'tokens' holds values of type int64"),
        ([{"ids": np.zeros(3)}], r"no leaf 'tokens', they have \['ids'\]"),
    ],
)
def test_what_has_no_length_is_refused(records: list[Any], message: str):
    with pytest.raises(ValueError, match=message):
        index_lengths(records)


def test_a_cache_is_used_only_for_the_data_and_the_leaf_it_was_made_of(tmp_path: Path):
    cache = tmp_path / "deep" / "lengths.npy"

    def reads_of(source: Known, leaf: str = "tokens") -> int:
        source.reads.clear()
        lengths = index_lengths(source, leaf, cache=cache)
        np.testing.assert_array_equal(lengths, [len(r[leaf]) for r in source.records])
        # Those of the fingerprint, and those that check what was kept, are of fewer records.
        return sum(len(read) > 150 for read in source.reads)

    many = np.tile(small_lengths(), 20)
    source, other = Known(documents(many)), Known(documents(many + 1))
    assert [reads_of(source), reads_of(source), reads_of(other), reads_of(source)] == [5, 0, 5, 5]
    assert reads_of(source, "weights") == 5
    np.testing.assert_array_equal(np.load(cache), many)
    assert sorted(p.name for p in cache.parent.iterdir()) == ["lengths.npy", "lengths.npy.json"]
    note = cache.with_name("lengths.npy.json")
    for path, damage in (
        (cache, lambda b: b[:-3]),
        (cache, lambda b: b[:-1] + bytes([b[-1] ^ 1])),
        (cache, lambda b: b""),
        (note, lambda b: b[: len(b) // 2]),
        (note, lambda b: b"\xff" + b),
        (note, lambda b: json.dumps({**json.loads(b), "key": "0"}).encode()),
    ):
        path.write_bytes(damage(path.read_bytes()))
        assert reads_of(source, "weights") == 5
        assert reads_of(source, "weights") == 0
    index_lengths(source, "weights", cache=cache, refresh=True)
    assert sum(len(read) > 150 for read in source.reads) == 5


def test_leaves_may_be_padded_each_with_a_value_of_its_own():
    records = [{"tokens": np.full(3, n), "loss_mask": np.ones(3, bool)} for n in range(1, 4)]

    def row(pad_value: Any) -> Any:
        leaves = ["tokens", "loss_mask"]
        return Packed(records, [3] * 3, 8, leaf=leaves, pad_value=pad_value)[0]

    for pad_value in (7, {"tokens": 7}):
        packed = row(pad_value)
        padding = packed["segment_ids"] == 0
        assert padding.sum() in (2, 5)
        assert (packed["tokens"][padding] == 7).all()
        assert packed["loss_mask"].tolist() == (~padding).tolist()
    assert row({"loss_mask": True})["loss_mask"].all()
    with pytest.raises(ValueError, match=r"pad_value names \['mask'\], which are not packed"):
        row({"mask": 1})


def test_a_cache_that_no_longer_fits_the_records_is_made_anew(tmp_path: Path):
    lengths = np.full(1000, 3)
    lengths[501] = 0
    records = documents(lengths)
    assert index_lengths(records, cache=tmp_path / "l.npy")[501] == 0
    records[501] = documents(np.full(1000, 3))[501]  # none of those that the fingerprint samples
    packed = Packed(records, index_lengths(records, cache=tmp_path / "l.npy"), 8)
    assert (
        sum(len(np.unique(row)) - 1 for row in (packed[i]["segment_ids"] for i in range(500)))
        == 1000
    )


def test_an_interrupted_pass_leaves_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Interrupted(Known):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            if len(indices) > 16:  # not the fingerprint
                raise KeyboardInterrupt
            return super().__getitems__(indices)

    with pytest.raises(KeyboardInterrupt):
        index_lengths(Interrupted(documents(small_lengths())), cache=tmp_path / "l.npy")
    assert list(tmp_path.iterdir()) == []

    def fail(*args: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(lengths_file.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        index_lengths(documents([3]), cache=tmp_path / "l.npy")
    assert list(tmp_path.iterdir()) == []


def test_a_bar_is_shown_only_where_it_is_wanted(capsys: pytest.CaptureFixture[str]):
    index_lengths(documents([3, 4]))
    assert capsys.readouterr() == ("", "")
    assert index_lengths(documents([3, 4]), progress=True).tolist() == [3, 4]
    out, err = capsys.readouterr()
    assert out == ""
    assert "100%" in err
