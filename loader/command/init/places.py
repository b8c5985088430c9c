"""What there is at a path or an address: one file, or the files below a folder.

Names are those of files below the folder, with "/" between folders. Of one file, the folder is
what is before its name. What begins with a dot is not looked at.
"""

import dataclasses
import functools
import glob
import os
from collections.abc import Iterator

import numpy as np

from loader.sources.storage.listings import objects_below
from loader.sources.storage.paths import files_of, here, stored_files
from loader.sources.storage.problems import OutOfDate
from loader.sources.storage.requests import look_up
from loader.sources.storage.stores import checked_address, is_address, shown, split


@dataclasses.dataclass(frozen=True)
class Place:
    """A folder, and the files in it that are meant: all, or those that were named."""

    folder: str  # "" for the working folder
    named: tuple[str, ...] | None = None  # if not all
    paths: str | None = None  # the path or glob that named them

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """All files that are meant, sorted."""
        found = self.named
        if found is None and is_address(self.folder):
            found = tuple(_names_in_store(self.folder))
        return tuple(sorted(_names_here(self.folder))) if found is None else found

    @functools.cached_property
    def folders(self) -> list[str]:
        """The names of the folders in it."""
        if self.named is not None:
            return []
        if is_address(self.folder):
            return sorted({name.partition("/")[0] for name in self.names if "/" in name})
        entries = os.scandir(self.folder or ".")
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))

    def path(self, name: str) -> str:
        """The path or address of a file or a folder in it."""
        if not name:
            return self.folder or "."
        return f"{self.folder.rstrip('/')}/{name}" if self.folder else name

    def below(self, name: str) -> "Place":
        """A folder in it."""
        return Place(self.path(name))

    def has(self, name: str) -> bool:
        """Whether there is such a file, also one that begins with a dot."""
        if self.named is not None:
            return False
        if not is_address(self.folder):
            return os.path.exists(self.path(name))
        if self.folder.startswith("http"):
            return _is_there(self.path(name))
        root, key = split(self.folder)
        wanted = f"{key}/{name}" if key else name
        return any(found.path == wanted for found in objects_below(root, key))

    def head(self, name: str, count: int) -> bytes:
        """The first bytes of a file."""
        return self.part(name, 0, count)

    def part(self, name: str, begin: int, end: int) -> bytes:
        """Some bytes of a file, as far as they are there."""
        files = files_of([here(self.path(name))])
        end = min(end, int(files.sizes[0]))
        spans = (np.array([each]) for each in (0, min(begin, end), end))
        return bytes(files.read(*spans)[0])

    def size(self, name: str) -> int:
        return int(files_of([here(self.path(name))]).sizes[0])

    def __str__(self) -> str:
        if self.paths is not None:
            return shown(self.paths)
        return shown(self.path(self.names[0] if self.named and len(self.named) == 1 else ""))


def place_of(given: str) -> Place:
    """What is there; `FileNotFoundError` if nothing is, `ValueError` if it is an empty folder."""
    path = given.removeprefix("file://")
    place = _place_in_store(path) if is_address(path) else _place_here(path)
    if place.named is None and not place.folder.startswith("http") and not place.names:
        raise ValueError(
            f"{place} is an empty folder (what begins with a dot does not count): name a file, or "
            "a folder with files of one format"
        )
    return place


def _place_here(path: str) -> Place:
    path = path if path.strip("/") == "" else path.rstrip("/")
    if os.path.isdir(path):
        return Place("" if path == "." else path.removeprefix("./"))
    if os.path.exists(path):
        folder, _, name = path.rpartition("/")
        return Place(folder, (name,), path)
    if not glob.has_magic(path):
        raise FileNotFoundError(
            f"there is nothing at {path!r}: name a file, a folder, a glob such as "
            "'data/*.parquet', or an address such as gs://bucket/folder"
        )
    return _of_glob(path)


def _place_in_store(path: str) -> Place:
    path = checked_address(path)
    if path.startswith("http"):
        looks_like_one = path.endswith("/") or not _is_there(path)
        if looks_like_one and any(_is_there(f"{path.rstrip('/')}/{m}") for m in _MARKERS):
            return Place(path.rstrip("/"))  # an array: nothing else can be found where none lists
    elif glob.has_magic(path):
        return _of_glob(path)
    else:
        root, key = split(path.rstrip("/"))
        found = objects_below(root, key)
        if any(one.path != key for one in found) or not key:
            return Place(path.rstrip("/"))
    stored_files(path, "data").sizes  # noqa: B018  it says what is not there
    folder, _, name = path.rpartition("/")
    return Place(folder, (name,), path)


_MARKERS = ("zarr.json", ".zarray", ".zgroup", "attributes.json")


def _of_glob(pattern: str) -> Place:
    """The files that a glob names, in the folder before its first wildcard."""
    paths = stored_files(pattern, "data").paths
    plain = pattern[: next(at for at, sign in enumerate(pattern) if sign in "*?[")]
    folder = plain.rpartition("/")[0]
    begin = len(folder) + 1 if folder else 0
    return Place(folder, tuple(path[begin:] for path in paths), pattern)


def _names_here(folder: str) -> Iterator[str]:
    seen: set[str] = set()
    for parent, folders, files in os.walk(folder or ".", followlinks=True):
        if (real := os.path.realpath(parent)) in seen:
            folders.clear()  # through a link, again
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = os.path.relpath(parent, folder or ".")
        for name in files:
            if not name.startswith("."):
                yield name if below == "." else f"{below}/{name}"


def _names_in_store(folder: str) -> list[str]:
    root, key = split(folder)
    begin = len(key) + 1 if key else 0
    names = [found.path[begin:] for found in objects_below(root, key)]
    hidden = [any(part.startswith(".") for part in name.split("/")) for name in names]
    return [name for name, out in zip(names, hidden, strict=True) if name and not out]


def _is_there(address: str) -> bool:
    try:
        look_up([address])
    except OutOfDate:  # 404
        return False
    return True
