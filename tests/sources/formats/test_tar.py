"""Records of tar files, as WebDataset writes and reads them."""

import importlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, Mask, TarSource
from loader.sources.tar import tar_source
from tests.object_stores.fake_store import FakeStore
from tests.source_checks import assert_is_a_source_of
from tests.sources.formats.checks import (
    assert_reads_from_a_store,
    damaged,
    keys_of,
    outcome,
    rows_of,
    seeds,
)
from tests.sources.formats.plain_tar import npy, pack

webdataset: Any = importlib.import_module("webdataset")
COUNT = 23
ARRAYS = [np.arange(n, n + 6, dtype=np.float32).reshape(2, 3) for n in range(COUNT)]


def members(n: int) -> dict[str, Any]:
    return {
        "cls": n * 3 - 5,
        "jpg": bytes(range(n + 1)),
        "json": {"n": n, "deep": {"x": n / 4}, "list": [n, 7]},
        "npy": ARRAYS[n],
        "seg.png": b"\x89PNG" + bytes([n]),
        "txt": f"naïve {n} ☕",
    }


def write(folder: Path) -> list[Path]:
    """By WebDataset itself."""
    parts = {"a.tar": range(9), "b.tar": range(9, COUNT)}
    for name, part in parts.items():
        with webdataset.TarWriter(str(folder / name)) as writer:
            for n in part:
                writer.write({"__key__": f"deep.er/{n:04}" if n else "first", **members(n)})
    return [folder / name for name in parts]


def some(count: int = 6) -> dict[str, bytes]:
    return {f"{n}.{s}": b"%d" % (n * n) for n in range(count) for s in ("cls", "txt")}


def test_records_of_tar_files_are_a_source(tmp_path: Path):
    paths = write(tmp_path)
    every = [members(n) for n in range(COUNT)]
    expected = {name: np.array([one[name] for one in every]) for name in ("cls", "npy")}
    for name in ("jpg", "txt", "seg.png"):
        expected[name] = np.array([one[name] for one in every], object)
    source = TarSource(tmp_path / "*.tar", tmp_path / "index", leaves=list(expected))
    assert_is_a_source_of(source, expected, "cls")
    assert source.locate(10) == f"deep.er/0010 of {paths[1]}"
    assert source.blocks().tolist() == [0, 9]
    plain = TarSource(paths, leaves=["cls", "jpg"])
    assert plain.record_spec()["jpg"].dtype == object


def test_every_member_is_what_webdataset_gives(tmp_path: Path):
    paths = write(tmp_path)
    rows = rows_of(TarSource(paths))
    urls = [f"file:{path}" for path in paths]
    theirs = list(webdataset.WebDataset(urls, shardshuffle=False).decode(handler=_not_images))
    assert len(theirs) == COUNT
    for n, record in enumerate(theirs):
        for name in ("cls", "txt"):
            assert rows[name][n] == record[name]
        for name in ("jpg", "seg.png"):
            assert rows[name][n] == record[name]
        np.testing.assert_array_equal(rows["npy"][n], record["npy"])
        assert rows["json"]["n"][n] == record["json"]["n"]
        assert rows["json"]["deep"]["x"][n] == record["json"]["deep"]["x"]
        assert rows["json"]["list"][n].tolist() == record["json"]["list"]
    keys = rows_of(TarSource(paths, leaves=["__key__", "cls"]))["__key__"].tolist()
    assert keys == [record["__key__"] for record in theirs]
    assert rows["cls"].dtype == np.int64


def _not_images(error: Exception) -> bool:
    raise error


def test_leaves_are_made_by_functions_where_they_are_given(tmp_path: Path):
    path = pack(tmp_path / "a.tar", {f"{n}.x.bin": bytes([n] * n) for n in range(1, 7)})
    assert rows_of(TarSource(path))["x.bin"][3] == bytes([4] * 4)
    lengths = TarSource(path, leaves={"x.bin": lambda data: {"length": len(data)}})
    assert rows_of(lengths)["x.bin"]["length"].tolist() == [1, 2, 3, 4, 5, 6]
    text = TarSource(path, leaves={"x.bin": str})
    assert rows_of(text)["x.bin"][2] == "\x03" * 3
    with pytest.raises(ValueError, match=r"data\.leaves"):
        DataLoader(text, batch_size=2).set_state(
            DataLoader(TarSource(path), batch_size=2).get_state()
        )


