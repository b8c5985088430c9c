"""Records as bytes, each with a digest by which it is known when it is read back."""

import hashlib
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from loader.records.errors import is_of_storage
from loader.records.integers import Int64s
from loader.records.spec import Spec, named_leaves
from loader.records.stacking import is_ragged, unstack
from loader.sources.reading import locate, read_rows

DIGEST_BYTES = 16


def encoded(source: Any, parse: Any, records: Int64s) -> list[np.ndarray]:
    """Of each record its digest, and then the bytes of which `parse` makes the record again."""
    rows = _rows(source, records)
    if (spec := getattr(parse, "spec", None)) is not None:
        _refuse_other_kinds(source, rows, spec, records)
    made = []
    for number, known, record in zip(records, digests_of(rows), unstack(rows), strict=True):
        try:
            content = parse.encode(record)
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            raise ValueError(
                f"record {locate(source, int(number))} cannot be written ({words}): make a dict of "
                "numbers, arrays of numbers, texts or bytes of it, by an operator"
            ) from error
        made.append(np.frombuffer(known + content, np.uint8))
    return made


def digests(source: Any, records: Int64s) -> np.ndarray:
    """The digest of each record, a row of bytes each."""
    found = b"".join(digests_of(_rows(source, records)))
    return np.frombuffer(found, np.uint8).reshape(len(records), DIGEST_BYTES)


def contents(kept: Iterable[np.ndarray]) -> Iterable[bytes]:
    """The bytes of records that were `encoded`, without their digests."""
    return (record[DIGEST_BYTES:].tobytes() for record in kept)


def _rows(source: Any, records: Int64s) -> Any:
    try:
        rows, there = read_rows(source, records, ragged=True)
    except Exception as error:
        if not is_of_storage(error):
            error.add_note(f"(while reading records {records[0]} to {records[-1]})")
        raise
    if there is not None:
        missing = locate(source, int(records[~there][0]))
        raise ValueError(
            f"record {missing} is filtered out, and only records that are there can be written: "
            "choose them by a source of kind Filtered or Subset"
        )
    return rows


def digests_of(rows: Any) -> list[bytes]:
    """For each row a digest of all its bytes, of the names of its leaves, dtypes and shapes."""
    columns = [_column(name, leaf) for name, leaf in named_leaves(rows)]
    return [
        hashlib.sha256(b"".join(leaves)).digest()[:DIGEST_BYTES]
        for leaves in zip(*columns, strict=True)
    ]


def _column(name: str, rows: Any) -> list[bytes]:
    """The rows of a leaf, so that no two that differ have the same bytes."""
    if not isinstance(rows, np.ndarray):
        raise ValueError(
            f"leaf {name!r} is a {type(rows).__name__}, which no file holds as it is: make numbers "
            "of it by an operator"
        )
    if rows.dtype.hasobject:
        kinds = [_content(leaf) for leaf in rows]
    else:
        kind = f"{rows.dtype}{rows.shape[1:]}"
        kinds = [(kind, row.tobytes()) for row in rows]
    return [f"{name}\0{kind}\0{len(content)}\0".encode() + content for kind, content in kinds]


def _content(leaf: Any) -> tuple[str, bytes]:
    if type(leaf) is str:
        return "str", leaf.encode("utf-8", "surrogatepass")
    if type(leaf) is bytes:
        return "bytes", leaf
    array = np.asarray(leaf)
    kind = "" if isinstance(leaf, np.ndarray | np.generic) else type(leaf).__name__
    kind = f"{kind}{array.dtype}{array.shape}"
    if array.dtype.hasobject:
        return kind, repr([_content(item) for item in array.ravel().tolist()]).encode()
    return kind, array.tobytes()


def _refuse_other_kinds(source: Any, rows: Any, spec: Spec, records: Int64s) -> None:
    """Raise `ValueError` for a record that is not as the source says all of them are."""
    for (name, leaf), want in zip(named_leaves(rows), jax.tree.leaves(spec), strict=False):
        if (leaf.shape[1:], leaf.dtype) == (want.shape, want.dtype):
            continue
        wrong = 0
        if is_ragged(leaf):
            wrong = next(n for n, row in enumerate(leaf) if row.shape != want.shape)
        came = leaf[wrong]
        raise ValueError(
            f"leaf {name!r} of record {locate(source, int(records[wrong]))} is "
            f"{came.dtype}{list(came.shape)}, and the source says that all are "
            f"{want.dtype}{list(want.shape)}: let its record_spec() say what they are, with None "
            "for a length that differs, or bring them to one kind by an operator"
        )
