"""`gristmill convert`: any records, written once, and read back as they are."""

import fcntl
import json
import os
import re
import resource
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from loader.command.config.config import read_config
from loader.command.convert.formats import made_of
from loader.command.main import ALL_KINDS, main
from loader.records.spec import named_leaves
from loader.sources.packing import passes
from loader.testing import assert_same_batch
from tests.command.convert import records

COUNT = records.COUNT
FORMATS = ("array_record", "zarr")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(records.__file__, tmp_path / "mine.py")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def own(what: str = "arrays", more: str = "") -> str:
    return f'[source]\nkind = "mine:Own"\nwhat = "{what}"\n{more}\n'


def convert(config: str, *arguments: str) -> int:
    Path("some.toml").write_text(config)
    return main(["convert", "some.toml", *arguments])


def assert_reads(printed: str, what: str) -> None:
    """The printed [source], made as it stands, has just these records."""
    tree = tomllib.loads(printed)
    assert set(tree) == {"source"}
    source = made_of("source", tree["source"], ALL_KINDS)
    assert len(source) == COUNT
    for n in range(COUNT):
        expected, got = records.KINDS[what](n), source[n]
        assert jax.tree.structure(got) == jax.tree.structure(expected)
        for (name, was), (_, now) in zip(named_leaves(expected), named_leaves(got), strict=True):
            if isinstance(was, str | bytes):
                assert (type(now), now) == (type(was), was), f"{name} of {n}"
            else:
                now, was = np.asarray(now), np.asarray(was)
                assert (now.dtype, now.shape) == (was.dtype, was.shape), f"{name} of {n}"
                np.testing.assert_array_equal(now, was, f"{name} of {n}")


@pytest.mark.parametrize(
    ("what", "to"),
    [
        *(("arrays", to) for to in FORMATS),
        *((what, "array_record") for what in ("ragged", "a late length", "bare", "bare text")),
        *(("other letters", to) for to in FORMATS),
        *((what, "array_record") for what in ("words of configurations", "dates", "nothing")),
    ],
)
def test_the_source_that_is_printed_gives_the_same_records(
    what: str, to: str, capsys: pytest.CaptureFixture[str]
):
    assert convert(own(what), "--to", to, "out", "--shards", "4") == 0
    out = capsys.readouterr().out
    assert out.startswith("# out: 603 records in 4 shards, ")
    assert_reads(out, what)


def test_shards_are_of_even_size_and_the_digest_is_that_of_the_records(
    capsys: pytest.CaptureFixture[str],
):
    digests = set()
    for to, shards in [("array_record", 4), ("array_record", None), ("zarr", 4), ("zarr", None)]:
        how = [] if shards is None else ["--shards", str(shards)]
        assert convert(own(), "--to", to, f"{to}-{shards}", *how, "--json") == 0
        made = json.loads(capsys.readouterr().out)
        digests.add(made["digest"])
        assert made["records"] == COUNT
        assert made["shards"] == (shards or 1)
        assert all(Path(f["path"]).stat().st_size == f["bytes"] for f in made["files"])
        if to == "array_record":
            readers = [ArrayRecordReader(file["path"]) for file in made["files"]]
            sizes = [reader.num_records() for reader in readers]
            assert sum(sizes) == COUNT
            assert max(sizes) - min(sizes) <= 1
    assert len(digests) == 1
    source = made_of("source", tomllib.loads(made["sections"])["source"], ALL_KINDS)
    assert source.block_size == COUNT  # one chunk: of small records many are in a chunk
    assert convert(own(more="more = 1"), "--to", "zarr", "other", "--json") == 0
    assert json.loads(capsys.readouterr().out)["digest"] not in digests


FLOW = """
[[operators]]
kind = "Select"
leaves = ["id", "ids"]

[[operators]]
kind = "PadTokens"
leaf = "ids"
length = 4

[[operators]]
kind = "CropTokens"
leaf = ["ids", "loss_mask"]
length = 2
random = true
seed = 3
"""
LOADER = """
[loader]
batch_size = 32
[order]
kind = "Shuffle"
seed = 0
"""


def batches(config: str) -> list[Any]:
    Path("run.toml").write_text(config + LOADER)
    return list(read_config("run.toml", ALL_KINDS).loader.host_batches())


def test_without_operators_none_may_be_asked_for(capsys: pytest.CaptureFixture[str]):
    assert convert(own(), "--to", "array_record", "out", "--operators", "0") == 0
    assert_reads(capsys.readouterr().out, "arrays")


