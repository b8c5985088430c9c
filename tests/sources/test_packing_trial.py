"""10,000 documents of log-normal lengths, packed in every way, beside a plain reference."""

import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

from loader import DataLoader, GrainSource, Mixture, On, Packed, Processes, Shuffle, Subset, Threads
from loader.testing import assert_same_batch
from operators import MapBatch

ROW = 1024
README = Path(__file__).parent.parent.parent / "loader" / "README.md"
WAYS: dict[str, dict[str, Any]] = {
    "best": {"long": "split"},
    "first": {"long": "split", "fit": "first"},
    "few segments": {"long": "split", "most_segments": 4},
    "record positions": {"long": "split", "positions": "record"},
    "concat": {"mode": "concat"},
    "concat, record positions": {"mode": "concat", "positions": "record"},
}
MOST_PADDING = {"best": 0.001, "first": 0.001, "record positions": 0.001, "few segments": 0.4}


class Documents:
    """Token n of all documents together is n + 1: no two are alike."""

    thread_safe = True

    def __init__(self, count: int = 10_000) -> None:
        drawn = np.exp(np.random.default_rng(0).normal(np.log(120), 1, count))
        self.lengths = np.clip(drawn, 0, 5_000).astype(np.int64)
        self.lengths[[3, 700]] = [0, 3 * ROW]
        self.bounds = np.concatenate([[0], np.cumsum(self.lengths)])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"tokens": np.arange(self.bounds[index], self.bounds[index + 1], dtype=np.int32) + 1}


