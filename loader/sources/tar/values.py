"""What the members of a record become, by the last part of their suffix. Nothing is unpickled."""

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_TEXTS = ("txt", "text", "transcript")
_INTEGERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_PICKLES = ("pkl", "pickle", "pyd", "pth", "pt")
KEY = "__key__"

Parse = Callable[[bytes], Any]


def parsers_of(leaves: Any, first: list[str]) -> dict[str, Parse]:
    """How each leaf is made; `first` are the suffixes of the first record, which count if `leaves`
    is None."""
    wanted = dict.fromkeys(first) if leaves is None else leaves
    if isinstance(wanted, str) or not wanted:
        raise ValueError(
            f'leaves must be suffixes, ["jpg", "cls"], or a dict of them, got {leaves!r}'
        )
    given = wanted if isinstance(wanted, Mapping) else dict.fromkeys(wanted)
    return {suffix: _parser(suffix, given[suffix]) for suffix in sorted(given)}


def _parser(suffix: Any, parse: Any) -> Parse:
    if not isinstance(suffix, str):
        raise ValueError(f"leaves must be suffixes, such as 'jpg', got {suffix!r}")
    if parse is bytes or parse is str:
        return as_bytes if parse is bytes else as_text
    if parse is not None:
        if not callable(parse):
            raise ValueError(f"leaves gives {suffix!r} {parse!r}: give bytes, str or a function")
        return parse
    last = suffix.rpartition(".")[2]
    if last in _PICKLES:
        raise ValueError(
            f"members of the kind .{suffix} are pickles, which can run code of whoever wrote them: "
            f"leave them out, by leaves=[...] with the others, or give a function of their bytes, "
            f'leaves={{"{suffix}": function}}'
        )
    known: dict[str, Parse] = {
        **dict.fromkeys(_TEXTS, as_text),
        **dict.fromkeys(_INTEGERS, as_integer),
        "json": as_json, "jsn": as_json, "npy": as_array,
    }  # fmt: skip
    return known.get(last, as_bytes)


def as_bytes(data: bytes) -> bytes:
    return data


def as_text(data: bytes) -> str:
    return data.decode()


def as_integer(data: bytes) -> np.int64:
    return np.int64(int(data))


def as_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def as_array(data: bytes) -> np.ndarray:
    """An array of numpy's format, of numbers or texts, never of objects."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, columns, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, columns, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"it is of version {version} of numpy's format: write it anew by np.save")
    if dtype.hasobject:
        raise ValueError("it holds objects, which are pickled: save an array of numbers")
    content = memoryview(data)[file.tell() :]
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if size != len(content) or not dtype.itemsize:
        raise ValueError(f"it has {len(content)} bytes where its head says {size}: it is damaged")
    array = np.frombuffer(content, dtype)
    return array.reshape(shape, order="F" if columns else "C")
