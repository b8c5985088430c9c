"""Configurations: what a file says is what the loader does, and every mistake is named."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from loader import ArraySource, BlockShuffle, DataLoader, Mask, Mixture, Packed, Shuffle
from loader.command.config.config import read_config
from loader.command.config.problems import ConfigError
from loader.command.main import ALL_KINDS
from loader.testing import assert_same_batch
from operators import ByteTokenizer, Normalize, RandomCrop

GOOD = """\
[source]
kind = "ArraySource"
arrays = { image = "images.npy", label = "labels.npy" }

[order]
kind = "Shuffle"
seed = 3

[[operators]]
kind = "RandomCrop"
leaf = "image"
size = 6
seed = 1

[[operators]]
kind = "Normalize"
leaf = "image"
mean = 4.5
std = 2.0
on = "device"

[loader]
batch_size = 16
epochs = 2
remainder = "carry"

[mesh]
data = 4
"""
TRAIN = """
[train]
task = { kind = "Classify" }

[held_out]
source = { kind = "ArraySource", arrays = { image = "images.npy", label = "labels.npy" } }
operators = [{ kind = "CenterCrop", leaf = "image", size = 6 }]
"""
IMAGES = np.arange(50 * 8 * 8, dtype=np.float32).reshape(50, 8, 8, 1)
LABELS = np.arange(50, dtype=np.int32) % 10


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", IMAGES)
    np.save("labels.npy", LABELS)
    return tmp_path


def problems(text: str) -> list[tuple[int | None, str]]:
    Path("some.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config("some.toml", ALL_KINDS)
    return [(problem.line, problem.message) for problem in caught.value.problems]


def test_a_file_makes_the_loader_that_it_describes(folder: Path):
    (folder / "some.toml").write_text(GOOD + TRAIN)
    config = read_config("some.toml", ALL_KINDS)
    by_hand = DataLoader(
        ArraySource({"image": IMAGES, "label": LABELS}),
        batch_size=16,
        order=Shuffle(seed=3),
        operators=[
            RandomCrop("image", 6, seed=1),
            Normalize("image", mean=4.5, std=2.0, on="device"),
        ],
        epochs=2,
        remainder="carry",
        mesh=config.mesh,
    )
    with config.loader as ours, by_hand as theirs:
        assert ours.get_state()["fingerprint"] == theirs.get_state()["fingerprint"]
        for step, (got, want) in enumerate(zip(ours, theirs, strict=True)):
            assert_same_batch(got, want, f"batch {step}")
    held_out = config.held_out
    assert held_out is not None
    assert [b["valid_mask"].sum() for b in held_out.host_batches()] == [16, 16, 16, 2]


def test_values_of_the_file_can_be_given_otherwise(folder: Path):
    (folder / "some.toml").write_text(GOOD)
    config = read_config("some.toml", ALL_KINDS, ["loader.batch_size=8", "loader.epochs=endless"])
    assert config.loader.plan.batch_size == 8
    assert config.loader.plan.end is None


def test_a_file_says_what_becomes_of_bad_records(folder: Path):
    mask = 'batch_size = 16\non_error = { kind = "Mask", most = 7, log = "bad.jsonl" }\nretries = 1'
    (folder / "some.toml").write_text(GOOD.replace("batch_size = 16", mask) + TRAIN)
    config = read_config("some.toml", ALL_KINDS)
    assert config.held_out is not None
    for loader in (config.loader, config.held_out):
        assert (loader.on_error, loader.retries) == (Mask(7, "bad.jsonl"), 1)
    for key, words in (
        ('on_error = "mask"', "on_error must be 'raise' or"),
        ('on_error = { kind = "Mask", log = "conftest.py" }', "ends in .jsonl"),
        ('on_error = { kind = "Mask", most = -1 }', "most must be"),
        ("retries = -1", "retries must be at least 0"),
    ):
        ((line, message),) = problems(GOOD.replace("epochs = 2", key))
        assert line == 24
        assert words in message


BROKEN = {
    "not TOML": ("seed = 3", "seed =", 7, "not TOML"),
    "a section with a typo": ("[loader]", "[laoder]", 22, r"no section \[laoder\].*'loader'"),
    "a key with a typo": (
        "batch_size = 16",
        "bacth_size = 16",
        23,
        r"\[loader\] has no key 'bacth_size'; did you mean 'batch_size'",
    ),
    "a key of another kind": ("seed = 3", "window = 3", 7, "Shuffle has no key 'window'"),
    "a kind with a typo": ('"RandomCrop"', '"RandomCorp"', 10, "did you mean 'RandomCrop'"),
    "a text for a number": ("epochs = 2", 'epochs = "two"', 24, "a whole number or 'endless'"),
    "a word that is none": ('"carry"', '"cary"', 25, "did you mean 'carry'"),
    "a key that is missing": ("size = 6\n", "", 9, "RandomCrop needs 'size'"),
    "a number out of range": ("epochs = 2", "epochs = 0", 24, "epochs must be at least 1, got 0"),
    "a file that is not there": ('"labels.npy"', '"label.npy"', 3, "No such file.*'label.npy'"),
    "a batch that does not divide": ("= 16", "= 18", 23, "batch_size 18 does not divide"),
    "a leaf that is not there": ('leaf = "image"\nmean', 'leaf = "img"\nmean', 15, "'img'"),
    "a crop larger than the image": ("size = 6", "size = 9", 9, "smaller than the crop"),
    "devices that are not there": ("data = 4", "data = 400", 27, "400 devices and there are 8"),
    "no device": ("data = 4", "data = 0", 28, "'data' must be at least 1 device"),
    "a section without effect": (
        "[mesh]\ndata = 4\n",
        '[sharding]\nrules = [["image", ["data"]]]\n',
        27,
        r"\[sharding\] has no effect without \[mesh\]",
    ),
    "a seed without effect": ("mean = 4.5", "seed = 2\nmean = 4.5", 18, "not random"),
    "a reference to nothing": (
        'kind = "Shuffle"',
        'kind = "no_such_module:order"',
        6,
        "cannot find 'no_such_module:order'",
    ),
    "an order that is none": (
        'kind = "Shuffle"\nseed = 3',
        'kind = "Msgpack"',
        5,
        "must be an order",
    ),
    "a table where a list is": (
        "[[operators]]\nkind = \"N",
        "[[operator]]\nkind = \"N",
        15,
        "did you mean 'operators'",
    ),
}  # fmt: skip


def test_all_mistakes_are_named_at_once(folder: Path):
    text = GOOD.replace("seed = 3", "sede = 3").replace('"RandomCrop"', '"RandomCorp"')
    text = text.replace("batch_size", "batchsize").replace("data = 4", "data = 0")
    found = problems(text + TRAIN.replace("Classify", "Clasify"))
    assert [line for line, _ in found] == [7, 10, 23, 28, 31]


def test_an_unknown_key_is_an_error_at_any_depth(folder: Path):
    text = GOOD + TRAIN.replace('"Classify"', '"Classify", lable = "label"')
    assert problems(text) == [(31, "Classify has no key 'lable'; did you mean 'label'?")]
    text = GOOD + TRAIN.replace('"Classify"', '"Classify", classes = "ten"')
    assert problems(text) == [(31, "'classes' of Classify must be a whole number, got 'ten'")]
    text = GOOD + TRAIN.replace('"Classify"', '"Classify", classes = 0')
    assert problems(text) == [(31, "Classify: classes must be at least 1, got 0")]
    assert problems(f"{GOOD}[train]\n") == [(29, "[train] needs 'task'")]
    text = GOOD.replace("data = 4", "data = 0") + TRAIN.replace("size = 6 }", "sizes = 6 }")
    assert [line for line, _ in problems(text)] == [28, 35]
    text = GOOD + TRAIN.replace("size = 6 }", "sizes = 6 }")
    assert any(line == 35 and "'sizes'" in message for line, message in problems(text))


MORE_BROKEN = {
    "the second of two alike": (
        'mean = 4.5\nstd = 2.0\non = "device"\n',
        "mean = 4.5\nstd = 2.0\n"
        '[[operators]]\nkind = "Normalize"\nleaf = "img"\nmean = 0\nstd = 1\n',
        20,
        "no leaf 'img'",
    ),
    "an operator as source": (
        'kind = "ArraySource"\narrays = { image = "images.npy", label = "labels.npy" }',
        'kind = "Select"\nleaves = ["x"]',
        1,
        "",
    ),
    "an order as operator": (
        'kind = "RandomCrop"\nleaf = "image"\nsize = 6\nseed = 1',
        'kind = "Sequential"',
        9,
        "operator",
    ),
    "a rule for no leaf": (
        "data = 4\n",
        'data = 4\n[sharding]\nrules = [["picture", ["data"]]]\n',
        29,
        "picture",
    ),
    "an axis that is not there": (
        "data = 4\n",
        'data = 4\n[sharding]\nrules = [[".*", ["model"]]]\n',
        30,
        "model",
    ),
    "a mesh without axes": ("data = 4\n", "", 27, "names no axis"),
    "a learning rate that is none": (
        "data = 4\n",
        'data = 4\n[train]\nlearning_rate = nan\ntask = { kind = "Classify" }\n',
        30,
        "finite",
    ),
    "a list that is a text": (
        'kind = "Normalize"\nleaf = "image"\nmean = 4.5\nstd = 2.0\non = "device"',
        'kind = "Select"\nleaves = "image"',
        17,
        "must be a list",
    ),
    "a key outside of its section": (
        "[source]",
        "batch_size = 3\n[source]",
        1,
        "the key 'batch_size' of .loader.",
    ),
    "a module that does not load": (
        'kind = "Shuffle"\nseed = 3',
        'kind = "broken_module:order"',
        6,
        "SyntaxError",
    ),
    "a module that leaves": (
        'kind = "Shuffle"\nseed = 3',
        'kind = "leaving_module:order"',
        6,
        "SystemExit",
    ),
}


@pytest.mark.parametrize("mistake", [*BROKEN, *MORE_BROKEN])
def test_a_mistake_is_named_with_its_line(mistake: str, folder: Path):
    (folder / "broken_module.py").write_text("def order(:\n")
    (folder / "leaving_module.py").write_text("raise SystemExit(3)\n")
    before, after, line, message = {**BROKEN, **MORE_BROKEN}[mistake]
    assert GOOD.count(before) == 1
    found = problems(GOOD.replace(before, after))
    assert any(at == line and re.search(message, text) for at, text in found), found
    assert all("\n" not in text for _, text in found)


def test_sources_build_on_one_another(folder: Path):
    for number in range(12):
        (folder / f"{number:02d}.txt").write_text(f"text {number} " * (number + 1))
    (folder / "some.toml").write_text("""