@pytest.mark.parametrize(("to", "count"), [("array_record", 1), ("zarr", 2)])
def test_some_operators_are_applied_and_the_sections_printed_give_the_same_batches(
    to: str, count: int, capsys: pytest.CaptureFixture[str]
):
    flow = own("ragged") + FLOW.replace("random = true\nseed = 3\n", "")
    expected = batches(flow)
    assert convert(flow, "--to", to, "out", "--operators", str(count)) == 0
    printed = capsys.readouterr().out
    assert len(tomllib.loads(printed)["operators"]) == 3 - count
    for step, pair in enumerate(zip(batches(printed), expected, strict=True)):
        assert_same_batch(*pair, f"batch {step}")


def assert_matches(text: str, pattern: str) -> None:
    assert re.search(pattern, text), text


def test_what_cannot_be_written_once_is_refused_with_its_line_and_the_remedy(
    capsys: pytest.CaptureFixture[str],
):
    def refused(config: str, words: str, *more: str) -> None:
        assert convert(config, "--to", "array_record", "out", *more) == 2
        assert not Path("out").exists()
        assert_matches(capsys.readouterr().err, words)

    words = "CropTokens draws random numbers, .* leave it for training: --operators 2 writes"
    refused(own("ragged") + FLOW, f"some.toml:15: {words}")
    refused(own("ragged") + FLOW.replace("seed = 3", ""), f"some.toml:15: {words}")
    cast = '[[operators]]\nkind = "Cast"\nleaf = "id"\ndtype = "int8"\non = "device"\n'
    refused(own() + cast, "Cast runs on the device; leave .* --operators 0")
    keep = '[[operators]]\nkind = "Filter"\nfn = { ref = "mine:doubled" }\n'
    refused(own() + keep, "Filter is a filter, .* kind Filtered")
    refused(own("ragged") + FLOW, "--operators must be 0 to 3, .* got 4", "--operators", "4")
    refused(own("ragged") + FLOW, "--operators must be 0 to 3, .* got -1", "--operators", "-1")
    refused(own(), "--operators must be 0 to 0, .* got 1", "--operators", "1")
    one = '{ source = { kind = "mine:Own" }, weight = 1 }'
    mixed = f'[source]\nkind = "Mixture"\ncomponents = {{ a = {one}, b = {one} }}\n'
    refused(mixed, r"some.toml:1: Mixture\(.* convert the components")
    refused(own() + "[[operator]]\n", r"there is no section \[operator\]; did you mean")
    refused(own(), "--shards must be an int of at least 1, got 0", "--shards", "0")
    assert convert(own(), "--to", "zarr", "gs://bucket/out") == 2
    assert_matches(capsys.readouterr().err, "is an address: write into a folder of this machine")


@pytest.mark.parametrize(
    ("what", "to", "words"),
    [
        ("ragged", "zarr", "leaf 'bytes' is a text, or bytes, .* write it by --to array_record"),
        (
            "dates",
            "zarr",
            r"zarr cannot hold leaf 'day', datetime64\[D\]\[\]: cast .* --to arr",
        ),
        ("nothing", "zarr", r"zarr cannot hold leaf 'none', float64\[0, 2\]: .* --to array_record"),
        ("words of configurations", "zarr", "cannot be named .* leaves called 'kind', 'ref'"),
        ("pairs", "array_record", "cannot be written .TypeError: .*'tuple'.* make a dict of"),
        ("lists of texts", "array_record", r"record 0 cannot be written \(ValueError: Object"),
        ("records", "array_record", "make a dict of numbers, arrays of numbers, texts or bytes"),
        ("one that is odd", "zarr", r"'x' of record 401 is float64\[2\], .* float32\[2\]"),
        ("some that are odd", "array_record", r"'x' of record 512 is float64.* None for a length"),
        ("one that is gone", "array_record", "record 401 is filtered out, .* Filtered or Subset"),
        ("other ones each time", "zarr", "record 0 is not the one that is written in out: "),
    ],
)
def test_records_that_would_come_back_as_others_are_refused_by_name(
    what: str, to: str, words: str, capsys: pytest.CaptureFixture[str]
):
    count = 6000 if what == "some that are odd" else COUNT  # not one of those that are tried
    assert convert(own(what, f"count = {count}"), "--to", to, "out") == 2
    assert_matches(capsys.readouterr().err, words)


