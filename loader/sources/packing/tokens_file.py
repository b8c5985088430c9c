"""The tokens of all records of a source, one after the other in a file of their own.

The file is the tokens, then the lengths of the records, then a note in JSON that says what they are
and which data they belong to, then the length of the note. As it is one file, it is there whole or
not at all, also when several processes write it.

It is written on this machine, and read from there, from a store, or through a cache.
"""

import array
import json
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from loader.records.integers import Int64s
from loader.records.whole_file import whole_file
from loader.sources.packing.row_plan import Ints, checked_lengths
from loader.sources.storage.file_guard import map_under, refuse_if_cut_off
from loader.sources.storage.paths import stored_files
from loader.sources.storage.stored_files import StoredFiles, StoredPieces
from loader.sources.storage.stores import is_address, shown

Path = str | os.PathLike[str]

_FORMAT = "gristmill tokens 1"
_NOTE_LENGTH_BYTES = 8
_LONGEST_NOTE = 4096


class TokensFile:
    """The tokens in a file, mapped into memory or in a store. Any thread may read them."""

    def __init__(self, path: Path, *, cache: Any = None, stored: StoredFiles | None = None) -> None:
        name = os.fspath(path).removeprefix("file://")
        self.path = name if is_address(name) else os.path.abspath(name)
        if not is_address(name) and not os.path.exists(name):
            raise ValueError(
                f"there is no file of tokens {self.path}: {_remedy(path)} writes it, once"
            )
        if stored is None and (is_address(name) or cache is not None):
            stored = stored_files(self.path, "tokens", cache=cache)
        self._stored = stored
        note = _note_of(self.path) if stored is None else _note_in_store(stored)
        if note is None:
            raise ValueError(
                f"{shown(self.path)} is not a whole file of tokens: give the path of one that "
                "index_lengths(source, tokens=path) has written"
            )
        self.key: str = note["key"]
        size, records = note["tokens"], note["records"]
        self._item, self._dtype = tuple(note["item"]), np.dtype(note["dtype"])
        self._token_bytes = self._dtype.itemsize * int(np.prod(self._item, dtype=np.int64))
        end = size * self._token_bytes
        if stored is None:
            mapped = np.asarray(np.memmap(self.path, np.uint8, "r"))
            self._map, self._size = map_under(mapped), len(mapped)
            self._tokens = mapped[:end].view(self._dtype).reshape(size, *self._item)
            lengths = mapped[end : end + 8 * records].tobytes()  # of any alignment
        else:
            lengths = bytes(_directly(stored, end, end + 8 * records))
        self._ends = np.cumsum(np.frombuffer(lengths, np.int64))
        self.lengths: Ints = checked_lengths(np.frombuffer(lengths, np.int64))

    def of(self, records: Int64s) -> list[np.ndarray]:
        """The tokens of each of these records."""
        if self._stored is not None:
            read = self._stored.read(*self._spans(records))
            return [np.frombuffer(one, self._dtype).reshape(-1, *self._item) for one in read]
        assert self._map is not None  # it holds the note at least
        refuse_if_cut_off(self.path, self._size, self._map)
        ends = self._ends[records]
        begins = ends - self.lengths[records]
        pairs = zip(begins.tolist(), ends.tolist(), strict=True)
        return [self._tokens[begin:end] for begin, end in pairs]

    def stored_pieces(self, records: Int64s) -> StoredPieces:
        """The pieces of the file that a read of these records needs, if it is not just here."""
        if self._stored is None:
            return []
        return [(self._stored, self._stored.pieces(*self._spans(records)))]

    def _spans(self, records: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        ends = self._ends[records]
        begins = ends - self.lengths[records]
        return np.zeros_like(ends), begins * self._token_bytes, ends * self._token_bytes

    def refuse_others(self, key: str, lengths: Ints) -> None:
        """Raise `ValueError` unless these are the tokens of this data, and of these lengths."""
        if self.key != key:
            raise ValueError(
                f"{shown(self.path)} holds the tokens of other data, or of another tokenizer or "
                f"leaf: {_remedy(self.path)} has them anew"
            )
        if not np.array_equal(self.lengths, lengths):
            raise ValueError(
                f"{shown(self.path)} holds records of other lengths than those given: give those "
                "that index_lengths(source, tokens=path) returns"
            )

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the file by its path, to be mapped again, or as it was in its store."""
        return {"path": self.path, "key": self.key, "stored": self._stored}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"], stored=state["stored"])
        if self.key != state["key"]:
            raise ValueError(
                f"{self.path} was replaced by the tokens of other data, or of another tokenizer, "
                "since the source was made: make the source again"
            )


def write_tokens(path: Path, key: str, records: Iterable[np.ndarray]) -> None:
    """Write the tokens of all records, as they come; what was there before is replaced whole."""
    refuse_to_replace(path)
    lengths = array.array("q")  # 8 bytes each
    like: np.ndarray | None = None
    with whole_file(path) as file:
        for tokens in records:
            lengths.append(len(tokens))
            if not len(tokens):
                continue
            like = tokens if like is None else like
            if (tokens.dtype, tokens.shape[1:]) != (like.dtype, like.shape[1:]):
                raise ValueError(
                    f"record {len(lengths) - 1} is {tokens.dtype}{list(tokens.shape)} where others "
                    f"are {like.dtype}{list(like.shape)}: all tokens must be of one dtype; cast "
                    "them with an operator"
                )
            if tokens.dtype.kind not in "biuf":
                raise ValueError(f"tokens are numbers, got {tokens.dtype}: they cannot be kept")
            file.write(np.ascontiguousarray(tokens).data)
        file.write(lengths)
        like = np.empty(0, np.int32) if like is None else like
        note: dict[str, Any] = {"format": _FORMAT, "key": key, "dtype": like.dtype.str}
        note |= {"item": like.shape[1:], "tokens": sum(lengths), "records": len(lengths)}
        text = json.dumps(note).encode()
        file.write(text + len(text).to_bytes(_NOTE_LENGTH_BYTES, "little"))


def kept_tokens(path: Path, key: str) -> TokensFile | None:
    """The file of tokens, if it is there and belongs to this data."""
    if not os.path.exists(path):
        return None
    refuse_to_replace(path)
    file = TokensFile(path)
    return file if file.key == key else None


def refuse_to_replace(path: Path) -> None:
    """Raise `ValueError` if there is a file at this path that was not written here."""
    if os.path.exists(path) and _note_of(path) is None:
        raise ValueError(
            f"{os.fspath(path)} is there already, and is not a file of tokens that index_lengths "
            "has written: give another path for tokens, or remove it"
        )


def _note_of(path: Path) -> dict[str, Any] | None:
    """What the end of the file says, if it is one of ours and whole."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        begin = file.seek(max(0, size - _NOTE_LENGTH_BYTES - _LONGEST_NOTE))
        return _note_at(file.read(size - begin), size)


def _note_in_store(files: StoredFiles) -> dict[str, Any] | None:
    size = int(files.sizes[0])
    begin = max(0, size - _NOTE_LENGTH_BYTES - _LONGEST_NOTE)
    return _note_at(bytes(_directly(files, begin, size)), size)


def _directly(files: StoredFiles, begin: int, end: int) -> Any:
    """These bytes, not through a cache: they are read once."""
    return files.read_directly(np.array([0]), np.array([begin]), np.array([end]))[0]


def _note_at(end: bytes, size: int) -> dict[str, Any] | None:
    """What this end of a file of that size says."""
    tail = end[-_NOTE_LENGTH_BYTES:]
    length = int.from_bytes(tail, "little")
    start = size - _NOTE_LENGTH_BYTES - length
    if len(tail) < _NOTE_LENGTH_BYTES or length > _LONGEST_NOTE or start < 0:
        return None
    try:
        note = json.loads(end[-_NOTE_LENGTH_BYTES - length : -_NOTE_LENGTH_BYTES])
    except ValueError:
        return None
    if not isinstance(note, dict) or note.get("format") != _FORMAT:
        return None
    row = np.dtype(note["dtype"]).itemsize * int(np.prod(note["item"], dtype=np.int64))
    return note if start == note["tokens"] * row + 8 * note["records"] else None


def _remedy(path: Path) -> str:
    if is_address(os.fspath(path)):
        return "a copy of the file that index_lengths(source, tokens='tokens.bin') writes"
    return f"index_lengths(source, tokens={os.fspath(path)!r})"