[[source]]
kind = "FilesSource"
paths = "*.txt"
[[source]]
kind = "Mapped"
operators = [{ kind = "Tokenize" }]
[[source]]
kind = "Packed"
row_length = 64
long = "split"
[[operators]]
kind = "ShiftTargets"
[loader]
batch_size = 4
""")
    config = read_config("some.toml", ALL_KINDS)
    assert isinstance(config.loader.pipeline.source, Packed)
    batch = config.loader.host_batch_at(0)
    assert set(batch) == {
        "tokens", "targets", "loss_mask", "segment_ids", "positions", "valid_mask",
    }  # fmt: skip


def test_a_configuration_packs_chats_and_hides_or_cuts_out_tokens(folder: Path):
    chats = [[{"role": "user", "content": "x" * n}, {"role": "me", "content": "y"}] for n in (3, 7)]
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    template = r'{ user = "{content}:", me = "{content}.\n" }'
    every = {"tokens", "targets", "loss_mask", "segment_ids", "positions", "valid_mask"}
    spans = {"inputs", "inputs_mask", "targets", "loss_mask", "valid_mask"}
    for operator, settings, leaves in (
        ("MaskTokens", "mask_token = 259\nvocab_size = 260\nspecial = [0, 1]\nseed = 1", every),
        ("SpanCorruption", "sentinels = 500\nend = 1\nseed = 1", spans),
        ("ShiftTargets", "", every),
    ):
        (folder / "some.toml").write_text(f"""