def test_arrays_that_differ_in_length_are_ragged(tmp_path: Path):
    path = pack(tmp_path / "a.tar", {f"{n}.npy": npy(np.arange(n % 4)) for n in range(9)})
    source = TarSource(path)
    assert source.record_spec()["npy"].shape == (None,)
    assert [array.tolist() for array in rows_of(source)["npy"]] == [
        list(range(n % 4)) for n in range(9)
    ]


def test_other_members_are_left_out(tmp_path: Path):
    notes = {"._0.cls": b"?", "README": b"?", "deep/__0__.json": b"?", "deep/.x.txt": b"?"}
    path = pack(tmp_path / "a.tar", {**notes, **some(), "x/0.CLS": b"77", "x/0.txt": b"last"})
    rows = rows_of(TarSource(path))
    assert rows["cls"].tolist() == [0, 1, 4, 9, 16, 25, 77]
    assert rows["txt"][-1] == "last"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"3.txt": None}, r"has the members \['cls'\], and should have \['cls', 'txt'\]: add"),
        ({"3.jpg": b"!"}, r"has the members \['cls', 'jpg', 'txt'\], and should have"),
        ({"3.cls": b"three"}, r"has a \.cls that cannot be read: ValueError: invalid literal"),
        ({"3.cls": b"9" * 20}, r"has a \.cls that cannot be read: OverflowError"),
        ({"3.txt": b"\xff"}, r"has a \.txt that cannot be read: UnicodeDecodeError"),
    ],
)
def test_a_record_that_is_not_whole_is_named_or_masked(change: Any, message: str, tmp_path: Path):
    files = {**some(), **change}
    ordered = {name: files[name] for name in sorted(files) if files[name] is not None}
    path = pack(tmp_path / "a.tar", ordered)
    with pytest.raises(ValueError, match=rf"record 3 \(3 of {path}\) {message}"):
        rows_of(TarSource(path))
    (batch,) = DataLoader(TarSource(path), batch_size=6, on_error=Mask(log=None)).host_batches()
    assert np.flatnonzero(~batch["valid_mask"]).tolist() == [3]
    if "3.jpg" in change:
        assert len(rows_of(TarSource(path, leaves=["cls", "txt"]))["txt"]) == 6


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        ("json", b"[" * 100_000, "nested too deeply"),
        ("json", b"{oops", "JSONDecodeError"),
        ("npy", npy(np.array([{}], object)), "holds objects, which are pickled"),
        ("npy", npy(np.arange(9))[:-1], "has 71 bytes where its head says 72"),
        ("npy", npy(np.arange(9)).replace(b"(9,)", b"(2000000000000,)"), "ValueError"),
        ("npy", b"nothing", "ValueError"),
    ],
)
def test_members_that_cannot_be_parsed_are_refused(
    suffix: str, content: bytes, message: str, tmp_path: Path
):
    path = pack(tmp_path / "a.tar", {f"0.{suffix}": content})
    with pytest.raises(ValueError, match=rf"record 0 .* has a \.{suffix} .*{message}"):
        TarSource(path).gather(np.array([0]))


@pytest.mark.parametrize("suffix", ["pkl", "pyd", "meta.pickle", "pth"])
def test_nothing_is_unpickled(suffix: str, tmp_path: Path):
    path = pack(tmp_path / "a.tar", {f"0.{suffix}": b"cos\nsystem\n(S'false'\ntR.", "0.txt": b"x"})
    with pytest.raises(ValueError, match=rf"\.{suffix} are pickles, which can run code"):
        TarSource(path)
    assert rows_of(TarSource(path, leaves=["txt"]))["txt"].tolist() == ["x"]


@pytest.mark.parametrize("leaves", [[], "jpg", {}, {"cls": 3}, [1]])
def test_leaves_must_be_suffixes(leaves: Any, tmp_path: Path):
    path = pack(tmp_path / "a.tar", some())
    with pytest.raises(ValueError, match=r"leaves (must be suffixes|gives 'cls' 3)"):
        TarSource(path, leaves=leaves)


