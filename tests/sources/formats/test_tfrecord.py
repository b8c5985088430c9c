"""Records of TFRecord files, and `tf.train.Example`, as TensorFlow has written them."""

import json
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import ArrayRecordSource, DataLoader, Mask, RawArrays, TFExample, TFRecordSource
from loader.sources.tfrecord import crc32c, frames
from loader.sources.tfrecord.crc32c import crcs_by_numpy, masked_crcs
from loader.sources.tfrecord.wire import features_of
from tests.data import RECORD_SPEC, unlike_records, write_array_record
from tests.object_stores.fake_store import FakeStore
from tests.source_checks import assert_is_a_source_of
from tests.sources.formats.checks import (
    assert_reads_from_a_store,
    assert_same_rows,
    assert_the_spec_is_of_the_rows,
    damaged,
    keys_of,
    outcome,
    rows_of,
    seeds,
)
from tests.sources.formats.plain_tfrecord import field, frame
from tests.sources.formats.write_files import FILES

COUNT = 23
ID_AND_GRID: dict[str, Any] = {"id": "int64", "grid": "float32[2, 3]", "image": bytes}
ALL = TFExample(
    {
        **ID_AND_GRID, "big": np.int64, "tokens": "int64[?]", "name": str, "words": "bytes[?]",
        "rare": "int16",
    },
    defaults={"rare": -7},
)  # fmt: skip


def expected() -> dict[str, list[Any]]:
    """What `tf.io.parse_example` gave."""
    return json.loads((FILES / "tfrecord.json").read_text())


def opened(paths: Any = FILES / "*.tfrecord", **how: Any) -> TFRecordSource:
    return TFRecordSource(paths, TFExample(ID_AND_GRID), **how)


def copies(folder: Path) -> list[Path]:
    return [Path(shutil.copy(FILES / f"{name}.tfrecord", folder)) for name in "ab"]


def blobs() -> list[bytes]:
    return rows_of(TFRecordSource(FILES / "*.tfrecord")).tolist()


def test_records_of_tfrecord_files_are_a_source(tmp_path: Path):
    columns = expected()
    images = np.array([bytes.fromhex(image) for image in columns["image"]], object)
    source = opened(copies(tmp_path), index=tmp_path / "index")
    rows = {"id": np.array(columns["id"]), "grid": np.array(columns["grid"], np.float32)}
    assert_is_a_source_of(source, {**rows, "image": images}, "id")
    assert source.locate(10) == f"record 1 of {tmp_path / 'b.tfrecord'}"
    assert source.blocks().tolist() == [0, 9]


def test_every_kind_of_feature_is_what_tensorflow_gives():
    rows, columns = rows_of(TFRecordSource(FILES / "*.tfrecord", ALL)), expected()
    for name in ("id", "big", "rare", "grid"):
        np.testing.assert_array_equal(rows[name], np.array(columns[name], rows[name].dtype))
    for n in range(COUNT):
        assert rows["tokens"][n].tolist() == columns["tokens"][n]
        assert [word.hex() for word in rows["words"][n]] == columns["words"][n]
        assert rows["image"][n].hex() == columns["image"][n]
        assert rows["name"][n].encode().hex() == columns["name"][n]
    assert (rows["rare"].dtype, rows["big"].dtype) == ("int16", "int64")
    assert_the_spec_is_of_the_rows(TFRecordSource(FILES / "*.tfrecord", ALL))
    assert_same_rows(ALL(blobs()[3])["tokens"], rows["tokens"][3])


def test_an_example_of_another_layout_is_read_too():
    """What protobuf allows, beside what its libraries write: among usual ones, and alone."""
    name, ten = field(1, b"x"), field(3, field(1, b"\x0a"))
    usual = field(1, field(1, name + field(2, ten)))
    unpacked = field(1, field(1, name + field(2, field(3, b"\x08\x0a"))))
    value_first = field(1, field(1, field(2, ten) + name))
    unknown_field = b"\x38\x05" + usual
    twice = field(
        1, field(1, name + field(2, field(3, b"\x08\x01"))) + field(1, name + field(2, ten))
    )
    in_parts = field(1, field(1, field(1, b"y") + field(2, ten))) + usual
    every = [usual, unpacked, value_first, unknown_field, twice, in_parts]
    parse = TFExample({"x": "int32"})
    assert parse.many(every)["x"].tolist() == [10] * 6
    assert [parse(one)["x"] for one in every] == [10] * 6
    floats = field(1, field(1, name + field(2, field(2, b"\x0d" + struct.pack("<f", 0.5)))))
    assert TFExample({"x": "float64"})(floats)["x"] == 0.5