[[source]]
kind = "TextLinesSource"
paths = "chats.jsonl"
[[source]]
kind = "Mapped"
[[source.operators]]
kind = "ChatTemplate"
messages = "text"
answers = "me"
template = {template}
[[source]]
kind = "Packed"
row_length = 19
leaf = ["tokens", "loss_mask"]
[[operators]]
kind = "{operator}"
{settings}
[loader]
batch_size = 1
""")
        batch = read_config("some.toml", ALL_KINDS).loader.host_batch_at(0)
        assert set(batch) == leaves, operator
    assert ByteTokenizer().decode(batch["targets"][batch["loss_mask"]]) == "y.y."


def test_a_configuration_says_how_records_are_packed(folder: Path):
    np.save(folder / "tokens.npy", np.arange(1, 46).reshape(9, 5))
    settings = {
        'mode = "concat"': {"mode": "concat"},
        'long = "split"\npositions = "record"\nmost_segments = 1': {
            "long": "split",
            "positions": "record",
            "most_segments": 1,
        },
    }
    for lines, how in settings.items():
        (folder / "some.toml").write_text(f"""
[[source]]
kind = "ArraySource"
arrays = {{ tokens = "tokens.npy" }}
[[source]]
kind = "Packed"
row_length = 4
{lines}
[loader]
batch_size = 12
""")
        source = {"tokens": np.load(folder / "tokens.npy")}
        packed = DataLoader(Packed(source, [5] * 9, 4, **how), batch_size=12)
        loader = read_config("some.toml", ALL_KINDS).loader
        assert_same_batch(loader.host_batch_at(0), packed.host_batch_at(0), lines)
        assert loader.get_state()["fingerprint"] == packed.get_state()["fingerprint"]


def test_a_source_is_filtered_by_a_function_of_the_folder(folder: Path):
    (folder / "kept_lines.py").write_text(
        "def is_even(record):\n    return int(record['text']) % 2 == 0\n"
    )
    (folder / "lines.txt").write_text("\n".join(map(str, range(11))))
    (folder / "some.toml").write_text("""
