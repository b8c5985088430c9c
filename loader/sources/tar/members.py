"""What is in a tar file, found once: the members of each record, and where they are.

A *member* is a file inside the tar. Its name up to the first dot, folders included, is the *key* of
its record; the rest, in small letters, is its *suffix*. The members of a record follow one another.
"""

import dataclasses
import io
import re
import tarfile
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from loader.records.errors import StorageError
from loader.records.integers import Int64s
from loader.sources.storage.stored_files import PIECE_BYTES, StoredFiles
from loader.sources.storage.stores import shown

_BLOCK = 512  # of which tar files are made
_NAME = re.compile(r"((?:.*/|)[^./]+)[.]([^/]*)")
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclasses.dataclass(frozen=True)
class Members:
    """The members of one tar file, in their order."""

    keys: list[str]  # of each record
    firsts: Int64s  # of each record its first member, and at last the number of members
    suffixes: list[str]  # that there are
    suffix: Int64s  # of each member, by its place among these
    begins: Int64s  # of each member, its content in the file
    ends: Int64s

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it, to be kept in a file."""
        texts = {"keys": self.keys, "suffixes": self.suffixes}
        joined = {name: np.frombuffer("\0".join(t).encode(), np.uint8) for name, t in texts.items()}
        numbers = {name: getattr(self, name) for name in ("firsts", "suffix", "begins", "ends")}
        return {**joined, **numbers}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> Self:
        texts = {name: arrays[name].tobytes().decode() for name in ("keys", "suffixes")}
        split = {name: text.split("\0") if text else [] for name, text in texts.items()}
        return cls(**{**arrays, **split})


def find_members(files: StoredFiles, file: int) -> Members:
    """Go through a tar file, and refuse it if anything in it would be lost."""
    keys, firsts, suffix, spans = list[str](), list[int](), list[int](), list[tuple[int, int]]()
    codes: dict[str, int] = {}
    for name, begin, end in _files_in(files, file):
        parts = _NAME.fullmatch(name)
        if parts is None or name.rpartition("/")[2].startswith("__"):
            continue  # a hidden file, one without a suffix, or a note of WebDataset
        if not keys or keys[-1] != parts[1]:
            keys.append(parts[1])
            firsts.append(len(spans))
        suffix.append(codes.setdefault(parts[2].lower(), len(codes)))
        if suffix[-1] in suffix[firsts[-1] : -1]:
            raise ValueError(
                f"{shown(files.paths[file])} has {name!r} twice: leave one of them out"
            )
        spans.append((begin, end))
    _refuse_scattered(files.paths[file], keys)
    begins, ends = np.array(spans, np.int64).reshape(-1, 2).T
    numbers = np.array([*firsts, len(spans)], np.int64)
    return Members(keys, numbers, list(codes), np.array(suffix, np.int64), begins, ends)


def _files_in(files: StoredFiles, file: int) -> Iterator[tuple[str, int, int]]:
    """Each file inside a tar file: its name, and where its content begins and ends."""
    path, size = shown(files.paths[file]), int(files.sizes[file])
    reader = io.BufferedReader(_Reader(files, file, size), PIECE_BYTES)
    start = reader.peek(8)[:8]
    for magic, how in _COMPRESSED.items():
        if start.startswith(magic):
            raise ValueError(
                f"{path} is compressed by {how}, and nothing in it can be found by its place: "
                "unpack it, and leave .tar (images and the like are compressed already)"
            )
    try:
        with tarfile.TarFile(fileobj=reader) as opened:
            tar: Any = opened
            while (info := tar.next()) is not None:
                tar.members = []  # it would keep all of them
                if info.isdir():
                    continue
                if not info.isreg() or info.issparse() or "\0" in info.name:
                    raise ValueError(
                        f"{path} has {info.name!r}, which is a link or not a plain file: write it "
                        "again with the files themselves (tar --dereference --hard-dereference)"
                    )
                if info.size < 0 or info.offset_data + info.size > size:
                    raise _cut_off(path, f"{info.name!r} is not all there")
                yield info.name, info.offset_data, info.offset_data + info.size
            end = tar.offset
    except (tarfile.TarError, OverflowError, UnicodeError) as error:
        raise _cut_off(path, str(error)) from error
    # The library takes whatever is not a header for the end.
    reader.seek(end)
    if reader.read(_BLOCK) != bytes(_BLOCK):
        raise _cut_off(path, f"at byte {end} is neither a member nor the mark of the end")
    while rest := reader.read(PIECE_BYTES):
        if rest.strip(b"\0"):
            raise ValueError(
                f"{path} goes on after its end, as when tar files are joined by cat: give them one "
                "by one, or join them by tar --concatenate"
            )


def _cut_off(path: str, why: str) -> StorageError:
    return StorageError(
        f"{path} is not a whole tar file (cut off while it was written or copied?): {why}; write "
        "or copy it again"
    )


def _refuse_scattered(path: str, keys: list[str]) -> None:
    if len(set(keys)) < len(keys):
        seen: set[str] = set()
        key = next(key for key in keys if key in seen or seen.add(key))
        raise ValueError(
            f"{shown(path)} has members of the record {key!r} at two places: the members of a "
            "record must follow one another; write it again (tar --sort=name)"
        )


class _Reader(io.RawIOBase):
    """A stored file, as a file that is open."""

    def __init__(self, files: StoredFiles, file: int, size: int) -> None:
        self._files, self._file, self._size, self._place = files, file, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_CUR: self._place, io.SEEK_END: self._size}.get(whence, 0)
        return self._place

    def readinto(self, buffer: Any) -> int:
        begin, end = self._place, min(self._place + len(buffer), self._size)
        if end <= begin:
            return 0
        span = [np.array([one], np.int64) for one in (self._file, begin, end)]
        buffer[: end - begin] = self._files.read(*span)[0]
        self._place = end
        return end - begin
