"""The workload of formats that others have made: each against its own library."""

import functools
import itertools
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bench_contest import Batches, Contest, Contestant, Promise, Result
from bench_data import Columns, images
from bench_process import in_child
from bench_timing import Pace, hold

from loader import (
    BlockShuffle,
    DataLoader,
    HuggingFaceSource,
    ParquetSource,
    Shuffle,
    TarSource,
    TFExample,
    TFRecordSource,
)

_ROWS, _BATCH, _GROUP = 40_000, 1024, 1000
_PARSE = TFExample({"image": bytes, "label": "int64"})


def formats(pace: Pace) -> Iterator[Result]:
    """Parquet, Hugging Face, TFRecord and tar files, against the libraries they come from."""
    for contest in (_parquet, _hugging_face, _tfrecord, _tar):
        with tempfile.TemporaryDirectory() as folder:
            yield hold(contest(Path(folder), pace), pace)


def _numbers() -> Columns:
    tokens = np.random.default_rng(0).integers(0, 50_000, (_ROWS, 128), np.int32)
    return Columns({"tokens": tokens, "label": np.arange(_ROWS)})


def _promise(columns: Columns, pace: Pace, *, label_only: bool = False) -> Promise:
    arrays = {n: a for n, a in columns.arrays.items() if n == "label" or not label_only}
    shapes = {
        n: (a.shape[1:], "int64" if n == "label" else a.dtype.name) for n, a in arrays.items()
    }
    rows = None if label_only else columns.take
    return Promise(len(columns), shapes, rows, 4096 if pace.quick else 8192)


def _ours(
    name: str,
    source: Callable[[], Any],
    order: Any,
    label: str = "label",
    family: str = "gristmill",
) -> Contestant:
    def make() -> Batches:
        loader = DataLoader(source(), batch_size=_BATCH, order=order, epochs=None)
        return ({**batch, "label": batch[label]} for batch in loader.host_batches())

    return Contestant(name, make, family, ahead=5)


def _limit(name: str, batches: Callable[[], Batches], package: str | None = None) -> Contestant:
    return Contestant(name, batches, "limit", package)


# Parquet


def _write_parquet(path: Path, columns: Columns) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tokens = pa.FixedSizeListArray.from_arrays(pa.array(columns.arrays["tokens"].ravel()), 128)
    table = pa.table({"tokens": tokens, "label": columns.arrays["label"]})
    pq.write_table(table, path, row_group_size=_GROUP, compression="zstd")


def _front_to_back(path: Path) -> Batches:
    import pyarrow.parquet as pq

    while True:
        for batch in pq.ParquetFile(path).iter_batches(_BATCH):
            tokens = batch["tokens"].flatten().to_numpy().reshape(-1, 128)
            yield {"tokens": tokens, "label": batch["label"].to_numpy()}


def _parquet(folder: Path, pace: Pace) -> Contest:
    columns, path = _numbers(), folder / "a.parquet"
    in_child(_write_parquet, path, columns)
    group = columns.arrays["tokens"][:_GROUP].nbytes
    # A tenth of the groups are kept, and a window is less.
    small = functools.partial(
        ParquetSource, path, most_bytes=_ROWS // _GROUP // 10 * (group + 8 * _GROUP)
    )
    contestants = (
        _limit("pyarrow, front to back", functools.partial(_front_to_back, path)),
        _ours("gristmill", small, BlockShuffle(0, window=3)),
        _ours("gristmill, Shuffle", small, Shuffle(0), family="full shuffle"),
    )
    return Contest("parquet, 128 int32 a row", contestants, _promise(columns, pace))


# Hugging Face


def _write_hugging_face(folder: Path, columns: Columns) -> None:
    import datasets

    kinds: Any = datasets
    lists = kinds.Sequence(kinds.Value("int32"), length=128)
    features = kinds.Features({"tokens": lists, "label": kinds.Value("int64")})
    kinds.Dataset.from_dict(columns.arrays, features=features).save_to_disk(folder)


def _torch_style(folder: Path) -> Batches:
    import datasets

    records: Any = datasets.load_from_disk(folder)
    records, random = records.with_format("numpy"), np.random.default_rng(0)
    while True:
        order = random.permutation(len(records))
        for first in range(0, len(order), _BATCH):
            rows = records.__getitems__(order[first : first + _BATCH].tolist())
            tokens = np.stack([row["tokens"] for row in rows]).astype(np.int32)  # it makes int64
            yield {"tokens": tokens, "label": np.stack([row["label"] for row in rows])}


