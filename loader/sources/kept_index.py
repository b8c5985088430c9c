"""A file with the numbers of some records, and beside them what they belong to.

It is one file, so that the two cannot be of different runs: numpy's format, which `np.load` reads,
and after it a line of JSON.
"""

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loader.records.integers import Int64s
from loader.records.whole_file import write_whole

REMEDY = "remove the file to have it made again, or give another name"


def write_index(path: Path, key: Mapping[str, str], numbers: Int64s) -> None:
    """Put these numbers and what they belong to there, whole or not at all."""
    file = io.BytesIO()
    np.save(file, numbers)
    write_whole(path, file.getvalue() + b"\n" + json.dumps(_note(key, file.getvalue())).encode())


def read_index(path: Path, key: Mapping[str, str]) -> Int64s | None:
    """The numbers in the file; None if there is none. `ValueError` if they are not of this key."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    numbers, _, line = content.rpartition(b"\n")
    try:
        note = json.loads(line)
        was = dict(note["key"])
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{path} is not an index of kept records: {REMEDY}") from None
    differing = [
        f"{name} was {was.get(name)} and is {key.get(name)}"
        for name in sorted({*was, *key})
        if was.get(name) != key.get(name)
    ]
    if differing:
        raise ValueError(
            f"{path} belongs to other data or to another filter: {', '.join(differing)}; {REMEDY}"
        )
    if note != _note(key, numbers):
        raise ValueError(f"{path} is damaged: {REMEDY}")
    return np.load(io.BytesIO(numbers))


def _note(key: Mapping[str, str], numbers: bytes) -> dict[str, Any]:
    return {"key": dict(key), "sha256": hashlib.sha256(numbers).hexdigest()}
