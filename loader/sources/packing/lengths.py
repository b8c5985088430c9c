"""The lengths of all records of a source, found in one pass and kept in a file."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loader.records.integers import Int64s
from loader.records.whole_file import write_whole
from loader.records.work import Workers, refuse_other_than_workers
from loader.sources.as_source import as_source
from loader.sources.packing.kept_blocks import Part, chosen_part, divided, forget_all, joined
from loader.sources.packing.packed import data_key, refuse_varying
from loader.sources.packing.passes import (
    Found,
    arrays_of,
    found_blocks,
    is_true,
    lengths_of,
    run,
    spread,
    tokens_of,
)
from loader.sources.packing.row_plan import Ints, checked_lengths
from loader.sources.packing.tokens_file import (
    TokensFile,
    kept_tokens,
    refuse_to_replace,
    write_tokens,
)
from loader.sources.storage.stores import is_address, shown

_RECORDS_CHECKED = 64


def index_lengths(
    source: Any,
    leaf: str = "tokens",
    *,
    cache: str | os.PathLike[str] | None = None,
    tokens: str | os.PathLike[str] | None = None,
    part: tuple[int, int] | None = None,
    refresh: bool = False,
    progress: bool | None = None,
    workers: Workers | None = None,
) -> Ints:
    """`len(record[leaf])` of every record; 0 for one that is None (filtered out).

    This reads the whole source. With `cache="lengths.npy"` the result is kept there, and beside it,
    in `lengths.npy.json`, what it belongs to: it is used again for the same data and leaf, else, or
    if it is damaged, made anew. Whether the data is the same is seen from its fingerprint and from
    some hundred records, read again; where a change may have escaped that, give `refresh=True`.
    With `tokens="tokens.bin"` the leaf of every record is kept too, in that one file, whole or not
    at all: give the same to `Packed`, which then need not make the tokens again. It is used again
    as `cache` is, which it replaces. A copy of it in a store is only read.

    A call that was killed goes on: what it had found is in the folder `lengths.npy.parts`, block by
    block, until the file is written. With `part=(3, 64)` only the records of that part, counted
    from 0, are read, and their lengths returned. When all 64 are there, perhaps from as many
    machines, the same call without `part` joins them: the file has the bytes that one call writes.

    `progress` shows a bar on stderr: if that is a terminal, or always, or never. With `workers`,
    `Processes(4)`, `Threads(n)` or `On(executor)`, those read the records, 256 at a time; what is
    found and kept is the same.
    """
    refuse_other_than_workers(workers)
    source = as_source(source)
    refuse_varying(source)
    if cache is not None and tokens is not None:
        raise ValueError("a file of tokens keeps the lengths too: give tokens, and leave out cache")
    if cache is None and tokens is None:
        if part is not None:
            raise ValueError("a part is kept until it is joined: give a file, cache or tokens, too")
        return _just_found(source, leaf, workers, progress)
    if tokens is not None and is_address(os.fspath(tokens)):
        return _of_stored(os.fspath(tokens), data_key(source, leaf), part, refresh=refresh)
    path = Path(cache or tokens or "")
    index = _Index(path, source, leaf, tokens is not None, workers, progress)
    return index.lengths(part, refresh=refresh)


def _just_found(source: Any, leaf: str, workers: Workers | None, progress: bool | None) -> Ints:
    """The lengths, found in one pass and kept nowhere."""
    blocks = found_blocks(source, leaf, lengths_of, range(len(source)), workers, progress)
    with contextlib.closing(blocks):
        return _in_one(array for *_, arrays in blocks for array in arrays)


def _of_stored(tokens: str, key: str, part: Any, *, refresh: bool) -> Ints:
    """The lengths that a file of tokens in a store holds. Nothing is written there."""
    if part is not None or refresh:
        raise ValueError(
            f"tokens are made on this machine, and {shown(tokens)} is in a store: give the path of "
            "a file here, and copy it there when it is whole"
        )
    file = TokensFile(tokens)
    file.refuse_others(key, file.lengths)
    return file.lengths


@dataclasses.dataclass(frozen=True)
class _Index:
    """The file that is to be there at the end: of lengths, or of tokens and their lengths."""

    path: Path
    source: Any
    leaf: str
    with_tokens: bool
    workers: Workers | None
    progress: bool | None

    def __post_init__(self) -> None:
        # Now, not after hours of reading.
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.with_tokens:
            refuse_to_replace(self.path)

    @functools.cached_property
    def key(self) -> str:
        return data_key(self.source, self.leaf)

    @property
    def found(self) -> Found:
        return tokens_of if self.with_tokens else lengths_of

    def lengths(self, part: tuple[int, int] | None, *, refresh: bool) -> Ints:
        """The lengths of all records, or of a part: as they are kept, else made."""
        own = None if part is None else chosen_part(self.path, self.key, len(self.source), part)
        lengths = None if refresh else self.kept()
        if lengths is not None:
            return lengths if own is None else lengths[own.records.start : own.records.stop]
        if refresh:
            forget_all(self.path) if own is None else own.forget()
        return self.made() if own is None else self.made_part(own)

    def kept(self) -> Ints | None:
        """The lengths, if the file is whole, of this data, and true of some records."""
        if self.with_tokens:
            file = kept_tokens(self.path, self.key)
            lengths = None if file is None else file.lengths
        else:
            file, lengths = None, _kept(self.path, self.key)
        if lengths is None:
            return None
        records = _looked_at(lengths)
        then = [lengths[records]] if file is None else file.of(records)
        now = self.found(self.source, self.leaf, records)
        same = all(np.array_equal(*pair) for pair in zip(now, then, strict=True))
        return lengths if same else None

    def written(self, arrays: Iterable[np.ndarray]) -> Ints:
        """Write what was found of all records."""
        if self.with_tokens:
            write_tokens(self.path, self.key, arrays)
            return TokensFile(self.path).lengths
        lengths = _in_one(arrays)
        _keep(self.path, self.key, lengths)
        return lengths

    def made(self) -> Ints:
        """Join the parts, if there are any, or pass over all records, and write the file."""
        parts = divided(self.path, self.key, len(self.source))
        whole = Part(self.path, self.key, len(self.source))
        try:
            arrays = self._joined(parts) if parts else self._run(whole, keep_last=False)
            lengths = self.written(arrays)
        except ValueError:
            # Another process may have written the file since, and removed the blocks.
            if (lengths := self.kept()) is None:
                raise
        forget_all(self.path)
        return lengths

    def made_part(self, part: Part) -> Ints:
        """Make the blocks of a part: its lengths."""
        arrays = self._run(part, keep_last=True)
        if self.with_tokens:
            return checked_lengths(np.fromiter(map(len, arrays), np.int64))
        return _in_one(arrays)

    def _run(self, part: Part, *, keep_last: bool) -> Iterable[np.ndarray]:
        how = self.source, self.leaf, self.found, part, self.workers, self.progress
        return run(*how, keep_last=keep_last)

    def _joined(self, parts: Sequence[Part]) -> Iterable[np.ndarray]:
        name = "tokens" if self.with_tokens else "cache"
        call = f"index_lengths(source, {name}={os.fspath(self.path)!r}"
        blocks = joined(parts, call)
        for block in blocks:
            if not is_true(self.source, self.leaf, self.found, block):
                raise ValueError(
                    f"{block.path} does not fit records {block.first} to {block.stop - 1}: the "
                    "data has changed since; remove the folder of that part, and make it again"
                )
        return arrays_of(blocks)


def _in_one(arrays: Iterable[np.ndarray]) -> Ints:
    return checked_lengths(np.concatenate([np.zeros(0, np.int64), *arrays]))


def _looked_at(lengths: Ints) -> Int64s:
    """Some records: of those that were empty, and of all.

    A record that was empty is never read again, so nobody else would notice that it has changed.
    """
    empty, all_of_them = np.flatnonzero(lengths == 0), np.arange(len(lengths))
    return np.unique(np.concatenate([spread(n, _RECORDS_CHECKED) for n in (empty, all_of_them)]))


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
