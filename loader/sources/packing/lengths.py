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

from loader.records.integers import Int64s
from loader.records.whole_file import write_whole
from loader.sources.as_source import as_source
from loader.sources.packing.packed import data_key, refuse_varying
from loader.sources.packing.packed_rows import packed_leaves, token_counts
from loader.sources.packing.row_plan import Ints, checked_lengths
from loader.sources.packing.tokens_file import TokensFile, kept_tokens, write_tokens
from loader.sources.reading import read_rows

_RECORDS_AT_ONCE = 256
_RECORDS_CHECKED = 64


def index_lengths(
    source: Any,
    leaf: str = "tokens",
    *,
    cache: str | os.PathLike[str] | None = None,
    tokens: str | os.PathLike[str] | None = None,
    refresh: bool = False,
    progress: bool | None = None,
) -> Ints:
    """`len(record[leaf])` of every record; 0 for one that is None (filtered out).

    This reads the whole source. With `cache="lengths.npy"` the result is kept there, and beside it,
    in `lengths.npy.json`, what it belongs to: it is used again for the same data and leaf, else, or
    if it is damaged, made anew. Whether the data is the same is seen from its fingerprint and from
    some hundred records, read again; where a change may have escaped that, give `refresh=True`.
    With `tokens="tokens.bin"` the leaf of every record is kept too, in that one file, whole or not
    at all: give the same to `Packed`, which then need not make the tokens again. It is used again
    as `cache` is, which it replaces.
    `progress` shows a bar on stderr: if that is a terminal, or always, or never.
    """
    source = as_source(source)
    refuse_varying(source)
    if cache is not None and tokens is not None:
        raise ValueError("a file of tokens keeps the lengths too: give tokens, and leave out cache")
    if cache is None and tokens is None:
        return _indexed(source, leaf, progress)
    path = Path(cache or tokens or "")
    path.parent.mkdir(parents=True, exist_ok=True)  # now, not after hours of reading
    key = data_key(source, leaf)
    if tokens is not None:
        return _with_tokens(source, leaf, path, key, refresh, progress)
    lengths = None if refresh else _kept(path, key)
    if lengths is None or not _still_true(source, leaf, lengths):
        lengths = _indexed(source, leaf, progress)
        _keep(path, key, lengths)
    return lengths


def _with_tokens(
    source: Any, leaf: str, path: Path, key: str, refresh: bool, progress: bool | None
) -> Ints:
    kept = kept_tokens(path, key)
    if refresh or kept is None or not _tokens_still_true(source, leaf, kept):
        write_tokens(path, key, _tokens_of_all(source, leaf, progress))
        kept = TokensFile(path)
    return kept.lengths


def _tokens_of_all(source: Any, leaf: str, progress: bool | None) -> Iterator[np.ndarray]:
    for start in _shown(range(0, len(source), _RECORDS_AT_ONCE), len(source), progress):
        records = np.arange(start, min(start + _RECORDS_AT_ONCE, len(source)))
        yield from _tokens_of(source, leaf, records)


def _tokens_of(source: Any, leaf: str, records: Int64s) -> list[np.ndarray]:
    """The leaf of each record; empty for one that is None."""
    tokens = [np.empty(0)] * len(records)
    rows, there = read_rows(source, records, ragged=True)
    if rows is not None:
        (values,) = packed_leaves(rows, [leaf]).values()
        token_counts(leaf, values)  # which refuses what is not tokens
        places = range(len(records)) if there is None else np.flatnonzero(there).tolist()
        for place, value in zip(places, values, strict=True):
            tokens[place] = value
    return tokens


def _tokens_still_true(source: Any, leaf: str, kept: TokensFile) -> bool:
    """Whether some records have the tokens that were kept, as far as they are looked at."""
    records = _looked_at(kept.lengths)
    pairs = zip(_tokens_of(source, leaf, records), kept.of(records), strict=True)
    return all(np.array_equal(now, then) for now, then in pairs)


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
    records = _looked_at(lengths)
    return np.array_equal(_lengths_of(source, leaf, records), lengths[records])


def _looked_at(lengths: Ints) -> Int64s:
    """Some records: of those that were empty, and of all."""
    chosen = [_spread(np.flatnonzero(lengths == 0)), _spread(np.arange(len(lengths)))]
    return np.unique(np.concatenate(chosen))


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
