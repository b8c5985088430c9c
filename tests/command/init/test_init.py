"""`gristmill init`: from any file, folder or address to a configuration that runs."""

import gzip
import importlib
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loader.command.config.config import read_config
from loader.command.main import ALL_KINDS, main
from loader.records.optional import optional
from operators import ByteTokenizer
from tests.command.init import written_data as data
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET

ROOT = Path(__file__).parent.parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
train: Callable[[list[str]], int] = importlib.import_module("train").main
sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(path: str, *options: str) -> dict[str, Any]:
    """What the configuration for this path says."""
    assert main(["init", path, "-o", "run.toml", "--overwrite", *options]) == 0
    return tomllib.loads(Path("run.toml").read_text())


def questions(text: str) -> dict[str, str]:
    """The questions of a configuration, each with the line after its comment."""
    found, lines = {}, text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("# QUESTION: "):
            after = next((each for each in lines[number:] if not each.startswith("#")), "")
            found[line.removeprefix("# QUESTION: ")] = after
    return found


@pytest.mark.parametrize("format_", data.FORMATS)
def test_what_is_written_for_a_format_passes_check_and_peek(
    format_: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    write, kind, order, leaves, task = data.FORMATS[format_]
    path = write(folder)
    before = sorted(folder.rglob("*"))
    tree = written(path)
    assert sorted(folder.rglob("*")) == sorted([*before, folder / "run.toml"])
    assert tree["source"]["kind"] == kind
    assert tree["order"]["kind"] == order
    assert tree.get("train", {}).get("task") == task
    assert main(["check", "run.toml"]) == 0
    capsys.readouterr()
    assert main(["peek", "run.toml", "--json", "--set", "loader.batch_size=2"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert {leaf["name"] for leaf in seen["leaves"]} == leaves | {"valid_mask"}
    texts = {text["leaf"]: text["shown_as"] for text in seen["texts"]}
    if tree.get("operators", [{}])[0].get("kind") in ("Tokenize", "ChatTemplate"):
        assert texts["tokens"] == "decoded text"
    held_out = read_config("run.toml", ALL_KINDS).held_out
    parted = format_ in ("images in folders", "arrays", "Parquet", "Hugging Face")
    assert (held_out is not None) == parted
    if held_out is not None:
        held_out.host_batch_at(0)


@pytest.mark.parametrize(
    ("format_", "smaller"),
    [("images in folders", []), ("lines of JSON", ["--set", "train.task.depth=1"])],
)
def test_twenty_steps_are_trained_with_what_is_written(
    format_: str, smaller: list[str], folder: Path
):
    written(data.FORMATS[format_][0](folder))
    assert train(["run.toml", "--steps", "20", "--into", "run", *smaller]) == 0
    result = json.loads(Path("run/result.json").read_text())
    assert result["steps"] == 20
    losses = [
        json.loads(line)["loss"] for line in Path("run/metrics.jsonl").read_text().splitlines()
    ]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("format_", ["TFRecord", "Parquet", "tar", "ArrayRecord of examples"])
def test_the_bytes_of_a_file_say_what_it_is_if_its_name_does_not(format_: str, folder: Path):
    write, kind, *_ = data.FORMATS[format_]
    place = folder / write(folder)
    file = (
        place
        if place.is_file()
        else sorted(each for each in place.iterdir() if "-0" in each.name)[-1]
    )
    shutil.copy(file, folder / "unnamed")
    assert written("unnamed")["source"]["kind"] == kind


# What is said, and asked


def test_what_cannot_be_told_is_asked_at_its_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    data.token_bytes(folder)
    assert main(["init", "corpus.bin", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    text = Path("corpus.toml").read_text()
    assert made["configuration"] == text
    asked = questions(text)
    assert [one["text"][:40] for one in made["questions"]] == [words[:40] for words in asked]
    for one in made["questions"]:
        assert text.splitlines()[one["line"] - 1][:50] == f"# QUESTION: {one['text']}"[:50]
    about = {line.partition(" =")[0] for line in asked.values()}
    assert about == {"dtype", "length", "task"}
    assert read_config("corpus.toml", ALL_KINDS, ["source.dtype=uint8"]).loader is not None


def test_a_column_that_no_leaf_or_no_device_can_hold_is_left_out_and_a_null_is_asked_for(
    folder: Path,
):
    source = written(data.parquet(folder))["source"]
    assert source["columns"] == ["age", "image", "label"]
    assert source["nulls"] == {"age": 0}
    text = Path("run.toml").read_text()
    assert "tags (map<" in text
    assert "when (too large for 32 bits)" in text
    assert "not read: labels.csv" in text
    (asked,) = [words for words, line in questions(text).items() if line.startswith("nulls")]
    assert "6 times in age" in asked


def test_all_labels_count_not_only_those_of_the_records_looked_at(folder: Path):
    labels = np.zeros(5000, np.int64)
    labels[1234] = 41
    table = pa.table({"x": np.random.default_rng(0).random((5000, 3)).tolist(), "label": labels})
    fixed = table.set_column(0, "x", table["x"].cast(pa.list_(pa.float64(), 3)))
    pq.write_table(fixed, "rare.parquet")
    assert written("rare.parquet")["train"]["task"]["classes"] == 42


@pytest.mark.parametrize(("dtype", "most"), [("uint16", 250), ("uint16", 60000), ("uint32", 10**5)])
def test_how_wide_tokens_are_is_seen_by_their_values(dtype: str, most: int, folder: Path):
    tokens = np.random.default_rng(0).integers(3, most, 2000).astype(dtype)
    tokens.tofile("some.bin")
    assert written("some.bin")["source"]["dtype"] == dtype


def test_nulls_of_what_is_held_out_are_asked_for_too(folder: Path):
    for part, ages in (("train", [3, 4, 5, 6]), ("test", [3, None, 5, 6])):
        table = {"age": ages, "x": [n / 3 for n in range(4)], "label": [0, 1, 0, 2]}
        pq.write_table(pa.table(table), f"{part}.parquet")
    tree = written("*.parquet")
    assert tree["source"]["nulls"] == tree["held_out"]["source"]["nulls"] == {"age": 0}
    asked = questions(Path("run.toml").read_text())
    assert any("age of what is held out" in words for words in asked)


TABLES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, str]] = {
    "lists of one length": (
        {"emb": [[n + 0.5, n, 1.0] for n in range(9)], "label": [n % 3 for n in range(9)]},
        {"kind": "Classify", "input": "emb", "label": "label", "classes": 3}, "",
    ),
    "a flag as the label": (
        {"odd": [n % 2 == 1 for n in range(9)], "x": [n / 7 for n in range(9)], "id": range(9)},
        {"kind": "Classify", "input": "x", "label": "odd", "classes": 2}, "is odd the label?",
    ),
    "a class in words": (
        {"wide": [n / 7 for n in range(9)], "kind": [["elk", "dog"][n % 2] for n in range(9)]},
        None, "if it is kind, write it as one",
    ),
    "two numbers": (
        {"size": [n / 7 for n in range(9)], "price": [n * 3.5 for n in range(9)]},
        {"kind": "Regress", "input": "size", "target": "price"}, "",
    ),
    "lists that differ and nothing to learn": (
        {"x": [[0.5] * n for n in range(9)], "name": [f"n{n}" for n in range(9)], "z": [1.5] * 9},
        None, "what is to be learned?",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLES)
def test_a_task_is_chosen_by_what_the_columns_hold(case: str, folder: Path):
    columns, task, asked = TABLES[case]
    pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), "t.parquet")
    assert written("t.parquet").get("train", {}).get("task") == task
    text = " ".join(Path("run.toml").read_text().replace("#", "").split())
    assert ("QUESTION" in text) == bool(asked)
    assert asked in text


def test_bad_records_are_masked_if_that_is_wanted(folder: Path):
    (folder / "texts").mkdir()
    for n in range(12):
        (folder / f"texts/{n}.py").write_bytes(b"\xff\xfe" if n == 7 else data.text(n).encode())
    tree = written("texts")
    assert tree["loader"]["on_error"]["kind"] == "Mask"
    asked = [words for words, line in questions(Path("run.toml").read_text()).items()
             if line.startswith("on_error")]  # fmt: skip
    assert "1 of 12" in asked[0]


def test_the_lines_that_pack_texts_are_right_as_they_are(folder: Path):
    written(data.json_lines(folder))
    text = Path("run.toml").read_text()
    begin = text.index("# To pack texts")
    packing = "\n".join(line[2:] for line in text[begin:].splitlines() if line[:3] != "#  ")
    packing = packing.partition("\n")[2]
    source, _, rest = text[:begin].partition("[order]")
    operators = rest.split("[[operators]]")
    kept = [part for part in operators[1:] if "ShiftTargets" in part]
    packed = source.replace("[source]", "[[source]]") + packing + "\n[order]" + operators[0]
    Path("packed.toml").write_text(packed + "[[operators]]".join(["", *kept]))
    batch = read_config("packed.toml", ALL_KINDS).loader.host_batch_at(0)
    assert (np.diff(batch["segment_ids"]) == 1).any()


def test_roles_of_other_names_have_a_template_and_answers_alone_are_learned(folder: Path):
    turns = [("human", "How many?"), ("gpt", "{} of them")]
    lines = [
        {"conversations": [{"from": who, "value": what.format(n)} for who, what in turns]}
        for n in range(9)
    ]
    Path("shared.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tree = written("shared.jsonl")
    assert tree["operators"][0]["answers"] == "gpt"
    batch = read_config("run.toml", ALL_KINDS).loader.host_batch_at(0)
    learned = [ByteTokenizer().decode(batch["targets"][n][batch["loss_mask"][n]]) for n in (0, 1)]
    assert all(re.fullmatch(r"\d of them<\|im_end\|>", each) for each in learned), learned
    assert any("gpt answers here" in words for words in questions(Path("run.toml").read_text()))


# Files


def test_labels_of_what_is_held_out_are_those_of_the_training_images(folder: Path):
    written(data.image_folders(folder))
    held_out = read_config("run.toml", ALL_KINDS).held_out
    assert held_out is not None
    assert held_out.host_batch_at(0)["label"].tolist()[:2] == [1, 2]  # a dog, an elk


def test_of_two_folders_to_train_on_one_is_read_and_the_other_is_named(folder: Path):
    data.image_folders(folder)
    Path("pets/train").rename("pets/train_more")
    data.image_folders(folder)
    tree = written("pets")
    assert tree["source"]["folder"] == "pets/train"
    assert tree["held_out"]["source"]["folder"] == "pets/test"
    assert "# not used: pets/train_more\n" in Path("run.toml").read_text()


def test_a_file_is_replaced_only_if_that_is_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    data.text_lines(folder)
    Path("lines.toml").write_text("mine")
    assert main(["init", "lines.txt"]) == 2
    assert "lines.toml is there already: name another file" in capsys.readouterr().err
    assert Path("lines.toml").read_text() == "mine"
    assert main(["init", "lines.txt", "-o", "-"]) == 0
    printed = capsys.readouterr().out
    assert Path("lines.toml").read_text() == "mine"
    assert main(["init", "lines.txt", "--overwrite"]) == 0
    assert Path("lines.toml").read_text() == printed
    assert sorted(path.name for path in folder.iterdir()) == ["lines.toml", "lines.txt"]


def test_a_folder_may_have_parts_and_files_without_a_common_suffix(folder: Path):
    data.tfrecord(folder)
    for name, part in (
        ("photos.tfrecord-00000-of-00002", "train"),
        ("photos.tfrecord-00001-of-00002", "val"),
    ):
        Path("shards", part).mkdir()
        Path("shards", name).rename(Path("shards", part, name))
    tree = written("shards")
    assert tree["source"]["paths"] == "shards/train/photos.tfrecord-00000-of-00002"
    assert tree["held_out"]["source"]["paths"] == "shards/val/photos.tfrecord-00001-of-00002"


@pytest.mark.parametrize("format_", ["Parquet", "images in folders", "zarr", "lines of JSON"])
def test_what_is_in_a_bucket_is_read_as_what_is_here(format_: str, folder: Path, store: FakeStore):
    path = data.FORMATS[format_][0](folder)
    files = [each for each in (folder / path).rglob("*") if each.is_file()] or [folder / path]
    store.put_all(BUCKET, {f"in/{f.relative_to(folder)}": f.read_bytes() for f in files})
    here = written(path)
    far = written(f"gs://{BUCKET}/in/{path}")
    far["source"].pop("index", None)
    assert json.loads(json.dumps(far).replace(f"gs://{BUCKET}/in/", "")) == here


# Bad input


def _nothing(folder: Path) -> None:
    pass


def _mixed(folder: Path) -> None:
    (folder / "in").mkdir()
    shutil.move(data.json_lines(folder), "in/a.jsonl")
    shutil.move(data.token_array(folder), "in/b.npy")


def _cut_off(folder: Path) -> None:
    data.parquet(folder)
    Path("in").write_bytes(Path("people/train-0.parquet").read_bytes()[:-9])


def _short_array(folder: Path) -> None:
    data.token_array(folder)
    Path("in").write_bytes(Path("corpus.npy").read_bytes()[:900])


def _unequal(folder: Path) -> None:
    (folder / "in").mkdir()
    np.save("in/x.npy", np.zeros((5, 2)))
    np.save("in/y.npy", np.zeros(4))


def _other_keys(folder: Path) -> None:
    (folder / "in").mkdir()
    Path("in/train.jsonl").write_text('{"x": 1.5, "label": 1}\n' * 4)
    Path("in/test.jsonl").write_text('{"x": 1.5}\n' * 4)


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing there": (_nothing, "there is nothing at 'in': name a file, a folder, a glob"),
    "an empty folder": (lambda f: (f / "in").mkdir(), "in is an empty folder"),
    "empty files": (lambda f: (f / "in").touch(), "no file with anything in it"),
    "no known format": (
        lambda f: (f / "in").write_bytes(bytes(range(200, 256))), "in is of no format that we know",
    ),
    "several formats": (
        _mixed, "in/a.jsonl is lines of JSON, in/b.npy is npy; give a glob .* 'in/\\*.jsonl'",
    ),
    "a file that was cut off": (_cut_off, "in is not a whole Parquet file"),
    "an array that was cut off": (_short_array, "in has 900 bytes, and says of itself"),
    "arrays of unequal lengths": (_unequal, r"x.npy is float64\[5, 2\], y.npy is float64\[4\]"),
    "what is held out lacks a leaf": (
        _other_keys, "its first batch cannot be made: .*test.jsonl.* has no leaf 'label'",
    ),
    "gzip": (
        lambda f: (f / "in").write_bytes(gzip.compress(b"a" * 99)), r"unpack it \(gunzip\)",
    ),
    "npz": (
        lambda f: np.savez(str(f / "x"), x=np.arange(4)) or Path("x.npz").rename("in"),
        "in is a .npz file, .*: unpack it into a folder of .npy files",
    ),
    "objects": (
        lambda f: np.save(f / "x", np.array([{}], object)) or Path("x.npy").rename("in"),
        "in holds Python objects",
    ),
    "one JSON document": (
        lambda f: (f / "in").mkdir() or (f / "in/x.json").write_text('[{"a": 1},\n{"a": 2}]'),
        "in/x.json is one JSON document, and a record must be a line",
    ),
    "text in another encoding": (
        lambda f: (f / "in").mkdir() or (f / "in/x.txt").write_bytes("ï".encode("latin1") * 40),
        "in/x.txt is text that is not UTF-8: convert it",
    ),
    "a bad line of JSON": (
        lambda f: (f / "in").write_text('{"a": 1}\n{"a"\n'),
        "line 2 of .*in is not JSON: .*: correct",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_with_a_remedy_and_nothing_is_written(
    case: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    make, words = BAD[case]
    make(folder)
    before = sorted(folder.rglob("*"))
    assert main(["init", "in"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(words, error), error
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("format_", "module", "extra"),
    [("Hugging Face", "datasets", "hf"), ("Parquet", "pyarrow.parquet", "parquet"),
     ("tar", "cv2", "images")],
)  # fmt: skip
def test_a_missing_package_is_named(
    format_: str, module: str, extra: str, folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    path = data.FORMATS[format_][0](folder)
    monkeypatch.setitem(sys.modules, module, None)
    optional.cache_clear()
    try:
        assert main(["init", path, "-o", "run.toml"]) == 2
    finally:
        optional.cache_clear()
    assert f"pip install 'gristmill[{extra}]'" in capsys.readouterr().err
    assert not Path("run.toml").exists()
