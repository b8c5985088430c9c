"""The kinds of sources that the attack uses, each with its records as the oracle knows them.

A kind is a function of (count, folder, seed). To add one, write it, and a line in `SOURCES`.
"""

import dataclasses
import functools
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import datasets
import grain
import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorstore as ts

from loader import (
    ArrayRecordSource,
    FilesSource,
    Filtered,
    HuggingFaceSource,
    ImageFolderSource,
    JSONLinesSource,
    Mapped,
    Mixture,
    Msgpack,
    Packed,
    ParquetSource,
    RawArrays,
    Source,
    Subset,
    TarSource,
    TensorStoreSource,
    TextLinesSource,
    TFExample,
    TFRecordSource,
    TokenWindows,
    index_lengths,
)
from loader.sources.tar.values import as_array
from operators import PadTokens, Tokenize
from tests.attack import oracle, plain_operators
from tests.attack.oracle import Record
from tests.attack.plain_operators import documents, pictures, plain_records
from tests.data import RECORD_SPEC, write_array_record, write_raw_records
from tests.sources.formats.plain_tar import npy, pack
from tests.sources.formats.plain_tfrecord import example, frame

EPOCHS_ASKED = 8  # for tables of sources that differ from epoch to epoch
TEXTS_FIRST = ("tokenize", "pad_tokens")


@dataclasses.dataclass
class Given:
    """A source, and the record that it must give: by epoch and number."""

    source: Any
    record_at: Callable[[int, int], Record | None]


class NotReady(Exception):
    """What a broken record raises."""


def stacked(source: Any, records: Record) -> Given:
    """A source whose records are rows of arrays."""
    return Given(source, lambda _, number: {k: leaf[number] for k, leaf in records.items()})


def listed(source: Any, records: list[Record | None]) -> Given:
    return Given(source, lambda _, number: records[number])


def tabled(source: Any, table: list[Record | None], length: int) -> Given:
    """A source that differs from epoch to epoch; the table has all epochs one after the other."""
    return Given(source, lambda epoch, number: table[epoch * length + number])


class Plain:
    """A source of a user's: length and one record, found as in a file, by `seek` and `read`."""

    def __init__(self, count: int) -> None:
        self.records = plain_records(count)
        self._place = 0

    def __len__(self) -> int:
        return len(self.records["id"])

    def __getitem__(self, index: int) -> Any:
        self._place = index
        time.sleep(0)  # another thread may run now: one that reads too would move the place
        return {name: leaf[self._place] for name, leaf in self.records.items()}


