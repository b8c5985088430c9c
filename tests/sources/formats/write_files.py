"""Writes the small files of `files/`, with the libraries that the formats come from.

    python -m tests.sources.formats.write_files parquet tfrecord

Their bytes differ with the release of the library, so the files are kept.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

FILES = Path(__file__).parent / "files"


def parquet() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    ages = [n if n % 4 else None for n in range(23)]
    table = pa.table({"id": list(range(23)), "text": [f"row {n}" for n in range(23)], "age": ages})
    pq.write_table(table, FILES / "people.parquet", row_group_size=5, write_page_checksum=True)


def tfrecord() -> None:
    """What TensorFlow writes, and what its `parse_example` makes of it."""
    import json

    tf = importlib.import_module("tensorflow")
    train: Any = tf.train

    def example(n: int) -> bytes:
        def ints(*values: int) -> Any:
            return train.Feature(int64_list=train.Int64List(value=values))

        def blobs(*values: bytes) -> Any:
            return train.Feature(bytes_list=train.BytesList(value=values))

        features = {
            "id": ints(n * n - 100),
            "big": ints((n - 11) * 2**55),
            "grid": train.Feature(float_list=train.FloatList(value=[n + k / 7 for k in range(6)])),
            "tokens": ints(*range(-n, 300 * (n % 4) - n, 100)),
            "image": blobs(bytes(range(255, 255 - n, -1)) * 3),
            "name": blobs(f"naïve {n} ☕".encode()),
            "words": blobs(*(b"w" * k for k in range(n % 3))),
            "unused": ints(*range(n)),
        }
        if n % 5 != 4:
            features["rare"] = ints(n)
        return train.Example(features=train.Features(feature=features)).SerializeToString()

    blobs = [example(n) for n in range(23)]
    for name, part in {"a": blobs[:9], "b": blobs[9:]}.items():
        with tf.io.TFRecordWriter(str(FILES / f"{name}.tfrecord")) as writer:
            for blob in part:
                writer.write(blob)
    fixed: Any = tf.io.FixedLenFeature
    spec = {
        "id": fixed([], tf.int64),
        "big": fixed([], tf.int64),
        "grid": fixed([2, 3], tf.float32),
        "tokens": tf.io.RaggedFeature(tf.int64),
        "image": fixed([], tf.string),
        "name": fixed([], tf.string),
        "words": tf.io.RaggedFeature(tf.string),
        "rare": fixed([], tf.int64, default_value=-7),
    }
    parsed = tf.io.parse_example(blobs, spec)
    lists = {
        name: leaf.to_list() if name in ("tokens", "words") else leaf.numpy().tolist()
        for name, leaf in parsed.items()
    }
    text = json.dumps(lists, default=lambda blob: blob.hex(), indent=None)
    (FILES / "tfrecord.json").write_text(text + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        {"parquet": parquet, "tfrecord": tfrecord}[name]()
