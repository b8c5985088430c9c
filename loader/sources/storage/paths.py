"""Which files a source was told to read: paths and globs, written out and found to be there."""

import glob
import itertools
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath

from loader.sources.storage.listings import objects_below
from loader.sources.storage.requests import Found, look_up
from loader.sources.storage.stored_files import StoredFiles
from loader.sources.storage.stores import address_of, checked_address, is_address, shown, split

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]

_WILD = frozenset("*?[")


def stored_files(
    paths: Paths, kind: str, *, cache: Any = None, whole: bool = False, absolute: bool = False
) -> StoredFiles:
    """The files that the paths and globs name, in that order. `kind` is for messages.

    `absolute` says that plain paths are to be absolute, whatever they were given as.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ValueError(f"no paths given: name at least one {kind} file or a glob")
    found: list[Found] = []
    for path in map(_plain, given):
        found += _found_in_store(path, cache) if is_address(path) else _found_here(path, kind)
    _refuse_twice([file.path for file in found])
    if absolute or cache is not None:
        found = [f if is_address(f.path) else here(os.path.abspath(f.path)) for f in found]
    return files_of(found, cache=cache, whole=whole)


def files_of(found: list[Found], *, cache: Any = None, whole: bool = False) -> StoredFiles:
    """These files. Those whose size is not known are looked up, unless all are here to be read."""
    if cache is None and not any(is_address(file.path) for file in found):
        return StoredFiles([file.path for file in found], whole=whole)
    unknown = [file.path for file in found if file.size < 0]
    known = dict(zip(unknown, look_up(unknown), strict=True))
    found = [known.get(file.path, file) for file in found]
    sizes = np.array([file.size for file in found], np.int64)
    names, versions = [file.path for file in found], [file.version for file in found]
    return StoredFiles(names, sizes, versions, cache=cache, whole=whole)


def here(path: str) -> Found:
    """A file of which only the path is known."""
    return Found(path, -1, "")


def _plain(path: Path) -> str:
    """An address as it was given, if we know its kind; `file://` is a plain path."""
    text = os.fspath(path)
    if text.startswith("file://"):
        return text.removeprefix("file://")
    return checked_address(text) if is_address(text) else text


def _refuse_twice(paths: list[str]) -> None:
    files: dict[str, str] = {}
    for path in paths:
        file = path if is_address(path) else os.path.realpath(path)
        if file in files:
            also = "" if files[file] == path else f", also as {files[file]!r}"
            raise ValueError(f"{shown(path)!r} is named twice{also}: its records would come twice")
        files[file] = path


def _found_here(path: str, kind: str) -> list[Found]:
    if epath.Path(path).is_dir():
        raise ValueError(f"{path!r} is a folder: name its files, for example '{path}/*'")
    if epath.Path(path).exists():
        return [here(path)]
    if not _WILD & set(path):
        raise FileNotFoundError(f"there is no {kind} file {path!r}")
    matches = _glob(path)
    if not matches:
        raise FileNotFoundError(f"no file matches {path!r}")
    return [here(match) for match in matches]


def _glob(pattern: str) -> list[str]:
    """The files that match, sorted. `**` is for folders of any depth; hidden files do not match."""
    if "**" in pattern:
        return sorted({path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)})
    parts = epath.Path(pattern).parts
    plain = list(itertools.takewhile(lambda part: not set(part) & _WILD, parts))
    matches = epath.Path(*plain).glob("/".join(parts[len(plain) :]))
    return sorted(os.fspath(match) for match in matches if not match.is_dir())


def _found_in_store(path: str, cache: Any) -> list[Found]:
    """The object of this address, not yet looked up, or those that the glob matches, sorted."""
    root, key = split(path)
    if not _WILD & set(key):
        if not key or key.endswith("/"):
            raise ValueError(f"{shown(path)!r} is a folder: name its files, '{shown(path)}*'")
        return [here(path)]
    if root.startswith("http"):
        raise ValueError(
            f"{shown(path)!r} is a glob, and nothing says what there is at an address of http: "
            "give a list of addresses, or that of the bucket (gs://, s3://, az://)"
        )
    parts = key.split("/")
    plain = list(itertools.takewhile(lambda part: not set(part) & _WILD, parts[:-1]))
    listed = objects_below(root, "/".join(plain), cache)
    matches = re.compile(_pattern(parts)).fullmatch
    found = [one for one in listed if matches(one.path)] or [o for o in listed if o.path == key]
    if not found:
        raise FileNotFoundError(
            f"no object matches {shown(path)!r}: of {len(listed)} below "
            f"{shown(root)}/{'/'.join(plain)}"
        )
    return [one._replace(path=address_of(root, one.path)) for one in found]


def _pattern(parts: list[str]) -> str:
    """The regular expression of a glob, as it is for plain paths."""
    *folders, last = parts
    begun = "".join(
        r"(?:(?!\.)[^/]+/)*" if part == "**" else f"{_segment(part)}/" for part in folders
    )
    return begun + _segment("*" if last == "**" else last)


def _segment(part: str) -> str:
    found = r"(?!\.)" if part[:1] in _WILD else ""
    place = 0
    while place < len(part):
        end = part.find("]", place + 2)
        if part[place] == "[" and end > 0:
            inner = part[place + 1 : end].replace("\\", r"\\")
            found += f"[^/{inner[1:]}]" if inner[0] == "!" else f"(?!/)[{inner}]"
            place = end
        else:
            found += {"*": "[^/]*", "?": "[^/]"}.get(part[place], re.escape(part[place]))
        place += 1
    return found