class Gaps(Plain):
    """Some records are filtered out."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [None if index % 4 == 3 else self[index] for index in indices]


class Gathering(Source):
    """Gathers; where it can, it gives views of its own arrays."""

    thread_safe = True

    def __init__(self, count: int) -> None:
        self.records = plain_records(count)

    def __len__(self) -> int:
        return len(self.records["id"])

    def gather(self, indices: np.ndarray) -> Any:
        if len(indices) and np.array_equal(indices, np.arange(indices[0], indices[-1] + 1)):
            return {name: leaf[indices[0] : indices[-1] + 1] for name, leaf in self.records.items()}
        return {name: leaf[indices] for name, leaf in self.records.items()}

    def record_spec(self) -> Any:
        return {k: jax.ShapeDtypeStruct(v.shape[1:], v.dtype) for k, v in self.records.items()}

    def fingerprint(self) -> Any:
        return {"length": len(self)}

    def blocks(self) -> np.ndarray:
        count = len(self)
        return np.array([0, count // 5, count // 2, count - 1])


class Slow(Gathering):
    """Reads that take another time each, so that threads come in another order each."""

    thread_safe = True

    def gather(self, indices: np.ndarray) -> Any:
        if random.random() < 0.5:
            time.sleep(random.random() * 0.002)
        return super().gather(indices)


class Broken(Gathering):
    """Some records cannot be read until they are healed."""

    thread_safe = True

    def __init__(self, count: int, seed: int) -> None:
        super().__init__(count)
        self.ever = set(random.Random(seed).sample(range(count), min(count, 1 + seed % 3)))
        self.broken = set(self.ever)

    def gather(self, indices: np.ndarray) -> Any:
        if hit := self.broken & set(indices.tolist()):
            raise NotReady(sorted(hit))
        return super().gather(indices)


class Bad(Gathering):
    """Some records can never be read."""

    thread_safe = True

    def gather(self, indices: np.ndarray) -> Any:
        if (indices % 4 == 1).any():
            raise LookupError("there is a bad record")
        return super().gather(indices)


class Listed:
    """Records of a list, as a source of a user's."""

    def __init__(self, records: list[Any]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        return self.records[index]


def rows_of(records: Record) -> list[Record]:
    return [{k: v[n] for k, v in records.items()} for n in range(len(records["id"]))]


def gaps(count: int, folder: Path, seed: int) -> Given:
    rows = rows_of(plain_records(count))
    return listed(Gaps(count), [None if n % 4 == 3 else row for n, row in enumerate(rows)])


def bad(count: int, folder: Path, seed: int) -> Given:
    rows = rows_of(plain_records(count))
    return listed(Bad(count), [None if n % 4 == 1 else row for n, row in enumerate(rows)])


def array_record(count: int, folder: Path, seed: int) -> Given:
    counts = [count // 2, count - count // 2] if count > 1 else [count]
    source = ArrayRecordSource(write_raw_records(folder, counts), RawArrays(RECORD_SPEC))
    return stacked(source, plain_records(count))


def msgpack(count: int, folder: Path, seed: int) -> Given:
    blobs = [Msgpack().encode(record) for record in rows_of(plain_records(count))]
    path = write_array_record(folder / "maps.array_record", blobs)
    return stacked(ArrayRecordSource(path, Msgpack()), plain_records(count))


def zarr(count: int, folder: Path, seed: int) -> Given:
    records = plain_records(count)
    for name, leaf in records.items():
        store = {"driver": "file", "path": str(folder / name)}
        layout = ts.ChunkLayout(chunk_shape=[1 + seed % 7, *leaf.shape[1:]])
        made = ts.open(
            {"driver": "zarr3", "kvstore": store},
            create=True, dtype=leaf.dtype, shape=leaf.shape, chunk_layout=layout,
        )  # fmt: skip
        made.result().write(leaf).result()
    return stacked(TensorStoreSource({name: str(folder / name) for name in records}), records)


def parquet(count: int, folder: Path, seed: int) -> Given:
    records = plain_records(count)
    columns: dict[str, Any] = {"id": records["id"], "x": _fixed_lists(records["x"])}
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=1 + seed % 7)
    most_bytes = (0, 300, 2**29)[seed % 3]
    return stacked(ParquetSource(folder / "rows.parquet", most_bytes=most_bytes), records)


def tfrecord(count: int, folder: Path, seed: int) -> Given:
    records = plain_records(count)
    blobs = [example(row) for row in rows_of(records)]
    (folder / "a.tfrecord").write_bytes(b"".join(map(frame, blobs)))
    parse = TFExample({"id": "int32", "x": "float32[3, 2]"})
    index = folder / "index" if seed % 2 else None
    return stacked(TFRecordSource(folder / "a.tfrecord", parse, index), records)


def tar(count: int, folder: Path, seed: int) -> Given:
    contents: dict[str, bytes] = {}
    for number, row in enumerate(rows_of(plain_records(count))):
        contents |= {f"{number:03}.id": str(row["id"]).encode(), f"{number:03}.x": npy(row["x"])}
    index = folder / "index" if seed % 2 else None
    leaves = {"id": np.int32, "x": as_array}
    return stacked(
        TarSource(pack(folder / "a.tar", contents), index, leaves=leaves), plain_records(count)
    )


def hugging_face(count: int, folder: Path, seed: int) -> Given:
    records = plain_records(count)
    features: Any = datasets.Features(
        {"id": datasets.Value("int32"), "x": datasets.Array2D((3, 2), "float32")}
    )
    if seed % 2:
        features["x"] = datasets.Sequence(datasets.Sequence(datasets.Value("float32"), 2), 3)
    dataset: Any = datasets.Dataset.from_dict(dict(records), features=features)
    if seed % 3 == 1:
        dataset = dataset.shuffle(seed=seed)
        records = {name: leaf[dataset["id"]] for name, leaf in records.items()}
    if seed % 3 == 2:
        dataset = datasets.concatenate_datasets(
            [dataset.select(range(count // 2)), dataset.select(range(count // 2, count))]
        )
    return stacked(HuggingFaceSource(dataset), records)


def _fixed_lists(leaf: np.ndarray) -> Any:
    column = pa.array(leaf.ravel())
    for size in leaf.shape[:0:-1]:
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def shuffled_grain(count: int, folder: Path, seed: int) -> Given:
    rows = rows_of(plain_records(count))
    dataset = grain.MapDataset.source(rows).seed(seed).shuffle()
    table = [dataset[index] for index in range(count * oracle_epochs(count))]
    return tabled(dataset, table, count)


def not_two(row: Any) -> bool:
    return bool(row["id"] % 4 != 2)


def filtered_grain(count: int, folder: Path, seed: int) -> Given:
    rows = rows_of(plain_records(count))
    dataset = grain.MapDataset.source(rows).filter(not_two)
    return listed(dataset, [row if not_two(row) else None for row in rows])


def lines(count: int, folder: Path, seed: int) -> Given:
    texts = [plain_operators.text(n) for n in range(count)]
    (folder / "lines.txt").write_text("\n".join(texts) + "\n" * (seed % 2))
    return listed(TextLinesSource(folder / "lines.txt"), [{"text": t} for t in texts])


def json_lines(count: int, folder: Path, seed: int) -> Given:
    records = plain_records(count)
    objects = [{k: v.tolist() for k, v in row.items()} for row in rows_of(records)]
    (folder / "lines.jsonl").write_text("\n".join(map(json.dumps, objects)) + "\n" * (seed % 2))
    leaves = {name: leaf.dtype for name, leaf in records.items()}
    return stacked(JSONLinesSource(folder / "lines.jsonl", leaves), records)


def files(count: int, folder: Path, seed: int) -> Given:
    texts = [plain_operators.text(n) for n in range(count)]
    for number, text in enumerate(texts):
        (folder / f"{number:03}.txt").write_text(text)
    return listed(FilesSource(str(folder / "*.txt")), [{"text": t} for t in texts])


def image_folder(count: int, folder: Path, seed: int) -> Given:
    records: list[Record | None] = []
    for number, pixels in enumerate(pictures(count)["image"]):
        label = number * plain_operators.CLASSES // count
        path = folder / f"class {label}" / f"{number:03}.{('png', 'PNG')[number % 2]}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(cv2.imencode(".png", pixels)[1].tobytes())
        records.append({"image": path.read_bytes(), "label": np.int32(label)})
    classes = [f"class {label}" for label in range(plain_operators.CLASSES)]
    return listed(ImageFolderSource(folder, classes=classes), records)


def windows(count: int, folder: Path, seed: int) -> Given:
    length, stride = 5, 1 + seed % 6
    tokens = plain_operators.token_row((count - 1) * stride + length)
    path = folder / "tokens.npy"
    np.save(path, tokens)
    records: list[Record | None] = [
        {"tokens": tokens[n * stride : n * stride + length]} for n in range(count)
    ]
    return listed(TokenWindows(path if seed % 2 else tokens, length, stride), records)


def packed(count: int, folder: Path, seed: int) -> Given:
    given = documents(count)
    source = Listed([{"tokens": tokens} for tokens in given])
    rows = Packed(source, index_lengths(source), row_length=8, seed=seed)
    table: list[Record | None] = [rows[n] for n in range(len(rows))]
    oracle.check_packed([row for row in table if row is not None], given)
    return listed(rows, table)


def joined(count: int, folder: Path, seed: int) -> Given:
    given = documents(count)
    source = Listed([{"tokens": tokens} for tokens in given])
    rows = Packed(source, index_lengths(source), row_length=4, mode="concat")
    table: list[Record | None] = [rows[n] for n in range(len(rows))]
    oracle.check_joined([row for row in table if row is not None], given)
    return listed(rows, table)


def mapped(count: int, folder: Path, seed: int) -> Given:
    texts = [{"text": plain_operators.text(n)} for n in range(count)]
    made = [plain_operators.padded_tokens(plain_operators.tokenized(t, None), None) for t in texts]
    return listed(Mapped(Listed(texts), [Tokenize(), PadTokens("tokens", 24)]), [*made])


def subset(count: int, folder: Path, seed: int) -> Given:
    records = plain_records(2 * count)
    chosen = [0, *random.Random(seed).sample(range(1, 2 * count), count - 1)]
    random.Random(seed).shuffle(chosen)  # with record 0, which no filter of the attack takes out
    return listed(Subset(records, chosen), [rows_of(records)[n] for n in chosen])


def filtered(count: int, folder: Path, seed: int) -> Given:
    records = plain_records(2 * count)
    ids = {0, *random.Random(seed).sample(range(1, 2 * count), count - 1)}
    source = Filtered(records, functools.partial(_has_id, ids), folder / "kept.npy")
    return listed(source, [rows_of(records)[n] for n in sorted(ids)])


def _has_id(ids: set[int], record: Record) -> bool:
    return int(record["id"]) in ids


def mixture(count: int, folder: Path, seed: int) -> Given:
    small = 1 + seed % 5
    records = plain_records(count + small)
    web, books = ({k: v[part] for k, v in records.items()} for part in _two(count))
    source = Mixture({"a": (web, 3), "b": (books, 1 + seed % 2)}, seed=seed)
    length = len(source)
    table: list[Any] = [source[n] for n in range(length * oracle_epochs(length))]
    whole = rows_of(records)
    for row in table:
        oracle.same_batch(row, whole[int(row["id"])], "a record of a mixture")
    ids = [int(row["id"]) for row in table]
    oracle.check_mixture(ids, [count, small], [3, 1 + seed % 2])
    return tabled(source, table, length)


def _two(count: int) -> tuple[slice, slice]:
    return slice(count), slice(count, None)


def oracle_epochs(length: int) -> int:
    """How many epochs the tables of the oracle have."""
    return max(EPOCHS_ASKED, -(-160 // length))


Kind = Callable[[int, Path, int], Given]

SOURCES: dict[str, Kind] = {
    "arrays": lambda count, folder, seed: stacked(plain_records(count), plain_records(count)),
    "pictures": lambda count, folder, seed: stacked(pictures(count), pictures(count)),
    "plain": lambda count, folder, seed: stacked(Plain(count), plain_records(count)),
    "gathering": lambda count, folder, seed: stacked(Gathering(count), plain_records(count)),
    "slow": lambda count, folder, seed: stacked(Slow(count), plain_records(count)),
    "broken": lambda count, folder, seed: stacked(Broken(count, seed), plain_records(count)),
    "bad": bad,
    "gaps": gaps,
    "array_record": array_record,
    "msgpack": msgpack,
    "zarr": zarr,
    "parquet": parquet,
    "tfrecord": tfrecord,
    "tar": tar,
    "hugging_face": hugging_face,
    "grain": shuffled_grain,
    "filtered_grain": filtered_grain,
    "lines": lines,
    "json_lines": json_lines,
    "files": files,
    "image_folder": image_folder,
    "windows": windows,
    "packed": packed,
    "joined": joined,
    "mapped": mapped,
    "subset": subset,
    "filtered": filtered,
    "mixture": mixture,
}
FIRST_OPERATORS: dict[str, tuple[str, ...]] = {
    "lines": TEXTS_FIRST,
    "files": TEXTS_FIRST,
    "image_folder": ("decode",),
}
HAS_GAPS = {"gaps", "filtered_grain", "bad"}
HAS_BLOCKS = {
    *("gathering", "slow", "broken", "bad"),
    *("array_record", "msgpack", "zarr", "lines", "json_lines", "parquet", "tfrecord", "tar"),
}
WEIGHTS = {  # some are slow to make
    "arrays": 3,
    "gaps": 2,
    "zarr": 0.2,
    "parquet": 0.5,
    "hugging_face": 0.3,
    "files": 0.3,
    "image_folder": 0.3,
    "grain": 0.1,
}
