"""The tokens of all records of a source, one after the other in a file of their own.

The file is the tokens, then the lengths of the records, then a note in JSON that says what they are
and which data they belong to, then the length of the note. As it is one file, it is there whole or
not at all, also when several processes write it.
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

Path = str | os.PathLike[str]

_FORMAT = "gristmill tokens 1"
_NOTE_LENGTH_BYTES = 8
_LONGEST_NOTE = 4096


class TokensFile:
    """The tokens in a file, mapped into memory. Any thread may read them."""

    def __init__(self, path: Path) -> None:
        self.path = os.path.abspath(path)
        if not os.path.exists(self.path):
            raise ValueError(
                f"there is no file of tokens {self.path}: {_remedy(path)} writes it, once"
            )
        note = _note_of(self.path)
        if note is None:
            raise ValueError(
                f"{self.path} is not a whole file of tokens: give the path of one that "
                "index_lengths(source, tokens=path) has written"
            )
        self.key: str = note["key"]
        size, records = note["tokens"], note["records"]
        item, dtype = tuple(note["item"]), np.dtype(note["dtype"])
        mapped = np.asarray(np.memmap(self.path, np.uint8, "r"))
        self._map, self._size = map_under(mapped), len(mapped)
        end = size * dtype.itemsize * int(np.prod(item, dtype=np.int64))
        self._tokens = mapped[:end].view(dtype).reshape(size, *item)
        lengths = mapped[end : end + 8 * records].tobytes()  # of any alignment
        self._ends = np.cumsum(np.frombuffer(lengths, np.int64))
        self.lengths: Ints = checked_lengths(np.frombuffer(lengths, np.int64))

    def of(self, records: Int64s) -> list[np.ndarray]:
        """The tokens of each of these records."""
        assert self._map is not None  # it holds the note at least
        refuse_if_cut_off(self.path, self._size, self._map)
        ends = self._ends[records]
        begins = ends - self.lengths[records]
        pairs = zip(begins.tolist(), ends.tolist(), strict=True)
        return [self._tokens[begin:end] for begin, end in pairs]

    def refuse_others(self, key: str, lengths: Ints) -> None:
        """Raise `ValueError` unless these are the tokens of this data, and of these lengths."""
        if self.key != key:
            raise ValueError(
                f"{self.path} holds the tokens of other data, or of another tokenizer or leaf: "
                f"{_remedy(self.path)} writes them anew"
            )
        if not np.array_equal(self.lengths, lengths):
            raise ValueError(
                f"{self.path} holds records of other lengths than those given: give the lengths "
                f"that {_remedy(self.path)} returns"
            )

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the file by its path, to be mapped again."""
        return {"path": self.path, "key": self.key}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])
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
        end = file.read(size - begin)
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
    return f"index_lengths(source, tokens={os.fspath(path)!r})"