def test_other_forms_of_records_are_parsed_too(tmp_path: Path):
    records = unlike_records(COUNT)
    rows = [
        RawArrays(RECORD_SPEC).encode({k: v[n] for k, v in records.items()}) for n in range(COUNT)
    ]
    (tmp_path / "a.tfrecord").write_bytes(b"".join(map(frame, rows)))
    raw = TFRecordSource(tmp_path / "a.tfrecord", RawArrays(RECORD_SPEC))
    assert_same_rows(rows_of(raw), records)
    own = TFRecordSource(tmp_path / "a.tfrecord", lambda blob: {"length": len(blob)})
    assert rows_of(own)["length"].tolist() == list(map(len, rows))
    path = write_array_record(tmp_path / "a.array_record", blobs())
    found = ArrayRecordSource(path, ALL)
    assert_same_rows(rows_of(found), rows_of(TFRecordSource(FILES / "*.tfrecord", ALL)))
    assert found.record_spec() == ALL.record_spec()


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            {"nope": "int64"},
            r"has no feature 'nope': it has \['big', .*; leave it out, or give def",
        ),
        ({"id": "float32"}, "has integers as feature 'id', which is floats in this source"),
        ({"grid": "float32"}, "has 6 values as feature 'grid', which has 1 in this source"),
        ({"tokens": "int64[3]"}, "has 0 values as feature 'tokens', which has 3"),
        ({"id": "int8"}, r"has \[\d+\] as feature 'id', which does not fit int8"),
        ({"image": str}, "has bytes as feature 'image' that are not UTF-8"),
    ],
)
def test_an_example_that_does_not_fit_is_named(features: Any, message: str):
    source = TFRecordSource(FILES / "*.tfrecord", TFExample(features))
    where = r"cannot parse record \d+ \(record \d+ of .*\.tfrecord\): ValueError: "
    with pytest.raises(ValueError, match=where + message):
        rows_of(source)


def test_bad_examples_are_masked(tmp_path: Path):
    data = blobs()
    data[4], data[6] = data[4][:-3], b"\xff" * 40
    (tmp_path / "a.tfrecord").write_bytes(b"".join(map(frame, data)))
    loader = DataLoader(opened(tmp_path / "a.tfrecord"), batch_size=COUNT, on_error=Mask(log=None))
    (batch,) = loader.host_batches()
    assert np.flatnonzero(~batch["valid_mask"]).tolist() == [4, 6]
    assert np.delete(batch["id"], [4, 6]).tolist() == np.delete(expected()["id"], [4, 6]).tolist()


@pytest.mark.parametrize(
    "features",
    [
        {},
        ["id"],
        {"id": "int33"},
        {"id": None},
        {1: "int64"},
        {"id": "int64[?, 2]"},
        {"id": "i[x]"},
    ],
)
def test_features_are_names_and_what_they_are(features: Any):
    with pytest.raises(ValueError, match=r"features (gives .* must be bytes, str|must be a dict)"):
        TFExample(features)


def test_defaults_must_fit():
    with pytest.raises(ValueError, match="defaults names 'ids', which is not one of"):
        TFExample({"id": "int64"}, {"ids": 0})
    with pytest.raises(ValueError, match=r"has \[300\] as feature 'id', which does not fit uint8"):
        TFExample({"id": "uint8"}, {"id": 300})


def test_a_wrong_checksum_is_an_error_that_names_the_record(tmp_path: Path):
    path = copies(tmp_path)[0]
    content = bytearray(path.read_bytes())
    content[content.index("naïve 5".encode())] ^= 1
    path.write_bytes(content)
    source = opened(path)
    where = (
        rf"record 5 \(record 5 of {re.escape(str(path))}\) has a wrong checksum: .*copy the file"
    )
    with pytest.raises(ValueError, match=where):
        source.gather(np.array([2, 5, 1]))
    (batch,) = DataLoader(source, batch_size=9, on_error=Mask(log=None)).host_batches()
    assert np.flatnonzero(~batch["valid_mask"]).tolist() == [5]
    assert rows_of(opened(path, checksums=False))["id"].tolist() == expected()["id"][:9]


