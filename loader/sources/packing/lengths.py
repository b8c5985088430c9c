"""The lengths of all records of a source, found in one pass and kept in a file."""

import hashlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loader.records.digest import digest
from loader.records.integers import Int64s
from loader.records.whole_file import write_whole
from loader.sources.as_source import as_source
from loader.sources.packing.packed import refuse_varying
from loader.sources.packing.packed_rows import packed_leaves, token_counts
from loader.sources.packing.row_plan import Ints, checked_lengths
from loader.sources.reading import fingerprint, read_rows

_RECORDS_AT_ONCE = 256
_RECORDS_CHECKED = 64


def index_lengths(
    source: Any,
    leaf: str = "tokens",
    *,
    cache: str | os.PathLike[str] | None = None,
    refresh: bool = False,
    progress: bool | None = None,
) -> Ints:
    """`len(record[leaf])` of every record; 0 for one that is None (filtered out).

    This reads the whole source. With `cache="lengths.npy"` the result is kept there, and beside it,
    in `lengths.npy.json`, what it belongs to: it is used again for the same data and leaf, else, or
    if it is damaged, made anew. Whether the data is the same is seen from its fingerprint and from
    some hundred records, read again; where a change may have escaped that, give `refresh=True`.
    `progress` shows a bar on stderr: if that is a terminal, or always, or never.
    """
    source = as_source(source)
    refuse_varying(source)
    if cache is None:
        return _indexed(source, leaf, progress)
    path = Path(cache)
    path.parent.mkdir(parents=True, exist_ok=True)  # now, not after hours of reading
    key = digest({"source": fingerprint(source), "leaf": leaf, "records": len(source)})
    lengths = None if refresh else _kept(path, key)
    if lengths is None or not _still_true(source, leaf, lengths):
        lengths = _indexed(source, leaf, progress)
        _keep(path, key, lengths)
    return lengths


def _indexed(source: Any, leaf: str, progress: bool | None) -> Ints:
    lengths = np.zeros(len(source), np.int64)
    for start in _shown(range(0, len(source), _RECORDS_AT_ONCE), len(source), progress):
        records = np.arange(start, min(start + _RECORDS_AT_ONCE, len(source)))
        lengths[records] = _lengths_of(source, leaf, records)
    return checked_lengths(lengths)


def _lengths_of(source: Any, leaf: str, records: Int64s) -> Int64s:
    lengths = np.zeros(len(records), np.int64)
    rows, there = read_rows(source, records, ragged=True)
    if rows is not None:
        (values,) = packed_leaves(rows, [leaf]).values()
        lengths[slice(None) if there is None else there] = token_counts(leaf, values)
    return lengths


def _still_true(source: Any, leaf: str, lengths: Ints) -> bool:
    """Whether some records have the lengths that were kept, empty ones above all.

    A record that was empty is never read again, so nobody else would notice that it has changed.
    """
    empty = np.flatnonzero(lengths == 0)
    chosen = [_spread(empty), _spread(np.arange(len(lengths)))]
    records = np.unique(np.concatenate(chosen))
    return np.array_equal(_lengths_of(source, leaf, records), lengths[records])


def _spread(values: Int64s) -> Int64s:
    """At most `_RECORDS_CHECKED` of these, evenly spread."""
    return values[:: -(-len(values) // _RECORDS_CHECKED) or 1]


def _shown(starts: range, records: int, progress: bool | None) -> Iterator[int]:
    """The starts, with a bar that moves as they are taken."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield from starts
        return
    from rich.console import Console  # only here: most runs show no bar
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("lengths of records", total=records)
        for start in starts:
            yield start
            bar.update(task, completed=min(start + starts.step, records))


def _kept(path: Path, key: str) -> Ints | None:
    """What the file holds, if it is whole and belongs to this key."""
    try:
        content, note = path.read_bytes(), _key_path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return None
    return np.load(io.BytesIO(content)) if note == _note(key, content) else None


def _keep(path: Path, key: str, lengths: np.ndarray) -> None:
    file = io.BytesIO()
    np.save(file, lengths)
    # The lengths first: between the two, the note does not fit them, and they are not believed.
    write_whole(path, file.getvalue())
    write_whole(_key_path(path), _note(key, file.getvalue()).encode())


def _note(key: str, content: bytes) -> str:
    return json.dumps({"key": key, "sha256": hashlib.sha256(content).hexdigest()})


def _key_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")
