"""TOML with the line of every key."""

import tomllib

import pytest

from loader.command.config.problems import NOT_IN_THE_FILE, ConfigError
from loader.command.config.toml import read_toml

TEXT = '''# a comment, and [not] a = table
seed = 1
[source]
kind = "A"  # kind = "B"
"quoted key" = 3
parse = { kind = "Raw", spec = { image = "image", label = "u1" } }

[[operators]]
kind = "x"
size = [1,
  2]
[operators.sub.deep]
z = 1
[[operators]]
kind = """
kind = 5
[source]
"""
a.b.c = 1
[train.task]
seeds = [ # x = 0 and \u2028 are in a comment
  { y = "x", x = 1 },
  { x = 2 }]
'''
LINES = {
    ("seed",): 2,
    ("source",): 3,
    ("source", "kind"): 4,
    ("source", "quoted key"): 5,
    ("source", "parse", "spec", "label"): 6,
    ("operators",): 8,
    ("operators", 0): 8,
    ("operators", 0, "kind"): 9,
    ("operators", 0, "size"): 10,
    ("operators", 0, "sub"): 12,
    ("operators", 0, "sub", "deep", "z"): 13,
    ("operators", 1): 14,
    ("operators", 1, "kind"): 15,
    ("operators", 1, "a", "b", "c"): 19,
    ("train",): 20,
    ("train", "task", "seeds"): 21,
    ("train", "task", "seeds", 0, "y"): 21,  # the line in which the value begins
    ("train", "task", "seeds", 1, "x"): 21,
}


def test_every_key_has_its_line_and_every_value_is_tomllibs():
    document = read_toml(TEXT, "some.toml")
    assert document.tree == tomllib.loads(TEXT)
    assert {path: document.line(path) for path in LINES} == LINES


def test_what_has_no_line_has_that_of_what_is_around_it():
    document = read_toml(TEXT, "some.toml")
    assert document.line(("source", "missing")) == 3
    assert document.line(("operators", 0, "size", 1)) == 10
    assert document.line(("nowhere",)) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [("a = 1\nb = \n", 2), ("a = 1\n\na = 2\n", 3), ("[x\n", 1), ('a = """\n\n\n', 3)],
)
def test_what_is_no_toml_is_said_with_its_line(text: str, line: int):
    with pytest.raises(ConfigError, match=rf"^some.toml:{line}: this is not TOML: \w") as caught:
        read_toml(text, "some.toml")
    assert "\n" not in str(caught.value)


def test_a_long_list_is_read_in_no_time():
    paths = "".join(f'  "shard-{n}-of-20000",\n' for n in range(20_000))
    document = read_toml(f"paths = [\n{paths}]\nlast = 1\n", "some.toml")
    assert document.line(("last",)) == 20_003


def test_values_can_be_replaced_and_are_then_in_no_line():
    document = read_toml(TEXT, "some.toml")
    changed = document.changed(["source.kind=B", "operators.0.size=[3]", "new.key = true"])
    assert changed.tree["source"]["kind"] == "B"
    assert changed.tree["operators"][0]["size"] == [3]
    assert changed.tree["new"] == {"key": True}
    assert changed.line(("source", "kind")) == NOT_IN_THE_FILE
    assert changed.line(("operators", 0, "kind")) == 9
    assert document.tree["source"]["kind"] == "A"
    for change in ("seed", "=1", "seed.deeper=1", "operators.2.size=1"):
        with pytest.raises(ConfigError, match="cannot set"):
            document.changed([change])
