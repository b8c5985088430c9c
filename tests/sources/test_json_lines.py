"""Lines of JSON as records."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, JSONLinesSource, Mapped, Packed, Shuffle, index_lengths
from operators import PadTokens, Tokenize
from tests.source_checks import assert_is_a_source_of

OBJECTS = [
    {"id": n, "text": f"naïve {n}\n", "w": n / 4, "odd": bool(n % 2), "pair": [n, 7], "other": None}
    for n in range(11)
]
LEAVES = {"id": "int32", "text": str, "w": np.float32, "odd": bool, "pair": "uint16"}


def write(folder: Path, *objects: Any, name: str = "a.jsonl") -> Path:
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in objects))
    return folder / name


def column(name: str, dtype: Any) -> np.ndarray:
    return np.array([line[name] for line in OBJECTS], object if dtype is str else dtype)


def test_lines_of_json_are_a_source(tmp_path: Path):
    write(tmp_path, *OBJECTS[:4])
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, OBJECTS[4:])))  # ends without \n
    expected = {name: column(name, dtype) for name, dtype in LEAVES.items()}
    source = JSONLinesSource(tmp_path / "*.jsonl", LEAVES, index=tmp_path / "index")
    assert_is_a_source_of(source, expected, "id")
    assert source.locate(5) == f"line 2 of {tmp_path / 'b.jsonl'}"


def test_a_list_of_names_takes_what_the_first_line_shows(tmp_path: Path):
    path = write(tmp_path, *OBJECTS)
    source = JSONLinesSource(path, list(LEAVES))
    seen = {"id": "int64", "text": str, "w": "float64", "odd": "bool", "pair": "int64"}
    expected = {name: column(name, dtype) for name, dtype in seen.items()}
    assert_is_a_source_of(source, expected, "id")
    state = DataLoader(source, batch_size=4).get_state()
    DataLoader(JSONLinesSource(path, seen), batch_size=4).set_state(state)  # the same records
    with pytest.raises(ValueError, match=r"data\.leaves: saved"):
        DataLoader(JSONLinesSource(path, LEAVES), batch_size=4).set_state(state)


def test_lists_that_differ_in_length_are_padded_or_packed(tmp_path: Path):
    lists = [list(range(n, n + n % 4)) for n in range(1, 12)]
    path = write(tmp_path, *({"tokens": ids} for ids in lists))
    source = JSONLinesSource(path, {"tokens": "int32"})
    assert source.record_spec()["tokens"].shape == (None,)
    assert [ids.tolist() for ids in source.gather(np.arange(11))["tokens"]] == lists
    padded = DataLoader(source, batch_size=11, operators=[PadTokens("tokens", 5)])
    (batch,) = padded.host_batches()
    assert batch["tokens"].tolist() == [ids + [0] * (5 - len(ids)) for ids in lists]
    packed = Packed(source, index_lengths(source), 6)
    rows = packed.gather(np.arange(len(packed)))
    assert sorted(rows["tokens"][rows["segment_ids"] > 0]) == sorted(
        n for ids in lists for n in ids
    )


def test_texts_are_tokenised_and_packed(tmp_path: Path):
    path = write(tmp_path, *({"text": "hello " * n} for n in range(1, 9)))
    source = Mapped(JSONLinesSource(path, ["text"]), [Tokenize()])
    packed = Packed(source, index_lengths(source), 64)
    (batch,) = DataLoader(packed, batch_size=len(packed), order=Shuffle(0)).host_batches()
    assert np.count_nonzero(batch["tokens"]) == 6 * 36


GOOD = '{"x": 1, "t": "a"}'


@pytest.mark.parametrize(
    ("line", "leaves", "message"),
    [
        ("{oops", ["x"], r"is not JSON: Expecting property name.*begins '\{oops'"),
        ("", ["x"], "is empty: take it out"),
        ("[1, 2]", ["x"], r"is a list, '\[1, 2\]': a line must be an object"),
        ('{"t": "b"}', ["t", "x"], r"has no leaf 'x': it has \['t'\]"),
        ('{"x": null}', ["x"], "has null as leaf 'x', which is int64"),
        ('{"x": "1"}', ["x"], "has \"1\" as leaf 'x', which is int64"),
        ('{"x": 1.5}', ["x"], 'has 1.5 as leaf .*leaves={"x": "float32"}'),
        ('{"x": true}', ["x"], "has true as leaf 'x', which is int64"),
        ('{"x": [1]}', ["x"], r"has \[1\] as leaf 'x', which is int64"),
        ('{"t": 3}', ["t"], "has 3 as leaf 't', which is text"),
        ('{"x": 300}', {"x": "uint8"}, "has 300 as leaf 'x', which is uint8"),
        ('{"x": 1e39}', {"x": "float32"}, r"has 1e\+39 as leaf 'x', which is float32"),
    ],
)
def test_a_bad_line_is_an_error_that_names_file_and_line(
    line: str, leaves: Any, message: str, tmp_path: Path
):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([GOOD] * 6 + [line, GOOD]))
    source = JSONLinesSource(path, leaves)
    where = re.escape(f"record 6 (line 7 of {path}) ")
    with pytest.raises(ValueError, match=where + message):
        source.gather(np.arange(8))


@pytest.mark.parametrize("line", ["{oops", "[1, 2]", '{"t": "b"}', '{"x": 300}'])
def test_a_bad_first_line_is_noticed_at_once(line: str, tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(f"{line}\n{GOOD}\n")
    with pytest.raises(ValueError, match=r"record 0 \(line 1 of .*a\.jsonl\) (is|has) "):
        JSONLinesSource(tmp_path / "a.jsonl", {"x": "uint8"})


def test_lists_of_the_wrong_form_are_refused(tmp_path: Path):
    lines = [{"x": [[1, 2], [3, 4]]}, {"x": []}, {"x": [[1], [2, 3]]}, {"x": [1, 2]}]
    source = JSONLinesSource(write(tmp_path, lines[0], lines[1], *lines), ["x"])
    assert [rows.shape for rows in source.gather(np.arange(3))["x"]] == [(2, 2), (0, 0), (2, 2)]
    for number in (4, 5):
        with pytest.raises(ValueError, match=rf"line {number + 1} of .*which is int64\[\?, \?\]"):
            source.gather(np.array([number]))


@pytest.mark.parametrize("value", [None, [], ["a"], {"b": 1}, [1, "a"]])
def test_a_first_line_that_does_not_show_what_a_leaf_is_is_refused(value: Any, tmp_path: Path):
    with pytest.raises(ValueError, match=r"line 1 of .* does not show what the leaf is"):
        JSONLinesSource(write(tmp_path, {"x": value}), ["x"])


@pytest.mark.parametrize("leaves", ["text", [], ["x", "x"], [1], {"x": "int33"}, {"x": None}, {}])
def test_leaves_are_names_or_names_and_dtypes(leaves: Any, tmp_path: Path):
    with pytest.raises(ValueError, match=r"leaves (must be a list of names|gives 'x' the dtype)"):
        JSONLinesSource(write(tmp_path, {"x": 1}), leaves)
