"""Lines of JSON: an object on each line of text files."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loader.records.integers import Int64s
from loader.records.spec import Spec
from loader.records.stacking import row_spec, stack
from loader.sources.reading import locate
from loader.sources.source import Source
from loader.sources.storage.paths import Path, Paths
from loader.sources.storage.stored_files import StoredPieces, StoredSpans
from loader.sources.text_lines.text_lines import TextLinesSource

_LINES_SHOWN = 4  # more than one, so that it is seen whether lists differ in length
_ALLOWED = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}  # in JSON, by kind of dtype
_DTYPES = {  # of a leaf, by the types of what it holds
    frozenset({bool}): np.dtype(np.bool_),
    frozenset({int}): np.dtype(np.int64),
    frozenset({float}): np.dtype(np.float64),
    frozenset({int, float}): np.dtype(np.float64),
}


class JSONLinesSource(Source):
    """The object on every line of some UTF-8 files, as a record of these leaves.

    `paths`, `index` and `cache` are those of `TextLinesSource`. `leaves` names the keys to take;
    the others are left out. As a list, `["text", "label"]`, the first line says what each leaf is,
    and it is the same on every line: texts stay texts, whole numbers become int64, other numbers
    float64, true and false bool. Lists of numbers become arrays, and a ragged leaf where their
    lengths differ. As a dict, `{"text": str, "label": "int32"}`, numbers and lists become what it
    says; a value that this cannot hold is an error, as is a line that is not JSON or lacks a leaf.
    """

    owned_rows = True
    thread_safe = True

    def __init__(
        self,
        paths: Paths,
        leaves: Sequence[str] | Mapping[str, Any],
        *,
        index: Path | None = None,
        cache: Any = None,
    ) -> None:
        given = _checked_leaves(leaves)
        self._lines = TextLinesSource(paths, index=index, cache=cache)
        first = self._object(0, self._lines[0]["text"])
        self._leaves = [self._seen(name, dtype, first) for name, dtype in given.items()]
        self._spec = row_spec(self.gather(np.arange(min(len(self), _LINES_SHOWN))))

    def __len__(self) -> int:
        return len(self._lines)

    def gather(self, indices: Int64s) -> dict[str, np.ndarray]:
        numbers = indices.tolist()
        lines = self._lines.gather(indices)["text"].tolist()
        records = [self._record(*line) for line in zip(numbers, lines, strict=True)]
        return stack(records, numbers, locate=functools.partial(locate, self), ragged=True)

    def _record(self, number: int, line: str) -> dict[str, Any]:
        values = self._object(number, line)
        record = {}
        for leaf in self._leaves:
            try:
                record[leaf.name] = leaf.value_in(values)
            except ValueError as error:
                raise self._bad(number, str(error)) from error
        return record

    def _object(self, number: int, line: str) -> dict[str, Any]:
        """What the line holds."""
        if not line.strip():
            raise self._bad(number, "is empty: take it out of the file")
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._bad(number, f"is not JSON: {error}; it begins {line[:40]!r}") from error
        if not isinstance(value, dict):
            came = f"is a {type(value).__name__}, {line[:40]!r}"
            raise self._bad(number, f'{came}: a line must be an object, such as {{"text": "..."}}')
        return value

    def _seen(self, name: str, dtype: Any, first: Mapping[str, Any]) -> "_Leaf":
        """The leaf as the first line shows it, in the dtype that was asked for, if one was."""
        try:
            return _leaf_like(name, dtype, first)
        except ValueError as error:
            raise self._bad(0, str(error)) from error

    def _bad(self, number: int, why: str) -> ValueError:
        return ValueError(f"record {locate(self, number)} {why}")

    def stored_spans(self, indices: Int64s) -> StoredSpans:
        return self._lines.stored_spans(indices)

    def stored_pieces(self, indices: Int64s) -> StoredPieces:
        return self._lines.stored_pieces(indices)

    def record_spec(self) -> Spec:
        return self._spec

    def blocks(self) -> Int64s:
        """The first line of each file."""
        return self._lines.blocks()

    def fingerprint(self) -> dict[str, Any]:
        leaves = [[leaf.name, leaf.words] for leaf in self._leaves]
        return {**self._lines.fingerprint(), "leaves": sorted(leaves)}

    def locate(self, record: int) -> str:
        return self._lines.locate(record)

    def __repr__(self) -> str:
        leaves = ", ".join(f"{leaf.name}: {leaf.words}" for leaf in self._leaves)
        return f"JSONLinesSource({len(self._lines.paths)} files, {len(self)} lines of {leaves})"


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """What a key of every line must hold: a text (no dtype), a number, or a list of numbers."""

    name: str
    dtype: np.dtype[Any] | None
    ndim: int = 0

    @property
    def words(self) -> str:
        if self.dtype is None:
            return "text"
        return f"{self.dtype}[{', '.join('?' * self.ndim)}]" if self.ndim else str(self.dtype)

    def value_in(self, values: Mapping[str, Any]) -> Any:
        """The value of this leaf, as it is stacked; `ValueError` says why there is none."""
        value = _value_of(self.name, values)
        if self.dtype is None:
            if type(value) is str:
                return value
            raise self._unfit(value)
        if not _kinds_in(value) <= _ALLOWED[self.dtype.kind]:
            raise self._unfit(value)
        try:
            with np.errstate(over="ignore"):  # it is looked at below
                array = np.array(value, self.dtype)
        except (ValueError, OverflowError) as error:  # lists of different lengths; too large
            raise self._unfit(value) from error
        if value == []:
            array = array.reshape((0,) * max(1, self.ndim))
        unbounded = self.dtype.kind == "f" and np.isinf(array).any()
        if array.ndim != self.ndim or (unbounded and not np.isinf(np.array(value, float)).any()):
            raise self._unfit(value)
        return array if self.ndim else array[()]

    def _unfit(self, value: Any) -> ValueError:
        shown = json.dumps(value)
        shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
        return ValueError(
            f"has {shown} as leaf {self.name!r}, which is {self.words} in this source: correct the "
            f'line, or say what the leaf is, such as leaves={{"{self.name}": "float32"}}, and str '
            "for a text"
        )


def _checked_leaves(leaves: Any) -> dict[str, Any]:
    """The names, each with a dtype, `str` for a text, or None where none was given."""
    words = 'a list of names, ["text"], or a dict of names and dtypes, {"text": str, "id": "int32"}'
    if not isinstance(leaves, Mapping | list | tuple) or not leaves:
        raise ValueError(f"leaves must be {words}, got {leaves!r}")
    if not all(isinstance(name, str) for name in leaves) or len(set(leaves)) < len(leaves):
        raise ValueError(f"leaves must be {words}, of different names, got {leaves!r}")
    if not isinstance(leaves, Mapping):
        return dict.fromkeys(leaves)
    checked: dict[str, Any] = {}
    for name, given in leaves.items():
        try:
            dtype = np.dtype(given)
        except TypeError:
            dtype = None
        if given is None or dtype is None or dtype.kind not in {*_ALLOWED, "U"}:
            raise ValueError(
                f"leaves gives {name!r} the dtype {given!r}: it must be one of numpy's for "
                "numbers, such as 'int32', 'float32' or 'bool', or str for a text"
            )
        checked[name] = str if dtype.kind == "U" else dtype
    return checked


def _leaf_like(name: str, dtype: Any, values: Mapping[str, Any]) -> _Leaf:
    """The leaf that holds values like the one in this object, of this dtype if one is given."""
    value, ndim = _value_of(name, values), 0
    inner = value
    while type(inner) is list:
        ndim += 1
        inner = inner[0] if inner else None
    kinds = _kinds_in(value)
    if dtype is str or (dtype is None and kinds == {str} and not ndim):
        return _Leaf(name, None)
    dtype = dtype or _DTYPES.get(frozenset(kinds))
    if dtype is None:
        raise ValueError(
            f"has {json.dumps(value)[:60]} as leaf {name!r}, which does not show what the leaf is: "
            f'a text, a number, or a list of numbers; give leaves={{"{name}": "int32"}}, or take '
            "the leaf out"
        )
    return _Leaf(name, dtype, ndim)


def _value_of(name: str, values: Mapping[str, Any]) -> Any:
    if name not in values:
        raise ValueError(f"has no leaf {name!r}: it has {sorted(values)}")
    return values[name]


def _kinds_in(value: Any) -> set[type]:
    """The types of all that is in these lists, or of the value itself."""
    if type(value) is not list:
        return {type(value)}
    kinds = set(map(type, value))
    if list in kinds:
        kinds = kinds - {list}
        kinds = kinds.union(*(_kinds_in(item) for item in value))
    return kinds