def test_files_that_are_not_whole_or_of_another_kind_are_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="no file matches"):
        TarSource(tmp_path / "*.tar")
    path = pack(tmp_path / "a.tar", some())
    content = path.read_bytes()
    for other, message in {
        b"": "is not a whole tar file",
        content[:100]: "is not a whole tar file",
        content[: 512 * 3 + 100]: "is not a whole tar file.* unexpected end",
        content[: 512 * 4]: "is not a whole tar file.* at byte 2048",
        content[:2060] + b"!" + content[2061:]: "at byte 2048 is neither a member nor",
        content + content: "goes on after its end, as when tar files are joined by cat",
        b"\x1f\x8b" + content: "is compressed by gzip",
        b"\x28\xb5\x2f\xfd" + content: "is compressed by zstd",
        bytes(10240): "the source is empty: no member with a name such as",
    }.items():
        path.write_bytes(other)
        with pytest.raises(ValueError, match=message):
            TarSource(path)


def test_members_of_a_record_must_be_together_and_each_once(tmp_path: Path):
    names = ["0.cls", "1.cls", "0.txt"]
    with pytest.raises(ValueError, match="members of the record '0' at two places"):
        TarSource(pack(tmp_path / "a.tar", dict.fromkeys(names, b"1")))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("0.cls"))
    with pytest.raises(ValueError, match=r"has '0\.cls' twice"):
        TarSource(tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        link = tarfile.TarInfo("0.cls")
        link.type, link.linkname = tarfile.SYMTYPE, "1.cls"
        tar.addfile(link)
    with pytest.raises(ValueError, match=r"has '0\.cls', which is a link"):
        TarSource(tmp_path / "a.tar")


def test_an_index_is_used_while_the_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    searched, find = list[int](), tar_source.find_members
    monkeypatch.setattr(
        tar_source,
        "find_members",
        lambda files, file: (searched.append(file), find(files, file))[1],
    )
    paths, index = write(tmp_path), tmp_path / "index"
    want = keys_of(TarSource(paths, index))
    assert keys_of(TarSource(paths, index)) == want
    assert searched == [0, 1]
    pack(paths[0], {f"{n}.{k}": v for n in range(2) for k, v in _as_bytes(members(n)).items()})
    assert len(TarSource(paths, index)) == 16
    assert searched[2:] == [0]
    (kept,) = index.glob("b.tar*")
    for damage in (kept.read_bytes()[:-9], b"", kept.read_bytes()[:70] + b"?" * 60):
        kept.write_bytes(damage)
        assert len(TarSource(paths, index)) == 16
    assert searched[3:] == [1, 1, 1]


def _as_bytes(values: dict[str, Any]) -> dict[str, bytes]:
    def as_bytes(value: Any) -> bytes:
        if isinstance(value, np.ndarray):
            return npy(value)
        if isinstance(value, dict):
            return json.dumps(value).encode()
        return value if isinstance(value, bytes) else str(value).encode()

    return {name: as_bytes(value) for name, value in values.items()}


def test_long_names_and_other_kinds_of_tar_are_read(tmp_path: Path):
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(tmp_path / "a.tar", "w", format=kind) as tar:
            for n in range(3):
                info = tarfile.TarInfo("ü" * 150 + f"/{n}.cls")
                info.size = 1
                tar.addfile(info, io.BytesIO(b"%d" % n))
        assert rows_of(TarSource(tmp_path / "a.tar"))["cls"].tolist() == [0, 1, 2]


def test_files_in_a_store_are_the_same_source(store: FakeStore, tmp_path: Path):
    assert_reads_from_a_store(store, write(tmp_path), TarSource)


def test_a_damaged_file_gives_right_records_or_an_error(full: bool, tmp_path: Path):
    """What members hold has no checksum: only where a head is damaged nothing may be wrong."""
    path = pack(tmp_path / "a.tar", some())
    content, right = path.read_bytes(), keys_of(TarSource(path))
    found: list[str] = []
    for seed in seeds(full):
        changed = damaged(content, seed)
        place = next((n for n, pair in enumerate(zip(content, changed, strict=False))
                      if pair[0] != pair[1]), len(changed))  # fmt: skip
        result = outcome(path, changed, TarSource, right)
        if place // 512 % 2 == 0 or place > 512 * 24:
            found.append(result)
        assert result in ("right", "masked", "refused", "wrong"), result
    assert set(found) <= {"right", "refused"}
    assert "refused" in found
