"""Files of one format: how a configuration names them, and which of them are held out."""

import dataclasses
import itertools
import os
import re
from collections.abc import Iterable

from loader.command.init.found import Found
from loader.command.init.places import Place
from loader.sources.storage.paths import stored_files
from loader.sources.storage.stores import is_address

_SPLITS = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "test": "test", "testing": "test", "eval": "test",
}  # fmt: skip
_SPLIT = re.compile(rf"(?:^|[/_.\-])({'|'.join(_SPLITS)})(?=$|[/_.\-\d])", re.IGNORECASE)
_LARGE_BYTES = 2**30  # that are not searched for records at each start
_MOST_NAMED = 100  # files that are listed one by one, where no glob names them


@dataclasses.dataclass(frozen=True)
class Files:
    """Some files of a place."""

    place: Place
    names: tuple[str, ...]

    @property
    def far(self) -> bool:
        return is_address(self.place.folder)

    @property
    def total_bytes(self) -> int:
        return int(stored_files([self.place.path(n) for n in self.names], "data").sizes.sum())

    def paths(self) -> str | list[str]:
        """The path, the glob or the list that names these files and no others."""
        own = [self.place.path(name) for name in self.names]
        if self.place.paths is not None and set(self.names) == set(self.place.names):
            return self.place.paths
        if len(own) == 1:
            return own[0]
        for pattern in _patterns(self.names):
            glob = self.place.path(pattern)
            try:
                named = stored_files(glob, "data").paths
            except (ValueError, OSError):  # it names none, or some twice
                continue
            if sorted(named) == sorted(own):
                return glob
        if len(own) > _MOST_NAMED:
            raise ValueError(
                f"no glob names these {len(own):,} files of {self.place} and no others, "
                f"{self.names[0]!r} first: give one, such as '{self.place}/*.parquet'"
            )
        return own


def _patterns(names: Iterable[str]) -> list[str]:
    """Globs that may name these files, the plainest first."""
    names = list(names)
    folder = os.path.commonpath([os.path.dirname(name) for name in names])
    base = [name[len(folder) + 1 if folder else 0 :] for name in names]
    begin = _begin_alike(base)
    end = _begin_alike([name[::-1] for name in base])[::-1]
    end = end[end.find(".") :] if "." in end else ""
    within = f"{folder}/" if folder else ""
    if "/" in begin or any("/" in name for name in base):
        begin = ""
    if not end:  # shards: a.tfrecord-00000-of-00004
        each = [f"{begin.rstrip('0123456789')}*", "*", "**/*"]
    else:
        each = [f"*{end}", f"**/*{end}", f"{begin.partition('.')[0].rstrip('0123456789')}*{end}"]
    return [within + pattern for pattern in each]


def _begin_alike(texts: list[str]) -> str:
    """What all of them begin with."""
    first, last = min(texts), max(texts)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(sign for sign, _ in same)


def split_of(name: str) -> str:
    """Whether a name says "train", "validation" or "test"; "" if it says neither."""
    found = _SPLIT.search(name)
    return _SPLITS[found[1].lower()] if found else ""


def first_of_each(names: Iterable[str]) -> dict[str, str]:
    """A name for each part, the shortest: `train` and not `train_more`; or one by itself."""
    found: dict[str, str] = {}
    for name in sorted(names, key=len):
        found.setdefault(split_of(name) or name, name)
    return found


def without_split(name: str) -> str:
    """The name without the word that says which part of the data it is."""
    return _SPLIT.sub("", name).strip("/_.-") or name


def parts_of(names: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The names to train on, those to measure with, and those that are in neither."""
    by_split: dict[str, list[str]] = {}
    for name in names:
        by_split.setdefault(split_of(name), []).append(name)
    held = next((s for s in ("validation", "test") if s in by_split), None)
    train = "train" if "train" in by_split and held else ""
    if held is None or not by_split.get(train):
        return tuple(names), (), ()
    rest = [n for split, some in by_split.items() if split not in (train, held) for n in some]
    return tuple(by_split[train]), tuple(by_split[held]), tuple(rest)


def keep_index(found: Found, files: Files, name: str, what: str) -> None:
    """Where it takes long to find the records, they are found once."""
    if files.far or files.total_bytes >= _LARGE_BYTES:
        found.source["index"] = f"{name}-index"
        found.note("index", f"a folder that keeps where {what}, for the next start")
