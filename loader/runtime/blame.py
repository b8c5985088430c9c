"""Which record is to blame when a batch cannot be made."""

from typing import Any

import jax

from loader.records.errors import RowError
from loader.records.integers import Int64s
from loader.records.spec import named_leaves, spec_of
from loader.records.stacking import unstack
from loader.sources.reading import knows_spec, locate, record_spec


def with_record(source: Any, record: int, error: RowError) -> ValueError:
    """The error of a row, naming its record."""
    named = ValueError(f"record {locate(source, record)}: {error}")
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


def _fits(shape: tuple[int, ...], spec: tuple[int | None, ...]) -> bool:
    return len(shape) == len(spec) and all(
        want in (None, size) for size, want in zip(shape, spec, strict=True)
    )