def files(folder: str) -> dict[str, bytes]:
    paths = [path for path in sorted(Path(folder).rglob("*")) if not path.is_dir()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_processes_write_the_same_bytes(capsys: pytest.CaptureFixture[str]):
    assert convert(own("ragged"), "--to", "array_record", "alone") == 0
    alone = capsys.readouterr()
    telling = own("ragged", "at = 300")
    assert convert(telling, "--to", "array_record", "others", "--workers", "1") == 0
    others = capsys.readouterr()
    assert "[worker 0] here\n" in others.err
    assert others.out == alone.out.replace("alone", "others")
    assert files("others") == files("alone")


@pytest.mark.parametrize("to", FORMATS)
def test_it_goes_on_after_an_interrupt_and_on_a_disk_that_was_full(
    to: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def limited(size: int) -> int:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            return convert(own(), *how)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    how = "--to", to, "out", "--shards", "2"
    assert convert(own(), "--to", to, "whole", "--shards", "2") == 0
    capsys.readouterr()
    Path("out").mkdir()
    assert limited(1200) == 2  # a shard is larger
    assert_matches(capsys.readouterr().err, "no room for the shards in out .*File too .* goes on")
    monkeypatch.setattr(passes, "BLOCK_BYTES", 4000)
    assert convert(own(more='at = 600\ndo = "interrupt"'), *how) == 130
    kept = max(int(path.stem.partition("-")[2]) for path in Path("out").rglob("*-*.bin"))
    assert 400 < kept <= 512  # of the second shard
    assert limited(1200) == 2  # a block is larger, too
    monkeypatch.setenv("NOTE_READS", "reads.txt")
    assert convert(own(), *how) == 0
    assert [int(line) for line in Path("reads.txt").read_text().split()] == [kept]
    assert files("out") == files("whole")


def test_a_folder_of_something_else_is_refused(capsys: pytest.CaptureFixture[str]):
    def refused(config: str, words: str, *arguments: str) -> None:
        before = files("out")
        assert convert(config, *arguments, "out") == 2
        assert_matches(capsys.readouterr().err, words)
        assert files("out") == before

    how = "--to", "array_record", "--shards", "2"
    interrupted = own(more='at = 600\ndo = "interrupt"')
    assert convert(interrupted, *how, "out") == 130
    refused(own(more="more = 1"), "out was begun with another source, .*: data.more was", *how)
    refused(own(), "to was array_record, 2 shards and is array_record, 3", *how[:3], "3")
    refused(own(), "to was array_record, 2 shards and is zarr, 2 shards", "--to", "zarr", *how[2:])
    other = os.open("out", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    refused(own(), "another process is writing into out: wait for it", *how)
    os.close(other)
    assert convert(own(), *how, "out") == 0
    refused(own(more="more = 1"), "remove it to have it written anew", *how)
    shutil.rmtree("out")
    Path("out").mkdir()
    Path("out", "mine.txt").write_text("of somebody")
    Path("out", f".mine.{'0' * 32}").write_text("being written")
    refused(own(), "out is not empty, and was not begun by this command", *how)
    Path("out", "convert.json").write_text("{}")
    refused(own(), "convert.json is not what this command has written there", *how)


@pytest.mark.parametrize("to", FORMATS)
def test_what_was_damaged_is_found_and_written_again(
    to: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    how = "--to", to, "out", "--shards", "3"
    assert convert(own(), *how) == 0
    whole, printed = files("out"), capsys.readouterr().out
    names = [name for name in whole if "shard-" in name or name.endswith(("/1/0/0", "c/1"))]
    first, path = whole[names[0]], Path("out", names[0])
    path.write_bytes(first[: len(first) // 2] + b"?" + first[len(first) // 2 + 1 :])
    assert convert(own(), *how) == 2
    err = capsys.readouterr().err
    assert_matches(err, f"cannot be read back: .*{names[0]}.* writes what is missing")
    path.unlink()
    monkeypatch.setenv("NOTE_READS", "reads.txt")
    assert convert(own(), *how) == 0
    assert len(Path("reads.txt").read_text().split()) == 1  # of that shard alone
    capsys.readouterr()
    path.write_bytes(whole[names[0].replace("00000-of", "00002-of").replace("/1", "/2")])
    assert convert(own(), *how) == 2
    assert_matches(capsys.readouterr().err, "1 of 3 shards, out/.* the first of them, are not read")
    assert convert(own(), *how) == 0
    assert capsys.readouterr().out == printed
    assert files("out") == whole
