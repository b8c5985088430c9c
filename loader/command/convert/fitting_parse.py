"""The parse that gives records back as they are: `RawArrays` where it can, else `Msgpack`.

It is tried on some records before all of them are written, as a configuration would make it.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from loader.command.config.kinds import Kinds
from loader.command.convert.formats import made_of
from loader.command.convert.record_bytes import contents, digests_of, encoded
from loader.records.errors import is_of_storage
from loader.records.spec import RaggedSpec, is_text, named_leaves
from loader.records.stacking import row_spec, stack
from loader.sources.reading import read_rows, record_spec, sampled_indices


class Fitting(NamedTuple):
    """A parse, the table that makes it, and how many bytes it makes of a record on the average."""

    parse: Any
    table: dict[str, Any]
    record_bytes: float


def fitting_parse(source: Any, kinds: Kinds) -> Fitting:
    """What writes and reads the records of a source; `ValueError` if nothing does."""
    spec, problem = record_spec(source), None
    tables: list[dict[str, Any]] = [{"kind": "Msgpack"}]
    if not any(isinstance(s, RaggedSpec) or is_text(s.dtype) for s in jax.tree.leaves(spec)):
        tables.insert(0, {"kind": "RawArrays", "spec": jax.tree.map(_in_words, spec)})
    for table in tables:
        try:
            # This fails where the names of leaves are words of configurations, such as "kind".
            parse = made_of("parse", table, kinds)
            return Fitting(parse, table, _tried(source, parse))
        except ValueError as error:
            if is_of_storage(error):
                raise
            problem = error
    assert problem is not None, "Msgpack can always be made"
    raise problem


def _tried(source: Any, parse: Any) -> float:
    """The mean size of some records; `ValueError` if they are others when they are read back."""
    records = np.array(sampled_indices(len(source)))
    blobs = list(contents(encoded(source, parse, records)))
    rows, _ = read_rows(source, records, ragged=True)
    try:
        back = stack(list(map(parse, blobs)), records.tolist(), ragged=True)
        same = jax.tree.structure(rows) == jax.tree.structure(back)
        same = same and digests_of(rows) == digests_of(back)
        words = f"would be read back as {_kinds_of(back)}"
    except Exception as error:
        same, words = False, f"could not be read back ({type(error).__name__}: {error})"
    if not same:
        raise ValueError(
            f"records are {_kinds_of(rows)} and {words}: make a dict of numbers, arrays of "
            "numbers, texts or bytes of them, by an operator"
        )
    return sum(map(len, blobs)) / len(blobs)


def _in_words(leaf: Any) -> str:
    """The leaf of a spec as a configuration has it."""
    return f"{leaf.dtype}{list(leaf.shape)}" if leaf.shape else str(leaf.dtype)


def _kinds_of(rows: Any) -> str:
    leaves = named_leaves(row_spec(rows))
    return ", ".join(f"{name} {_in_words(leaf)}".strip() for name, leaf in leaves)