def pieces_of(row: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The tokens of each segment: they are at the front, numbered from 1, and all else is zero."""
    tokens, ids = row["tokens"], row["segment_ids"]
    used = int((ids > 0).sum())
    assert not tokens[used:].any()
    assert not ids[used:].any()
    assert not row["positions"][used:].any()
    edges = [0, *(np.flatnonzero(np.diff(ids[:used])) + 1).tolist(), used]
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    assert [ids[part][0] for part in parts] == list(range(1, len(parts) + 1))
    return [tokens[part] for part in parts]


def check_rows(rows: list[dict[str, np.ndarray]], source: Documents, how: dict[str, Any]) -> None:
    """Every token once, in order within its document; positions as asked; as few cuts as can be."""
    seen: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        pieces, done = pieces_of(row), 0
        assert len(pieces) <= how.get("most_segments", ROW)
        for piece in pieces:
            first, count = int(piece[0]) - 1, len(piece)
            document = int(np.searchsorted(source.bounds, first, side="right")) - 1
            start = first - int(source.bounds[document])
            assert np.array_equal(piece, np.arange(first + 1, first + 1 + count))
            begin = start if how.get("positions") == "record" else 0
            places = row["positions"][done : done + count]
            assert np.array_equal(places, np.arange(begin, begin + count))
            seen.setdefault(document, []).append((start, start + count))
            done += count
    for document, length in enumerate(source.lengths.tolist()):
        spans = sorted(seen.get(document, []))
        assert [a for a, _ in spans] == [0, *(b for _, b in spans)][: len(spans)]
        assert (spans[-1][1] if spans else 0) == length
        if how.get("mode") != "concat":
            assert len(spans) == -(-length // ROW)


def rows_in(batches: Any) -> list[dict[str, np.ndarray]]:
    rows = []
    for batch in batches:
        there = np.flatnonzero(batch.pop("valid_mask"))
        rows += [{name: leaf[n] for name, leaf in batch.items()} for n in there]
    return rows


@pytest.mark.parametrize("way", WAYS)
def test_each_way_packs_every_token_once_and_any_row_is_known_by_its_number(way: str):
    source, how = Documents(), WAYS[way]
    packed = Packed(source, source.lengths, ROW, **how)
    with DataLoader(packed, batch_size=96, prefetch=0) as loader:
        rows = rows_in(loader.host_batches())
    check_rows(rows, source, how)
    if how.get("mode") == "concat":
        joined = np.concatenate([row["tokens"] for row in rows])
        total = int(source.bounds[-1])
        np.testing.assert_array_equal(joined[:total], np.arange(1, total + 1))
        assert len(joined) - total < ROW
    padding = sum(int((row["segment_ids"] == 0).sum()) for row in rows) / (len(rows) * ROW)
    assert padding == pytest.approx(1 - packed.fraction_real)
    assert padding < MOST_PADDING.get(way, 0.001), f"{way}: {padding:.3%} of the rows is padding"
    again = Packed(source, source.lengths, ROW, **how)
    for number in np.random.default_rng(1).integers(0, len(rows), 20).tolist():
        assert_same_batch(again[number], rows[number], f"row {number} alone")


@pytest.mark.parametrize("way", ["best", "few segments", "concat"])
def test_threads_hosts_and_a_restart_in_the_middle_change_no_packed_row(way: str):
    source = Documents()

    def make(**settings: Any) -> DataLoader:
        packed = Packed(source, source.lengths, ROW, **WAYS[way])
        return DataLoader(packed, batch_size=96, order=Shuffle(5), **settings)

    with make(prefetch=0) as plain:
        expected = list(plain.host_batches())
    middle = len(expected) // 2
    with make(workers=Threads(2)) as threaded:
        batches = threaded.host_batches()
        for step in range(middle):
            assert_same_batch(next(batches), expected[step], f"batch {step} of two threads")
        state = threaded.get_state()
    with make() as resumed:
        resumed.set_state(state)
        for step, batch in enumerate(resumed.host_batches(), middle):
            assert_same_batch(batch, expected[step], f"batch {step} after a restart")
    for rows in np.split(np.arange(96), 3):  # those of three processes
        part = make().pipeline.batch(middle, rows)
        whole = {name: leaf[rows] for name, leaf in expected[middle].items()}
        assert_same_batch(part, whole, f"rows {rows[0]} to {rows[-1]}")


@pytest.mark.parametrize("kind", [lambda: Processes(1), lambda: On(ThreadPoolExecutor(2))])
def test_other_kinds_of_workers_and_a_restart_change_no_row_of_any_way(kind: Any):
    source = Documents()
    ways = {way: Packed(source, source.lengths, ROW, **how) for way, how in WAYS.items()}

    def make(**settings: Any) -> DataLoader:
        mixture = Mixture({way: (packed, 1) for way, packed in ways.items()}, seed=3)
        return DataLoader(mixture, batch_size=96, steps=8, **settings)

    with make(prefetch=0) as plain:
        expected = list(plain.host_batches())
    with make(workers=kind()) as loader:
        for step, batch in zip(range(4), loader.host_batches(), strict=False):
            assert_same_batch(batch, expected[step], f"batch {step}")
        state = loader.get_state()
        loader.reset()
        loader.set_state(state)
        for step, batch in enumerate(loader.host_batches(), 4):
            assert_same_batch(batch, expected[step], f"batch {step} after a restart")


# Beside Grain and MaxText


def recipe() -> Any:
    """The function on the page."""
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    (text,) = [text for text in examples if "def maxtext" in text]
    names: dict[str, Any] = {}
    exec(text, names)
    names["loader"].close()  # the function holds all names of the example, and so its threads
    return names["maxtext"]


def as_maxtext_packs(dataset: Any, row_length: int) -> list[dict[str, np.ndarray]]:
    """What MaxText's pipeline gives with grain_packing_type concat_then_split: row by row."""
    both = dataset.map(lambda record: {"inputs": record["tokens"], "targets": record["tokens"]})
    lengths = {"inputs": row_length, "targets": row_length}
    rows = []
    for row in grain.experimental.ConcatThenSplitIterDataset(
        both.to_iter_dataset(), length_struct=lengths
    ):
        targets = np.append(row["targets"][1:], np.int32(0))
        segments = np.append(row["targets_segment_ids"][1:], np.int32(0))
        rows.append(
            {
                "inputs": row["inputs"],
                "inputs_segmentation": row["inputs_segment_ids"],
                "inputs_position": row["inputs_positions"],
                "targets": targets,
                "targets_segmentation": np.where(targets != 0, segments, 0),
                "targets_position": row["targets_positions"],
            }
        )
    return rows


@pytest.mark.parametrize("shuffled", [False, True])
def test_concat_and_the_recipe_give_the_rows_of_maxtext(shuffled: bool):
    source = Documents(1000)
    kept = Subset(source, np.flatnonzero(source.lengths))  # Grain numbers empty documents, too
    lengths = source.lengths[source.lengths > 0]
    dataset = grain.MapDataset.source(kept)
    if shuffled:
        numbers = Shuffle(7, match_grain=True).records(np.arange(len(kept)), len(kept))
        kept, lengths, dataset = Subset(kept, numbers), lengths[numbers], dataset.shuffle(7)
    theirs = as_maxtext_packs(dataset, 512)
    for own in (kept, GrainSource(grain.MapDataset.source(kept), varies_by_epoch=False)):
        packed = Packed(own, lengths, 512, mode="concat")
        with DataLoader(packed, batch_size=50, operators=[MapBatch(recipe())]) as loader:
            ours = rows_in(loader.host_batches())
        assert len(ours) == len(theirs) == len(packed)
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same_batch(mine, other, f"row {number}")
