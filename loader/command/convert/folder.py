"""The folder of a conversion: what it belongs to, and which of its shards are written."""

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from loader.records.whole_file import write_whole

_NOTE = "convert.json"
_FORMAT = "gristmill convert 1"
_DRAFT = re.compile(r"\..+\.[0-9a-f]{32}")  # of `whole_file`, when it was killed


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """While this lasts, no other process converts into the folder, which is there."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"another process is writing into {folder}: wait for it") from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


def begun(folder: Path, key: Mapping[str, str], shards: int) -> list[str | None]:
    """The digest of each shard that is written, None of the others.

    `key` says what the folder belongs to; `ValueError` if it belongs to something else.
    """
    note = folder / _NOTE
    if not note.exists():
        if not all(_DRAFT.fullmatch(path.name) for path in folder.iterdir()):
            raise ValueError(
                f"{folder} is not empty, and was not begun by this command: give another folder"
            )
        keep(folder, key, [None] * shards)
    try:
        kept = json.loads(note.read_bytes())
        was, done = dict(kept["key"]), list(kept["shards"])
        if kept["format"] != _FORMAT:
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"{note} is not what this command has written there: give another folder"
        ) from None
    differing = [
        f"{name} was {was.get(name)} and is {key.get(name)}"
        for name in sorted({*was, *key})
        if was.get(name) != key.get(name)
    ]
    if differing or len(done) != shards:
        raise ValueError(
            f"{folder} was begun with another source, or in another way: {', '.join(differing)}; "
            "give another folder, or remove it to have it written anew"
        )
    for path in folder.rglob(".*"):
        if _DRAFT.fullmatch(path.name):
            path.unlink()
    return done


def keep(folder: Path, key: Mapping[str, str], done: Sequence[str | None]) -> None:
    """Note which shards are written."""
    note = {"format": _FORMAT, "key": dict(key), "shards": list(done)}
    write_whole(folder / _NOTE, json.dumps(note, indent=1).encode() + b"\n")
