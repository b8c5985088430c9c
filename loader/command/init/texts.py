"""Text: lines, objects of JSON on lines, whole files."""

import json
from collections import Counter
from typing import Any

import numpy as np

from loader.command.init.chats import is_chat
from loader.command.init.files import Files, keep_index
from loader.command.init.found import (
    QUESTION,
    Found,
    Table,
    by_key,
    listed_some,
    made,
    spread,
)
from loader.command.init.magic import suffix_of

_WHOLE = 8  # so many files of some other suffix than these are whole texts
_OF_LINES = (".txt", ".text", ".log", "")
_KINDS = {bool: "bool", int: "int64", float: "float32"}


def lines(files: Files, name: str) -> Found:
    """Lines of text; or whole files, where they seem to be the texts."""
    suffix = suffix_of(files.names[0])
    if suffix not in _OF_LINES and len(files.names) >= _WHOLE:
        table = {"kind": "FilesSource", "paths": files.paths()}
        found = Found("whole files of text", table)
        found.note(
            "kind",
            QUESTION + "a record is a whole file here. Is each line a record? Then write "
            '"TextLinesSource"',
        )
        return found
    table: Table = {"kind": "TextLinesSource", "paths": files.paths()}
    found = Found("lines of text", table)
    keep_index(found, files, name, "lines end")
    if len(files.names) > 1:
        found.note(
            "kind",
            QUESTION + "a record is a line here. Is each file a record? Then write "
            '"FilesSource", without index',
        )
    return found


def json_lines(files: Files, name: str) -> Found:
    """Objects of JSON, a leaf for each key that is of one type in all lines looked at."""
    found = Found("lines of JSON", {"kind": "TextLinesSource", "paths": files.paths()})
    keep_index(found, files, name, "lines end")
    source = made(found.source)
    numbers = spread(source)
    objects = [_object(source, n, line) for n, line in _lines(source, numbers)]
    if all(map(is_chat, objects)):
        found.what, found.chats = "conversations, as lines of JSON", True
        return found
    leaves, out = leaves_of(objects)
    if not leaves:
        raise ValueError(
            f"no key of the objects in {files.place} can be a leaf, because it must be a text, a "
            f"number or a list of numbers on every line: {'; '.join(out)}"
        )
    index = {k: v for k, v in found.source.items() if k == "index"}
    found.source = {
        "kind": "JSONLinesSource", "paths": found.source["paths"], "leaves": leaves, **index,
    }  # fmt: skip
    found.narrow = by_key("leaves")
    found.note("leaves", f"as {len(numbers)} lines show them, from the first to the last")
    if out:
        found.note("leaves", f"left out: {'; '.join(out)}")
    return found


def _lines(source: Any, numbers: np.ndarray) -> list[tuple[int, str]]:
    texts = source.gather(numbers)["text"].tolist()
    return list(zip(numbers.tolist(), texts, strict=True))


def _object(source: Any, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{source.locate(number)} is not JSON: {error}; it begins {line[:40]!r}: correct the "
            "line, or take it out of the file"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(
            f"{source.locate(number)} is a {type(value).__name__}, {line[:40]!r}: a line must be "
            'an object, such as {"text": "..."}'
        )
    return value


def leaves_of(objects: list[dict[str, Any]]) -> tuple[dict[str, str], list[str]]:
    """The dtype of each key that can be a leaf, and why the others cannot."""
    counts = Counter(key for each in objects for key in each)
    leaves, out = {}, []
    for key, count in counts.items():
        values = [each[key] for each in objects if key in each]
        dtype, why = _dtype(values)
        if count < len(objects):
            dtype, why = "", f"not on {len(objects) - count} of {len(objects)} lines"
        if dtype:
            leaves[key] = dtype
        else:
            out.append(f"{key} ({why})")
    return leaves, [listed_some(out)] if out else []


def _dtype(values: list[Any]) -> tuple[str, str]:
    """What holds all of these values; or "" and why nothing does."""
    empty = sum(value is None for value in values)
    if empty:
        return "", f"null on {empty} of {len(values)} lines"
    if all(isinstance(value, str) for value in values):
        return "str", ""
    depths, kinds = set[int](), set[type]()
    for value in values:
        depths.add(_look_into(value, kinds))
    if len(depths) > 1:
        return "", "lists on some lines and not on others"
    if kinds == {int, float}:
        kinds = {float}
    if len(kinds) == 1 and (kind := next(iter(kinds))) in _KINDS:
        return _KINDS[kind], ""
    return "", " and ".join(sorted(kind.__name__ for kind in kinds)) or "empty lists"


def _look_into(value: Any, kinds: set[type], depth: int = 0) -> int:
    """Adds the types of what is in these lists; gives how deep they are."""
    if not isinstance(value, list):
        kinds.add(type(value))
        return depth
    return max([_look_into(item, kinds, depth + 1) for item in value], default=depth + 1)
