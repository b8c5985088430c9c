"""Which record is to blame when a batch cannot be made."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from loader.records.errors import RowError, SpecMismatch, mark_operator, operator_of
from loader.records.integers import Int64s
from loader.records.spec import Spec, is_text, named_leaves, spec_of, without_rows
from loader.records.stacking import row_spec, unstack
from loader.runtime.bad_records import BadRecord
from loader.sources.reading import knows_spec, locate, record_spec


def with_record(source: Any, record: int, error: RowError) -> ValueError:
    """The error of a row, naming its record."""
    named = ValueError(f"record {locate(source, record)}: {error}")
    mark_operator(named, operator_of(error))
    named.__cause__ = error.__cause__
    return named


def odd_record(source: Any, rows: Any, indices: Int64s) -> str | None:
    """In words, a record among these rows that is not what the source's records look like."""
    if rows is None:
        return None
    expected = record_spec(source)
    fixed = knows_spec(source)  # else lengths are only those of the first record
    for index, record in zip(indices.tolist(), unstack(rows), strict=True):
        like = spec_of(record)
        if jax.tree.structure(like) != jax.tree.structure(expected):
            continue
        for (name, got), want in zip(named_leaves(like), jax.tree.leaves(expected), strict=True):
            if got.dtype != want.dtype or (fixed and not _fits(got.shape, want.shape)):
                return (
                    f"record {locate(source, index)}: leaf {name!r} is {got.dtype}"
                    f"{list(got.shape)} where records of this source are {want.dtype}"
                    f"{list(want.shape)}: write that record anew, or make records alike when they "
                    "are parsed"
                )
    return None


def unlike_record(
    source: Any, indices: Int64s, alone: Callable[[int], BadRecord | None], row: int | None = None
) -> str | None:
    """In words, the first of these records that is unlike others all by itself, if one is.

    `alone` tries a row alone. Of a `row` that is at fault by itself there is nothing to say: what
    it was told is true. Of one that is not, it was said only beside the others.
    """
    with contextlib.suppress(Exception):  # then what the batch has raised is all there is
        if row is not None and alone(row) is not None:
            return None
        for number, index in enumerate(indices.tolist()):
            bad = alone(number)
            if bad is not None and bad.operator == "shape":
                return (
                    f"record {locate(source, index)}: {bad.error}: make all records alike, with an "
                    "operator such as Resize, or when they are parsed"
                )
    return None


def refuse_unlike_records(rows: Any, expected: Spec) -> None:
    """Raise `SpecMismatch` for rows that are not built as the records of their source.

    Lengths may be others. An operator might take such records too, but whether they can be stacked
    with their neighbours must not decide what becomes of them.
    """
    if type(rows) is type(expected) is dict and rows.keys() == expected.keys():
        for key, leaf in rows.items():  # most are dicts of arrays: this is asked for every batch
            want = expected[key]
            if type(leaf) is not np.ndarray or type(want) is not jax.ShapeDtypeStruct:
                break
            if leaf.dtype.hasobject or leaf.dtype != want.dtype or leaf.ndim != want.ndim + 1:
                break
        else:
            return
    got = row_spec(rows)
    if jax.tree.structure(got) != jax.tree.structure(expected):
        raise SpecMismatch(f"the record has the leaves {_names(got)}, others {_names(expected)}")
    for (name, leaf), want in zip(named_leaves(got), jax.tree.leaves(expected), strict=True):
        both_texts = is_text(leaf.dtype) and is_text(want.dtype)
        if len(leaf.shape) != len(want.shape) or (leaf.dtype != want.dtype and not both_texts):
            raise SpecMismatch(_unlike(name, leaf, want))


def unlike_row(rows: Any, spec: Spec) -> str | None:
    """In words, what is wrong with the only row, after the operators; None if it is as it should
    be."""
    got = without_rows(spec_of(rows))
    if jax.tree.structure(got) != jax.tree.structure(spec):
        return f"the record has the leaves {_names(got)}, others {_names(spec)}"
    for (name, leaf), want in zip(named_leaves(got), jax.tree.leaves(spec), strict=True):
        may_be_ragged = is_text(want.dtype) and leaf.shape
        if (leaf.shape, leaf.dtype) != (want.shape, want.dtype) and not may_be_ragged:
            return _unlike(name, leaf, want)
    return None


def _names(spec: Spec) -> list[str]:
    return [name for name, _ in named_leaves(spec)]


def _unlike(name: str, leaf: Any, want: Any) -> str:
    return (
        f"leaf {name!r} is {leaf.dtype}{list(leaf.shape)} where other records have "
        f"{want.dtype}{list(want.shape)}"
    )


def _fits(shape: tuple[int, ...], spec: tuple[int | None, ...]) -> bool:
    return len(shape) == len(spec) and all(
        want in (None, size) for size, want in zip(shape, spec, strict=True)
    )
