"""The leaves of a batch that are read rather than looked at: texts, and tokens as text or numbers.

Tokens are integers in one sequence for each row. Beside them may stand `segment_ids`, `positions`
and `loss_mask`, of the same shape, which say how a row is to be read and are not shown themselves.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from loader.command.peek.runs import LOSS_MASK, Decode, Run, text_run, token_runs
from loader.records.spec import is_text
from loader.sources.packing.packed_rows import POSITIONS, SEGMENT_IDS

_BESIDE = (SEGMENT_IDS, POSITIONS, LOSS_MASK)


@dataclasses.dataclass(frozen=True)
class TextRow:
    """One row of a leaf, in runs; None if the row is padding (`valid_mask` is False)."""

    row: int
    runs: tuple[Run, ...] | None

    @property
    def places(self) -> int:
        return sum(run.places for run in self.runs or ())

    @property
    def padding(self) -> int:
        return sum(run.places for run in self.runs or () if run.is_padding)

    @property
    def uncounted(self) -> int:
        return sum(run.places for run in self.runs or () if not run.counts)

    @property
    def segments(self) -> list[str]:
        """The text of each segment."""
        texts: dict[int, str] = {}
        for run in self.runs or ():
            if not run.is_padding:
                texts[run.segment] = texts.get(run.segment, "") + run.text
        return list(texts.values())

    def to_json(self) -> dict[str, Any]:
        names = ("row", "segments", "places", "padding", "uncounted")
        return {"masked": self.runs is None, **{name: getattr(self, name) for name in names}}


@dataclasses.dataclass(frozen=True)
class TextLeaf:
    """The first rows of a leaf, what stands `beside` it, and how it is shown."""

    name: str
    shown_as: str
    rows: tuple[TextRow, ...]
    beside: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        rows = [row.to_json() for row in self.rows]
        return {"leaf": self.name, "shown_as": self.shown_as, "rows": rows}


@dataclasses.dataclass(frozen=True)
class Packing:
    """How full packed rows are: the part of their places that is padding, and segments by row.

    The places of masked rows, which have no segments, are not counted.
    """

    name: str
    padding: float | None
    segments: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {"leaf": self.name, "padding": self.padding, "segments": list(self.segments)}


def texts_of(
    leaves: Mapping[str, Any], valid: np.ndarray, decode: Decode | None
) -> Iterator[TextLeaf]:
    """Every leaf that is text or tokens, in as many rows as `valid` speaks of."""
    for name, leaf in leaves.items():
        if _are_tokens(leaf):
            if _last(name) not in _BESIDE:
                yield _token_leaf(name, leaves, valid, decode)
        elif leaf.ndim and is_text(leaf.dtype):
            rows = [(text_run(leaf[row]),) if real else None for row, real in enumerate(valid)]
            yield TextLeaf(name, "text", _numbered(rows))


def packings_of(leaves: Mapping[str, Any], valid: np.ndarray) -> Iterator[Packing]:
    """How full the rows are of everything that is packed."""
    for name, leaf in leaves.items():
        if _last(name) == SEGMENT_IDS and leaf.ndim == 2 and _are_tokens(leaf):
            segments = [len(set(row[row > 0].tolist())) for row in leaf]
            real = leaf[valid]
            yield Packing(name, float((real == 0).mean()) if real.size else None, tuple(segments))


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _are_tokens(leaf: Any) -> bool:
    if leaf.dtype == object and leaf.ndim == 1:  # of different lengths, None where masked
        rows = [row for row in leaf if row is not None]
        return bool(rows) and all(_are_tokens_of_a_row(row) for row in rows)
    return leaf.ndim == 2 and isinstance(leaf, np.ndarray) and leaf.dtype.kind in "iu"


def _are_tokens_of_a_row(row: Any) -> bool:
    return isinstance(row, np.ndarray) and row.ndim == 1 and row.dtype.kind in "iu"


def _numbered(rows: list[tuple[Run, ...] | None]) -> tuple[TextRow, ...]:
    return tuple(TextRow(number, runs) for number, runs in enumerate(rows))


def _token_leaf(
    name: str, leaves: Mapping[str, Any], valid: np.ndarray, decode: Decode | None
) -> TextLeaf:
    leaf, parent = leaves[name], name[: len(name) - len(_last(name))]
    others = {other: leaves.get(parent + other) for other in _BESIDE}
    beside = {
        k: v for k, v in others.items() if v is not None and v.shape == leaf.shape and v.ndim == 2
    }

    def rows(decode: Decode | None) -> tuple[TextRow, ...]:
        runs = [
            tuple(token_runs(leaf[row], {k: v[row] for k, v in beside.items()}, decode))
            if real
            else None
            for row, real in enumerate(valid)
        ]
        return _numbered(runs)

    if decode is None:
        return TextLeaf(name, "numbers", rows(None), tuple(beside))
    try:
        return TextLeaf(name, "decoded text", rows(decode), tuple(beside))
    except Exception as error:  # of any kind: a tokenizer need not know what to do with these
        reason = f"numbers, since they do not decode ({type(error).__name__}: {error})"
        return TextLeaf(name, reason, rows(None), tuple(beside))