def _hugging_face(folder: Path, pace: Pace) -> Contest:
    columns, saved = _numbers(), folder / "saved"
    in_child(_write_hugging_face, saved, columns)
    arrays = _ours("ArraySource of the same arrays", lambda: columns.arrays, Shuffle(0))
    contestants = (
        _limit(arrays.name, arrays.make),
        _ours("gristmill", functools.partial(HuggingFaceSource, saved), Shuffle(0)),
        Contestant("datasets, torch style", lambda: _torch_style(saved), "datasets", "datasets"),
    )
    return Contest("hugging face, 128 int32 a row", contestants, _promise(columns, pace))


# TFRecord


def _examples(columns: Columns) -> Iterator[bytes]:
    def field(number: int, data: bytes) -> bytes:
        size, head = len(data), bytearray()
        while size >= 0x80:
            head.append(size & 0x7F | 0x80)
            size >>= 7
        return bytes([number << 3 | 2, *head, size]) + data

    for image, label in zip(columns.arrays["image"], columns.arrays["label"], strict=True):
        number = int(label)
        digits = bytes([number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14])
        one = field(1, field(1, b"image") + field(2, field(1, field(1, image.tobytes()))))
        yield field(1, one + field(1, field(1, b"label") + field(2, field(3, field(1, digits)))))


def _write_tfrecord(path: Path, columns: Columns) -> None:
    from loader.sources.tfrecord.crc32c import masked_crcs

    with path.open("wb") as file:
        for blob in _examples(columns):
            head = struct.pack("<Q", len(blob))
            sums = [struct.pack("<I", one) for one in masked_crcs([head, blob]).tolist()]
            file.write(head + sums[0] + blob + sums[1])


def _in_sequence(path: Path) -> Batches:
    """Plain reads, one after the other; checksums and examples as in the source."""
    from loader.sources.tfrecord.frames import records_in

    def frames() -> Iterator[bytes]:
        with path.open("rb") as file:
            while head := file.read(12):
                yield head + file.read(struct.unpack("<Q", head[:8])[0] + 4)

    while True:
        found = frames()
        while group := list(itertools.islice(found, _BATCH)):
            yield _PARSE.many(records_in(group, checksums=True))


def _tf_data(path: Path) -> Batches:
    import importlib

    tf: Any = importlib.import_module("tensorflow")
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    dataset = tf.data.TFRecordDataset([str(path)]).shuffle(10_000, seed=0).batch(_BATCH).repeat()
    dataset = dataset.map(lambda blobs: tf.io.parse_example(blobs, features), tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def _tfrecord(folder: Path, pace: Pace) -> Contest:
    columns, path = images(20_000), folder / "a.tfrecord"
    in_child(_write_tfrecord, path, columns)
    contestants = (
        _limit("a sequential read", functools.partial(_in_sequence, path)),
        _ours("gristmill", functools.partial(TFRecordSource, path, _PARSE), Shuffle(0)),
        Contestant("tf.data, shuffle(10_000)", lambda: _tf_data(path), "tf.data", "tensorflow",
                   ahead=16),
    )  # fmt: skip
    title = "tfrecord, 3 KB examples"
    return Contest(title, contestants, _promise(columns, pace, label_only=True))


# Tar


def _write_tar(path: Path, columns: Columns) -> None:
    import io
    import tarfile

    with tarfile.open(path, "w") as tar:
        for image, label in zip(columns.arrays["image"], columns.arrays["label"], strict=True):
            for suffix, content in (("jpg", image.tobytes()), ("cls", str(label).encode())):
                info = tarfile.TarInfo(f"{label:06}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def _webdataset(path: Path) -> Batches:
    import importlib

    webdataset: Any = importlib.import_module("webdataset")
    while True:
        found = iter(webdataset.WebDataset([f"file:{path}"], shardshuffle=False))
        while group := list(itertools.islice(found, _BATCH)):
            labels = np.array([int(record["cls"]) for record in group])
            yield {"image": [record["jpg"] for record in group], "label": labels}


def _tar(folder: Path, pace: Pace) -> Contest:
    columns, path = images(20_000), folder / "a.tar"
    in_child(_write_tar, path, columns)
    contestants = (
        _limit("webdataset, in order", functools.partial(_webdataset, path), "webdataset"),
        _ours("gristmill", functools.partial(TarSource, path), Shuffle(0), label="cls"),
    )
    promise = _promise(columns, pace, label_only=True)
    return Contest("tar, 3 KB members", contestants, promise)
