"""Sources made of sources say which pieces of stored files their records need."""

from pathlib import Path
from typing import Any

import numpy as np

from loader import (
    ArraySource,
    Filtered,
    JSONLinesSource,
    Mapped,
    Mixture,
    Packed,
    Subset,
    TextLinesSource,
    index_lengths,
)
from loader.sources.reading import read_rows, stored_pieces
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET


def far(store: FakeStore, name: str, count: int) -> JSONLinesSource:
    """A source with a file, which is a piece, for each record."""
    for n in range(count):
        tokens = list(range(n + 1))
        store.put(BUCKET, f"{name}/{n:02}.jsonl", f'{{"tokens": {tokens}}}'.encode())
    return JSONLinesSource(f"gs://{BUCKET}/{name}/*.jsonl", {"tokens": "int32"})


def read_by(store: FakeStore, source: Any, indices: np.ndarray) -> set[str]:
    with store.logged() as log:
        read_rows(source, indices, ragged=True)
    return set(log.of("read").keys)


def said_by(source: Any, indices: np.ndarray) -> set[str]:
    found = stored_pieces(source, indices)
    return {
        files.paths[files.spans_of(np.array([piece]))[0][0]].removeprefix(f"gs://{BUCKET}/")
        for files, pieces in found
        for piece in pieces.tolist()
    }


def long_enough(record: dict[str, Any]) -> bool:
    return len(record["tokens"]) > 3


def doubled(record: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": record["tokens"] * 2}


def test_what_sources_made_of_sources_need_is_what_they_read(store: FakeStore):
    web, books = far(store, "web", 11), far(store, "books", 5)
    sources = [
        Subset(web, [9, 2, 4, 0, 7]),
        Filtered(web, long_enough),
        Mapped(web, [doubled]),
        Mixture({"web": (web, 1), "books": (books, 2)}, seed=0),
        Packed(web, index_lengths(web), 16),
        Mixture({"some": (Subset(web, [3, 1]), 1), "books": (books, 1)}, seed=3),
    ]
    for source in sources:
        for indices in (np.array([1, 4, 2]), np.array([3])):
            assert said_by(source, indices) == read_by(store, source, indices) != set()


def test_what_is_not_stored_needs_nothing():
    assert stored_pieces(ArraySource(np.arange(5)), np.array([1])) == []
    assert stored_pieces(Subset(np.arange(5), [1, 2]), np.array([1])) == []


def test_the_pieces_of_local_files_are_known_without_looking_at_them(tmp_path: Path):
    for n in range(5):
        (tmp_path / f"{n}.txt").write_text(f"text {n}")
    source = TextLinesSource(f"{tmp_path}/*.txt")
    for n in range(5):
        (tmp_path / f"{n}.txt").unlink()
    ((files, pieces),) = stored_pieces(source, np.array([3, 1, 3]))
    assert pieces.tolist() == [1, 3]
    assert files.num_pieces == 5