[[source]]
kind = "TextLinesSource"
paths = "lines.txt"
[[source]]
kind = "Filtered"
keep = { ref = "kept_lines:is_even" }
index = "kept.npy"
[loader]
batch_size = 6
""")
    batch = read_config("some.toml", ALL_KINDS).loader.host_batch_at(0)
    assert batch["text"].tolist() == ["0", "2", "4", "6", "8", "10"]
    assert np.load("kept.npy").tolist() == [0, 2, 4, 6, 8, 10]


def test_a_folder_of_images_is_a_source(folder: Path):
    for name in ("dog/1.png", "cat/0.PNG", "dog/2.png"):
        (folder / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "photos" / name).write_bytes(name.encode())
    (folder / "some.toml").write_text("""
[source]
kind = "ImageFolderSource"
folder = "photos"
classes = ["dog", "cat"]
[loader]
batch_size = 4
""")
    batch = read_config("some.toml", ALL_KINDS).loader.host_batch_at(0)
    assert batch["image"].tolist() == [b"dog/1.png", b"dog/2.png", b"cat/0.PNG", None]
    assert batch["label"].tolist() == [0, 0, 1, 0]


def test_sources_can_be_mixed(folder: Path):
    (folder / "some.toml").write_text("""
[source]
kind = "Mixture"
[source.components.a]
weight = 3
source = { kind = "ArraySource", arrays = { label = "labels.npy" } }
[source.components.b]
weight = 1
[[source.components.b.source]]
kind = "ArraySource"
arrays = { label = "labels.npy" }
[[source.components.b.source]]
kind = "Mapped"
operators = []
[loader]
batch_size = 4
""")
    assert isinstance(read_config("some.toml", ALL_KINDS).loader.pipeline.source, Mixture)


def test_your_own_code_is_named_by_its_module(folder: Path):
    (folder / "my_code.py").write_text("""
import numpy as np
def numbers(count: int, step: int = 1):
    return {"x": np.arange(0, count * step, step)}
def doubled(rows):
    return {"x": rows["x"] * 2}
""")
    text = """
[source]
kind = "my_code:numbers"
count = 10
step = 3
[[operators]]
kind = "MapBatch"
fn = { ref = "my_code:doubled" }
[loader]
batch_size = 10
"""
    (folder / "some.toml").write_text(text)
    batch = read_config("some.toml", ALL_KINDS).loader.host_batch_at(0)
    assert batch["x"].tolist() == list(range(0, 60, 6))
    assert problems(text.replace("step = 3", "stop = 3")) == [
        (5, "my_code:numbers has no key 'stop'; did you mean 'step'?")
    ]


@pytest.mark.parametrize("name", ["digits", "text", "zarr"])
def test_the_configurations_we_ship_name_only_keys_that_there_are(name: str, folder: Path):
    """Their data is not made here, so all that may be wrong is that it is missing."""
    path = Path(__file__).parents[3] / "configs" / f"{name}.toml"
    try:
        config = read_config(path, ALL_KINDS)
    except ConfigError as error:
        assert name != "text"
        for problem in error.problems:
            assert "build/data" in problem.message
    else:
        assert isinstance(config.loader.pipeline.order, Shuffle | BlockShuffle)


def test_a_source_of_files_takes_a_cache(folder: Path):
    (folder / "lines.txt").write_text("one\ntwo\nthree\n")
    text = """\
[source]
kind = "TextLinesSource"
paths = "*.txt"
cache = { kind = "DiskCache", folder = "kept", most_bytes = "1MB" }

[loader]
batch_size = 2
"""
    (folder / "cached.toml").write_text(text)
    with read_config("cached.toml", ALL_KINDS).loader as loader:
        batches = list(loader.host_batches())
    assert batches[0]["text"].tolist() == ["one", "two"]
    (entry,) = (folder / "kept").glob("pieces/*/*")
    assert entry.read_text() == "one\ntwo\nthree\n"
    (folder / "wrong.toml").write_text(text.replace("1MB", "much"))
    with pytest.raises(ConfigError, match=r"wrong\.toml:4: .*most_bytes must be bytes .* 'much'"):
        read_config("wrong.toml", ALL_KINDS)
