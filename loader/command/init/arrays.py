"""Arrays: `.npy` files, raw files of tokens, zarr and N5."""

import math
import os
from typing import Any

import numpy as np

from loader.command.init.files import Files, without_split
from loader.command.init.found import QUESTION, Found, Table, by_key, listed_some
from loader.command.init.magic import HEAD_BYTES, npy_header
from loader.command.init.places import Place
from loader.sources.tensorstore.tensorstore_source import TensorStoreSource

_LEAST_TOKENS = 1000  # a row of fewer integers is more like the labels of something
_LENGTHS = (257, 129, 65, 33, 17)  # of windows: one token more than what a model sees
_ROWS = 40  # windows that there should be
_SAMPLE_BYTES = 2**22
_MOST_TOKENS = 2**27  # that are all looked at


def npy(files: Files, name: str) -> Found:
    """Arrays side by side, a record a row of each; or tokens, where there are rows of them."""
    heads = {each: _header(files.place, each) for each in files.names}
    lengths = {shape[:1] for shape, _ in heads.values()}
    tokens = all(len(shape) == 1 and dtype.kind in "iu" for shape, dtype in heads.values())
    count = sum(math.prod(shape) for shape, _ in heads.values())
    if tokens and (len(lengths) > 1 or (len(heads) == 1 and count >= _LEAST_TOKENS)):
        return _tokens(files, {}, count)
    if () in lengths or len(lengths) > 1:
        shapes = [f"{each} is {dtype}{list(shape)}" for each, (shape, dtype) in heads.items()]
        raise ValueError(
            f"the arrays in {files.place} have no common number of rows, and a record is a row of "
            f"each: {listed_some(shapes)}; give a folder, or a glob, of those that belong together"
        )
    if files.far:
        raise ValueError(
            f"{files.place} is in a store, and .npy files are mapped into memory: copy them to "
            "this machine, or write the arrays as zarr"
        )
    arrays = {_leaf_of(each, files): files.place.path(each) for each in files.names}
    return Found(
        "arrays of numpy", {"kind": "ArraySource", "arrays": arrays}, narrow=by_key("arrays")
    )


def _header(place: Place, name: str) -> tuple[tuple[int, ...], np.dtype]:
    shape, dtype, needed = npy_header(place.head(name, HEAD_BYTES))
    if place.size(name) < needed:
        raise ValueError(
            f"{place.path(name)} has {place.size(name):,} bytes, and says of itself that it has "
            f"{needed:,}: it was cut off; write or copy it again"
        )
    return shape, dtype


def _leaf_of(name: str, files: Files) -> str:
    stem = without_split(name.removesuffix(".npy"))
    return stem.rpartition("/")[2] if len(files.names) > 1 or stem else name


def tokens(files: Files, name: str) -> Found:
    """A raw file of integers, which does not say how wide they are."""
    first = next((each for each in files.names if files.place.size(each)), files.names[0])
    head, size = files.place.head(first, _SAMPLE_BYTES), files.place.size(first)
    dtype, why = _width(head, size)
    found = _tokens(files, {"dtype": dtype}, files.total_bytes // np.dtype(dtype).itemsize)
    found.note(
        "dtype",
        f"{QUESTION}a raw file does not say what it was written as. {why}. Is that so?",
    )
    return found


def _width(head: bytes, size: int) -> tuple[str, str]:
    """The dtype that the values look like, and why."""
    if size % 2:
        return "uint8", "Its size is odd, so it is bytes here"
    if size % 4 == 0 and len(head) >= 8:
        wide = np.frombuffer(head[: len(head) // 4 * 4], np.uint32)
        if wide.max() < 2**20:  # more than the vocabularies there are; two of 16 bits make more
            return "uint32", f"As uint32 the values looked at are at most {wide.max()}"
    most = np.frombuffer(head[: len(head) // 2 * 2], np.uint16).max(initial=0)
    return "uint16", f"As uint16 the values looked at are at most {most}"


def _tokens(files: Files, dtype: Table, count: int) -> Found:
    length = next((n for n in _LENGTHS if count // n >= _ROWS), _LENGTHS[-1])
    table = {
        "kind": "TokenWindows",
        "tokens": files.paths(),
        "length": length,
        "stride": length - 1,
    }
    found = Found("tokens", {**table, **dtype})
    if not files.far and count <= _MOST_TOKENS:
        found.vocabulary = 1 + max(_largest(files.place.path(n), dtype) for n in files.names)
    found.note(
        "length", f"{QUESTION}how long is a row? It has one token more than that, for the targets"
    )
    return found


def _largest(path: str, dtype: Table) -> int:
    if not os.path.getsize(path):
        return 0
    tokens = np.memmap(path, dtype["dtype"], mode="r") if dtype else np.load(path, mmap_mode="r")
    return int(tokens.max(initial=0))


def chunked(place: Place) -> Found | None:
    """One array of zarr, zarr3 or N5, or those in a folder or a group."""
    if _is_array(place):
        arrays = {"data": place.path("")}
    else:
        arrays = {name: place.path(name) for name in place.folders if _is_array(place.below(name))}
        if not arrays:
            return None
    found = Found("chunked arrays", {"kind": "TensorStoreSource"}, narrow=by_key("arrays"))
    found.blocks = True
    arrays, out = _common(arrays)
    found.source["arrays"] = arrays
    if out:
        found.note("arrays", f"left out, because they have other numbers of rows: {', '.join(out)}")
    return found


def _is_array(place: Place) -> bool:
    if place.has("zarr.json"):
        return b'"array"' in place.head("zarr.json", HEAD_BYTES).replace(b" ", b"")
    return place.has(".zarray") or (
        place.has("attributes.json") and b"dimensions" in place.head("attributes.json", HEAD_BYTES)
    )


def _common(arrays: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Those with the number of rows that most have, and the others."""
    by_rows: dict[Any, list[str]] = {}
    for name, path in arrays.items():
        try:
            rows: Any = len(TensorStoreSource(path))
        except ValueError:
            if len(arrays) == 1:
                raise
            rows = math.nan
        by_rows.setdefault(rows, []).append(name)
    kept = max(by_rows.values(), key=len)
    return {n: arrays[n] for n in kept}, [n for n in arrays if n not in kept]
