"""Whether a worker sees the data that the trainer sees.

Compared are the length, a few records, and the sizes of at most a thousand files, spread over all
of them: there may be millions, and this is done in each worker. So another content of the same size
goes unnoticed if it is in none of these records.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from loader.records.digest import content_key, digest
from loader.records.errors import is_of_storage
from loader.sources.reading import read_rows, sampled_indices
from loader.sources.retried import retried
from loader.sources.source import Source

_FILES = 1000
_RETRIES = 1  # what the storage does not give now is not compared


def seen_data(source: Any) -> dict[str, str]:
    """Digests of what is compared, by name."""
    sizes = [_size(path) for path in _spread(list(_paths(source)))]
    numbers = sampled_indices(len(source))
    try:
        keys: list[str | None] = [*_keys(source, numbers)]
    except Exception:
        keys = [_key_alone(source, number) for number in numbers]
    records = {f"record {number}": key for number, key in zip(numbers, keys, strict=True) if key}
    return {"length": digest(len(source)), "sizes of files": digest(sizes), **records}


def other_data(here: Mapping[str, str], there: Mapping[str, str]) -> str | None:
    """That a worker sees other data than the trainer, in words; None if it does not."""
    differ = [name for name in here if name in there and here[name] != there[name]]
    if not differ:
        return None
    return (
        f"sees other data than the trainer: {', '.join(differ)} of the source differ. Has a file "
        "changed since the loader began, is it another one there, or does the source give another "
        "record each time it is read?"
    )


def _keys(source: Any, numbers: list[int]) -> Iterator[str]:
    rows, there = read_rows(source, np.array(numbers), ragged=True)
    place = 0
    for is_there in [True] * len(numbers) if there is None else there:
        # Of a row by itself, for then it is the same whatever was read with it.
        yield content_key(jax.tree.map(lambda leaf, n=place: leaf[n], rows)) if is_there else "none"
        place += int(is_there)


def _key_alone(source: Any, number: int) -> str | None:
    """What tells a record from others. A bad record is bad for all. None of what the storage does
    not give: that error comes with the batch that has the record."""
    try:
        (key,) = retried(lambda: list(_keys(source, [number])), _RETRIES)
    except Exception as error:
        return None if is_of_storage(error) else "bad"
    return key


def _paths(source: Any) -> Iterator[str]:
    """The files that a source, or one that it is made of, says that it reads."""
    paths = getattr(source, "paths", None)
    if isinstance(paths, list):
        yield from paths
    for part in getattr(source, "__dict__", {}).values():
        for inner in part.values() if isinstance(part, dict) else [part]:
            if isinstance(inner, Source):
                yield from _paths(inner)


def _spread(paths: list[str]) -> list[str]:
    """At most so many of them, from the first to the last."""
    places = np.linspace(0, len(paths) - 1, min(len(paths), _FILES)).astype(np.int64)
    return [paths[place] for place in places.tolist()]


def _size(path: str) -> int | None:
    """The size of a file; None of what is none, or not on this machine."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
