"""What the leaves of some records seem to be, and which of them can be learned from or with."""

import dataclasses
import re
from typing import Any

import numpy as np

from loader.command.init.found import Found, made, spread
from loader.command.init.magic import is_image
from loader.records.errors import StorageError
from loader.records.spec import named_leaves
from loader.sources.storage.stores import is_address

_MOST_BYTES = 2**26  # of records that are looked at together
_LABELS = (
    *("label", "labels", "cls", "class", "target", "targets", "y", "category", "fine_label"),
    *("coarse_label", "stars", "rating", "digit", "class_id", "label_id", "sentiment"),
)
_TARGETS = ("target", "targets", "y", "label", "labels", "score", "value", "price", "rating")
_TEXTS = ("text", "content", "body", "document", "txt", "sentence", "review", "prompt", "caption")
_TOKENS = ("tokens", "input_ids", "token_ids", "ids")
_NUMBERING = re.compile(r"(.*[_-])?(id|idx|index|key|uid|number|timestamp|date|time)|__key__", re.I)
_PROSE = 16  # characters; shorter texts are more like names of classes
_MOST_CLASSES = 100_000
_LABELS_READ = 100_000  # of which just the labels are read
_RECORDS_READ = 2_000  # of which more is read


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A leaf of the records that were looked at; `kind` is in one word what it seems to be."""

    name: str
    kind: str  # image, pixels, text, bytes, sequence, even, integer, flag, number, vector, wide
    rows: np.ndarray

    @property
    def ragged(self) -> bool:
        """Whether its rows may differ in length, so that no device holds them as they are."""
        return self.rows.dtype == object and isinstance(self.rows[0], np.ndarray)

    @property
    def numbers_records(self) -> bool:
        """Whether its name says that it tells records apart, such as `id`."""
        return _NUMBERING.fullmatch(self.name) is not None

    @property
    def most(self) -> int:
        """The largest of its integers."""
        values = [np.max(row, initial=0) for row in self.rows]
        return int(max(values, default=0))


@dataclasses.dataclass(frozen=True)
class Looked:
    """The leaves of some records, how many there were, and what was wrong with others."""

    leaves: dict[str, Leaf]
    count: int
    bad: tuple[str, ...] = ()

    def of(self, *kinds: str) -> list[Leaf]:
        return [leaf for leaf in self.leaves.values() if leaf.kind in kinds]


def look(source: Any) -> Looked:
    """Look at some records of a source; bad ones are passed over, unless all are bad."""
    numbers = spread(source)
    first, bad = _gathered(source, numbers[:1])
    size = sum(_size(leaf) for _, leaf in named_leaves(first)) if first is not None else 1
    if size * len(numbers) > _MOST_BYTES:
        numbers = numbers[:: -(-size * len(numbers) // _MOST_BYTES)]
    rows, bad = _gathered(source, numbers)
    if rows is None:
        raise ValueError(f"none of {len(numbers)} records can be read: {bad[0]}")
    leaves = {name: Leaf(name, _kind(leaf), leaf) for name, leaf in _leaves_of(rows)}
    return Looked(leaves, len(numbers) - len(bad), tuple(bad))


def _leaves_of(rows: Any) -> list[tuple[str, np.ndarray]]:
    if not isinstance(rows, dict):
        rows = {"data": rows}  # as a batch has it
    return named_leaves(rows)


def _gathered(source: Any, numbers: np.ndarray) -> tuple[Any, list[str]]:
    """The rows of those that can be read, and what is wrong with the others."""
    try:
        return source.gather(numbers), []
    except StorageError:
        raise
    except ValueError:
        good, bad = [], []
        for number in numbers.tolist():
            try:
                source.gather(np.array([number]))
                good.append(number)
            except StorageError:
                raise
            except ValueError as error:
                bad.append(str(error))
        return (source.gather(np.array(good)) if good else None), bad


def _size(leaf: np.ndarray) -> int:
    if leaf.dtype != object:
        return leaf.nbytes
    return sum(row.nbytes if isinstance(row, np.ndarray) else len(row) for row in leaf)


def _kind(rows: np.ndarray) -> str:
    if rows.dtype == object:
        first = rows[0]
        if isinstance(first, str):
            return "text"
        if isinstance(first, bytes):
            return "image" if all(map(is_image, rows)) else "bytes"
        return _kind_of_lists(rows) if isinstance(first, np.ndarray) else "bytes"
    if rows.dtype.kind not in "biuf":
        return "bytes"
    if rows.dtype.itemsize > 4 and rows.dtype.kind in "iu" and np.abs(rows).max(initial=0) >= 2**31:
        return "wide"
    if rows.ndim == 1:
        return {"f": "number", "b": "flag"}.get(rows.dtype.kind, "integer")
    pixels = rows.ndim == 4 and rows.shape[-1] in (1, 3) and min(rows.shape[1:3]) >= 8
    if pixels or (rows.ndim == 3 and rows.dtype == np.uint8 and min(rows.shape[1:]) >= 8):
        return "pixels"
    return "vector"


def _kind_of_lists(rows: np.ndarray) -> str:
    """Lists that are all of one length are a vector, as far as that was seen."""
    if rows[0].ndim != 1 or rows[0].dtype.kind not in "iuf":
        return "bytes"
    if len(rows) > 1 and len(rows[0]) > 1 and len({len(row) for row in rows}) == 1:
        return "even"
    return "bytes" if rows[0].dtype.kind == "f" else "sequence"


def label_of(looked: Looked) -> tuple[Leaf | None, list[str]]:
    """The leaf that seems to be a class, and others that might be, if it was not by its name."""
    some = [
        leaf
        for leaf in looked.of("integer", "flag")
        if leaf.rows.min() >= 0 and leaf.most < _MOST_CLASSES
    ]
    for name in _LABELS:
        if named := [leaf for leaf in some if _last(leaf) == name]:
            return named[0], []
    some = [leaf for leaf in some if not leaf.numbers_records and _repeats(leaf)]
    return (some[0], [leaf.name for leaf in some]) if some else (None, [])


def largest(found: Found, name: str) -> tuple[int, int, bool] | None:
    """The largest label of many records, how many, and whether they are all there are.

    None where labels cannot be read without all else, or are far away.
    """
    far = any(is_address(str(value)) for value in found.source.values())
    if found.narrow is None or far:
        return None
    source = made(found.narrow(found.source, [name]))
    most = _RECORDS_READ if "parse" in found.source else _LABELS_READ
    numbers = np.arange(0, len(source), -(-len(source) // most))
    try:
        rows = source.gather(numbers)[name]
    except ValueError:  # a bad record
        return None
    return (
        max(int(np.max(row, initial=0)) for row in rows),
        len(numbers),
        len(numbers) == len(source),
    )


def target_of(looked: Looked, beside: Leaf | None) -> tuple[Leaf | None, list[str]]:
    """The numbers that seem to be what is to be found."""
    some = [leaf for leaf in looked.of("number", "vector", "integer") if leaf is not beside]
    for name in _TARGETS:
        if named := [leaf for leaf in some if _last(leaf) == name]:
            return named[0], []
    numbers = [leaf for leaf in some if leaf.kind == "number"]
    return (numbers[0], [leaf.name for leaf in numbers]) if numbers else (None, [])


def text_of(looked: Looked) -> Leaf | None:
    """The leaf that seems to be the text. A short one is not, where there are numbers."""
    some = [leaf for leaf in looked.of("text") if not leaf.numbers_records]
    for name in _TEXTS:
        if named := [leaf for leaf in some if _last(leaf) == name]:
            return named[0]
    if looked.of("number", "vector", "even"):
        some = [leaf for leaf in some if np.mean([len(row) for row in leaf.rows]) >= _PROSE]
    return max(some, key=lambda leaf: sum(map(len, leaf.rows)), default=None)


def tokens_of(looked: Looked) -> Leaf | None:
    """The leaf that seems to be a row of tokens: lists of one length only by their name."""
    some = looked.of("sequence")
    for name in _TOKENS:
        for leaf in (*some, *looked.of("vector", "even")):
            if _last(leaf) == name and leaf.rows[0].ndim == 1 and leaf.rows[0].dtype.kind in "iu":
                return leaf
    return some[0] if some else None


def _last(leaf: Leaf) -> str:
    return leaf.name.rpartition("/")[2].lower()


def _repeats(leaf: Leaf) -> bool:
    return len(leaf.rows) > 1 and len(np.unique(leaf.rows)) < len(leaf.rows)
