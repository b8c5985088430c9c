"""The same files on local disk and in a bucket, and the sources that read them."""

import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from loader import (
    ArrayRecordSource,
    FilesSource,
    ImageFolderSource,
    JSONLinesSource,
    RawArrays,
    TextLinesSource,
    TokenWindows,
)
from tests.data import RECORD_SPEC, write_raw_records
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET

COUNT = 23  # records of each source
_FILES = 5

Open = Callable[..., Any]  # of a folder, which is a path or an address


def _texts() -> list[str]:
    return [f"record {n}, naïve ☕ {'x' * (7 * n)}" for n in range(COUNT)]


def _parts(items: Any) -> list[Any]:
    """The items, in files of different numbers of them."""
    cuts = [0, 3, 4, 11, 19, COUNT]
    return [items[begin:end] for begin, end in itertools.pairwise(cuts)]


def _lines() -> dict[str, bytes]:
    ends = ["\n", "\r\n", "", "\n", ""]  # of the last line
    files = zip(_parts(_texts()), ends, strict=True)
    return {f"{n}.txt": ("\n".join(t) + end).encode() for n, (t, end) in enumerate(files)}


def _json() -> dict[str, bytes]:
    rows = [json.dumps({"id": n, "text": text}) for n, text in enumerate(_texts())]
    return {f"{n}.jsonl": "\n".join(part).encode() for n, part in enumerate(_parts(rows))}


def _tokens() -> dict[str, bytes]:
    tokens = np.random.default_rng(0).permutation(COUNT).astype(np.uint16)
    return {f"{n}.bin": part.tobytes() for n, part in enumerate(_parts(tokens))}


def _images() -> dict[str, bytes]:
    names = ["cat", "dog", "elk/deep"]
    return {f"{names[n % 3]}/{n:02}.png": text.encode() for n, text in enumerate(_texts())}


def _records() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        paths = write_raw_records(Path(folder), list(map(len, _parts(range(COUNT)))))
        return {Path(path).name: Path(path).read_bytes() for path in paths}


def _array_record(folder: Any, **how: Any) -> ArrayRecordSource:
    return ArrayRecordSource(f"{folder}/*.array_record", RawArrays(RECORD_SPEC), **how)


FILES: dict[str, tuple[Callable[[], dict[str, bytes]], Open]] = {
    "files": (
        lambda: {f"{n:02}.txt": text.encode() for n, text in enumerate(_texts())},
        lambda folder, **how: FilesSource(f"{folder}/*.txt", **how),
    ),
    "lines": (_lines, lambda folder, **how: TextLinesSource(f"{folder}/*.txt", **how)),
    "json": (
        _json, lambda folder, **how: JSONLinesSource(f"{folder}/*.jsonl", ["id", "text"], **how),
    ),
    "tokens": (
        _tokens, lambda folder, **how: TokenWindows(f"{folder}/*.bin", 1, dtype="uint16", **how),
    ),
    "records": (_records, _array_record),
    "images": (_images, ImageFolderSource),
}  # fmt: skip


def write(kind: str, folder: Path) -> Any:
    """The local source of this kind."""
    contents, opened = FILES[kind]
    for name, content in contents().items():
        path = folder / kind / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return opened(folder / kind)


def put(kind: str, store: FakeStore) -> None:
    """The same files in the bucket, in a folder of this name."""
    store.put_all(BUCKET, {f"{kind}/{k}": content for k, content in FILES[kind][0]().items()})


def rows_of(source: Any) -> dict[str, np.ndarray]:
    return source.gather(np.arange(len(source)))
