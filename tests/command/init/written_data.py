"""A file or folder of each format, written by the format's own library where it has one."""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorstore as ts
from array_record.python.array_record_module import ArrayRecordWriter
from webdataset.writer import TarWriter

from loader import Msgpack
from tests.sources.formats.plain_tfrecord import example, frame

COUNT = 24


def image(n: int, *, one_size: bool = False) -> bytes:
    """No two are alike; the class is n % 3."""
    rng = np.random.default_rng(n)
    shape = (12, 12) if one_size else (12 + n % 5, 18 - n % 3)
    pixels = rng.integers(80 * (n % 3), 80 * (n % 3) + 60, (*shape, 3)).astype(np.uint8)
    return cv2.imencode(".png", pixels)[1].tobytes()


def text(n: int) -> str:
    return f"text {n} is naïve" + " and long" * (n % 4)


def image_folders(folder: Path) -> str:
    for n in [*range(COUNT), *range(COUNT + 1, COUNT + 3)]:  # no cat is held out
        part = "train" if n < COUNT else "test"
        path = folder / "pets" / part / ["cat", "dog", "elk"][n % 3]
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{n}.png").write_bytes(image(n))
    return "pets"


def loose_images(folder: Path) -> str:
    (folder / "photos").mkdir()
    for n in range(COUNT):
        (folder / f"photos/{n}.png").write_bytes(image(n, one_size=True))
    return "photos"