def test_files_that_are_not_whole_or_of_another_kind_are_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="no file matches"):
        opened(tmp_path / "*.tfrecord")
    path = copies(tmp_path)[0]
    content = path.read_bytes()
    for cut, message in {
        len(content) - 1: "ends within a record, at byte",
        7: "ends within a record, at byte 7",
        0: "the source is empty: no record in",
    }.items():
        path.write_bytes(content[:cut])
        with pytest.raises(ValueError, match=message):
            opened(path)
    for other, message in {
        b"\x1f\x8b\x08" + content: r"is compressed by gzip.*\(gunzip -k\)",
        content[:3] + b"!" + content[4:]: "at byte 0 is no length of a record with its checksum",
        b"PAR1" * 40: "is not a TFRecord file, or damaged: at byte 0",
    }.items():
        path.write_bytes(other)
        with pytest.raises(ValueError, match=r"a\.tfrecord .*" + message):
            opened(path)


def test_an_index_is_used_while_the_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    searched: list[str] = []
    more = frame(blobs()[0])
    walk = frames._walk
    monkeypatch.setattr(
        frames, "_walk", lambda path, *how: (searched.append(path), walk(path, *how))[1]
    )
    paths, index = list(map(str, copies(tmp_path))), tmp_path / "index"
    want = rows_of(opened(paths, index=index))
    assert sorted(searched) == sorted(paths)
    assert_same_rows(rows_of(opened(paths, index=index)), want)
    assert len(searched) == 2
    Path(paths[0]).write_bytes(Path(paths[1]).read_bytes() + more)
    assert rows_of(opened(paths, index=index))["id"][14] == want["id"][0]
    assert searched[2:] == paths[:1]
    (kept,) = index.glob("b.tfrecord*")
    for damage in (kept.read_bytes()[:-9], b"", kept.read_bytes()[:70] + b"?" * 60):
        kept.write_bytes(damage)
        assert len(opened(paths, index=index)) == 29
    assert searched[3:] == paths[1:] * 3


def test_records_are_found_across_the_parts_that_a_file_is_read_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = opened()._ends
    for size in (12, 100, 1000):
        monkeypatch.setattr(frames, "PIECE_BYTES", size)
        for ends, want in zip(opened()._ends, whole, strict=True):
            np.testing.assert_array_equal(ends, want)


def test_checksums_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch):
    google = pytest.importorskip("google_crc32c")
    draw = np.random.default_rng(0)
    pieces = [draw.bytes(size) for size in [*range(20), 511, 512, 513, 1024, 1025, 9999]]
    assert crcs_by_numpy(pieces).tolist() == [google.value(piece) for piece in pieces]
    assert crcs_by_numpy([]).tolist() == []
    masked = masked_crcs(pieces)
    monkeypatch.setattr(crc32c, "installed", lambda module: None)
    assert masked_crcs(pieces).tolist() == masked.tolist()
    assert len(rows_of(opened())["id"]) == COUNT


def test_files_in_a_store_are_the_same_source(store: FakeStore, tmp_path: Path):
    assert_reads_from_a_store(store, copies(tmp_path), opened)


def test_a_damaged_file_gives_right_records_or_an_error(full: bool, tmp_path: Path):
    path = copies(tmp_path)[0]
    content, right = path.read_bytes(), keys_of(opened(path))
    found = {outcome(path, damaged(content, seed), opened, right) for seed in seeds(full)}
    assert {"masked", "refused"} <= found <= {"masked", "refused", "right"}


def test_damaged_examples_never_crash_the_parser(full: bool):
    """Without a checksum anything may come: what is read at once is what is read one by one."""
    data, parse = blobs(), TFExample({**ALL.features, "tokens": "int64[?]"}, {"rare": 0})
    for seed in range(1000 if full else 120):
        changed = damaged(data[seed % COUNT], seed)
        try:
            features_of(changed)
            alone = parse(changed)
        except ValueError:
            with pytest.raises(ValueError, match=r"has |is not a tf\.train\.Example"):
                parse.many([data[3], changed])
            continue
        together = parse.many([data[3], changed, data[4]])
        assert_same_rows({name: rows[1] for name, rows in together.items()}, alone)