def json_lines(folder: Path) -> str:
    lines = [{"review": text(n), "stars": n % 5, "none": None} for n in range(COUNT)]
    (folder / "reviews.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return "reviews.jsonl"


def json_tokens(folder: Path) -> str:
    lines = [{"id": n, "input_ids": list(range(n, n + n % 7 + 2))} for n in range(COUNT)]
    (folder / "ids.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return "ids.jsonl"


def chats(folder: Path) -> str:
    def said(n: int) -> list[dict[str, str]]:
        answers = [{"role": "user", "content": text(n)}, {"role": "assistant", "content": f"{n}."}]
        return [{"role": "system", "content": "Be brief."}, *answers][n % 2 :]

    lines = [{"messages": said(n), "source": "us"} for n in range(COUNT)]
    (folder / "chats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return "chats.jsonl"


def text_lines(folder: Path) -> str:
    (folder / "lines.txt").write_text("".join(f"{text(n)}\n" for n in range(COUNT)))
    return "lines.txt"


def whole_files(folder: Path) -> str:
    (folder / "code").mkdir()
    for n in range(COUNT):
        (folder / f"code/{n}.py").write_text(f"def f{n}():\n    return {n}\n" * (1 + n % 3))
    return "code"


def token_bytes(folder: Path) -> str:
    np.random.default_rng(0).integers(0, 300, 3000).astype(np.uint16).tofile(folder / "corpus.bin")
    return "corpus.bin"


def token_array(folder: Path) -> str:
    np.save(folder / "corpus.npy", np.arange(3000, dtype=np.uint32) % 299)
    return "corpus.npy"


def arrays(folder: Path) -> str:
    (folder / "digits").mkdir()
    for part, count in (("train", COUNT), ("test", 9)):
        x = np.arange(count * 64).reshape(count, 8, 8, 1).astype(np.uint8)
        np.save(folder / f"digits/x_{part}.npy", x)
        np.save(folder / f"digits/y_{part}.npy", np.arange(count) % 10)
    return "digits"


def zarr(folder: Path) -> str:
    waves = np.random.default_rng(0).random((COUNT, 16), np.float32)
    for name, data in {"wave": waves, "frequency": waves.sum(1)}.items():
        kvstore = {"driver": "file", "path": f"{folder}/waves/{name}/"}
        layout = ts.ChunkLayout(chunk_shape=[10, *data.shape[1:]])
        spec = {"driver": "zarr3", "kvstore": kvstore}
        made: Any = ts.open(
            spec, create=True, dtype=data.dtype, shape=data.shape, chunk_layout=layout
        )
        made.result().write(data).result()
    return "waves"


def parquet(folder: Path) -> str:
    (folder / "people").mkdir()
    table = pa.table(
        {
            "image": [{"bytes": image(n), "path": None} for n in range(COUNT)],
            "label": [n % 3 for n in range(COUNT)],
            "age": [n if n % 4 else None for n in range(COUNT)],
            "when": pa.array([2**40 + n for n in range(COUNT)], pa.timestamp("us")),
            "tags": pa.array([[("a", n)] for n in range(COUNT)], pa.map_(pa.string(), pa.int64())),
        }
    )
    for part, rows in (("train", table), ("test", table.slice(3, 7))):
        pq.write_table(rows, folder / f"people/{part}-0.parquet", row_group_size=10)
    (folder / "people/README.md").write_text("people")
    (folder / "people/.part-0").write_bytes(bytes(range(200, 256)))
    (folder / "people/labels.csv").write_text("0,no\n1,yes\n")
    return "people"


def hugging_face(folder: Path) -> str:
    kinds = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    columns = {"text": list(map(text, range(COUNT))), "label": [n % 2 for n in range(COUNT)]}
    whole = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    parts = datasets.DatasetDict({"train": whole, "test": whole.select(range(6))})
    with contextlib.redirect_stderr(io.StringIO()):  # its bar
        parts.save_to_disk(folder / "saved")
    return "saved"


def examples() -> list[bytes]:
    records: list[dict[str, Any]] = [
        {"image": image(n), "label": np.array([n % 3]), "name": text(n).encode()}
        for n in range(COUNT)
    ]
    records[5]["extra"] = np.array([1.5])
    return list(map(example, records))


def tfrecord(folder: Path) -> str:
    (folder / "shards").mkdir()
    blobs = examples()
    for shard in range(2):
        name = f"photos.tfrecord-0000{shard}-of-00002"
        (folder / "shards" / name).write_bytes(b"".join(map(frame, blobs[shard::2])))
    return "shards"


def _array_record(path: Path, blobs: list[bytes]) -> None:
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for blob in blobs:
        writer.write(blob)
    writer.close()


def example_records(folder: Path) -> str:
    _array_record(folder / "photos.array_record", examples())
    return "photos.array_record"


def msgpack_records(folder: Path) -> str:
    records = [{"x": np.arange(n, n + 4.0), "y": np.float32(n / 3)} for n in range(COUNT)]
    _array_record(folder / "packed.array_record", list(map(Msgpack().encode, records)))
    return "packed.array_record"


def raw_records(folder: Path) -> str:
    _array_record(folder / "raw.array_record", [bytes([n, 255, n + 1]) for n in range(COUNT)])
    return "raw.array_record"


def tar(folder: Path) -> str:
    with TarWriter(str(folder / "photos.tar")) as sink:
        for n in range(COUNT):
            record = {"png": image(n, one_size=True), "cls": n % 3, "txt": text(n), "pyd": {"n": n}}
            sink.write({"__key__": f"{n:05}", **record})
    return "photos.tar"


CLASSIFY = {"kind": "Classify", "label": "label", "classes": 3}
#: The format in words, how it is written, kinds of source and order, leaves of a batch, the task.
FORMATS: dict[str, tuple[Callable[[Path], str], str, str, set[str], dict[str, Any] | None]] = {
    "images in folders": (
        image_folders, "ImageFolderSource", "Shuffle", {"image", "label"},
        {**CLASSIFY, "input": "image"},
    ),
    "loose images": (loose_images, "FilesSource", "Shuffle", {"image"}, None),
    "lines of JSON": (
        json_lines, "JSONLinesSource", "Shuffle", {"tokens", "targets", "loss_mask"},
        {"kind": "NextToken", "vocabulary": 259, "tokens": "tokens"},
    ),
    "tokens in JSON": (
        json_tokens, "JSONLinesSource", "Shuffle", {"input_ids", "targets", "loss_mask"},
        {"kind": "NextToken", "vocabulary": 28, "tokens": "input_ids"},
    ),
    "conversations": (
        chats, "TextLinesSource", "Shuffle", {"tokens", "targets", "loss_mask"},
        {"kind": "NextToken", "vocabulary": 259, "tokens": "tokens"},
    ),
    "lines of text": (
        text_lines, "TextLinesSource", "Shuffle", {"tokens", "targets", "loss_mask"},
        {"kind": "NextToken", "vocabulary": 259, "tokens": "tokens"},
    ),
    "whole files": (
        whole_files, "FilesSource", "Shuffle", {"tokens", "targets", "loss_mask"},
        {"kind": "NextToken", "vocabulary": 259, "tokens": "tokens"},
    ),
    "raw tokens": (
        token_bytes, "TokenWindows", "Shuffle", {"tokens", "targets", "loss_mask"},
        {"kind": "NextToken", "vocabulary": 300, "tokens": "tokens"},
    ),
    "an array of tokens": (
        token_array, "TokenWindows", "Shuffle", {"tokens", "targets", "loss_mask"},
        {"kind": "NextToken", "vocabulary": 299, "tokens": "tokens"},
    ),
    "arrays": (
        arrays, "ArraySource", "Shuffle", {"x", "y"},
        {"kind": "Classify", "input": "x", "label": "y", "classes": 10},
    ),
    "zarr": (
        zarr, "TensorStoreSource", "BlockShuffle", {"wave", "frequency"},
        {"kind": "Regress", "input": "wave", "target": "frequency"},
    ),
    "Parquet": (
        parquet, "ParquetSource", "BlockShuffle", {"image", "label", "age"},
        {**CLASSIFY, "input": "image"},
    ),
    "Hugging Face": (
        hugging_face, "HuggingFaceSource", "Shuffle", {"tokens", "targets", "loss_mask"},
        {"kind": "NextToken", "vocabulary": 259, "tokens": "tokens"},
    ),
    "TFRecord": (
        tfrecord, "TFRecordSource", "Shuffle", {"image", "label", "extra"},
        {**CLASSIFY, "input": "image"},
    ),
    "ArrayRecord of examples": (
        example_records, "ArrayRecordSource", "Shuffle", {"image", "label", "extra"},
        {**CLASSIFY, "input": "image"},
    ),
    "ArrayRecord of msgpack": (
        msgpack_records, "ArrayRecordSource", "Shuffle", {"x", "y"},
        {"kind": "Regress", "input": "x", "target": "y"},
    ),
    "ArrayRecord of raw bytes": (raw_records, "ArrayRecordSource", "Shuffle", {"data"}, None),
    "tar": (
        tar, "TarSource", "Shuffle", {"png", "cls"},
        {**CLASSIFY, "input": "png", "label": "cls"},
    ),
}  # fmt: skip
