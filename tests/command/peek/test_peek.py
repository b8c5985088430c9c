import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from rich.console import Console

from loader import (
    DataLoader,
    DefaultBatcher,
    Filter,
    Mapped,
    MeshSharder,
    Packed,
    PadBatcher,
    Shuffle,
    TextLinesSource,
    index_lengths,
)
from loader.command.peek.peek import LeafFacts, Peek, peek
from loader.records.optional import optional
from operators import ByteTokenizer, DecodeImage, Normalize, PadTokens, ShiftTargets, Tokenize

DECODE = ByteTokenizer().decode
RED = (220, 20, 60)  # crimson
MAGENTA = [255, 0, 255]


def images(count: int, *shape: int, most: int = 255) -> np.ndarray:
    """Images of which no two are alike; the darkest and the lightest value are in the first."""
    made = np.random.default_rng(0).integers(0, most + 1, (count, *shape)).astype(np.uint8)
    made[0].flat[:2] = 0, most
    return made


def digits(count: int) -> dict[str, np.ndarray]:
    return {"image": images(count, 8, 8, 1, most=16), "label": np.arange(count) * 7 + 1}


def drawn(seen: Peek) -> np.ndarray:
    """The sheet, red green blue, read back from its file."""
    assert seen.sheet is not None
    sheet = cv2.imread(str(seen.sheet.path), cv2.IMREAD_COLOR_RGB)
    assert sheet is not None
    return sheet


def boxes(seen: Peek) -> list[tuple[int, int, int, int]]:
    """Where on the sheet the images are: left, top, right, bottom, in the order of their rows."""
    assert seen.sheet is not None
    height = len(drawn(seen))
    shown = [axes for axes in seen.sheet.figure.axes if axes.images]
    found = [np.round(axes.get_window_extent().extents).astype(int) for axes in shown]
    return [(left, height - top, right, height - low) for left, low, right, top in found]


def tiles(seen: Peek) -> list[np.ndarray]:
    """The images, cut out of the sheet."""
    return [drawn(seen)[top:low, left:right] for left, top, right, low in boxes(seen)]


def points(tile: np.ndarray, high: int, wide: int) -> np.ndarray:
    """The middle of each of the squares that the values of an image of this size became."""
    middles = [
        ((np.arange(count) + 0.5) * length / count).astype(int)
        for count, length in zip((high, wide), tile.shape, strict=False)
    ]
    return tile[np.ix_(*middles)]


def fact(seen: Peek, name: str) -> LeafFacts:
    return next(leaf for leaf in seen.leaves if leaf.name == name)


def printed(seen: Peek, width: int = 100) -> str:
    file = io.StringIO()
    seen.show(Console(file=file, width=width))
    return file.getvalue()


def shown_lines(seen: Peek, width: int = 100) -> list[str]:
    """What is in the rows of texts, after the indent."""
    lines = printed(seen, width).partition("  row ")[2].splitlines()
    return [line[4:].rstrip() for line in lines if line.startswith("    ")]


def text_source(tmp_path: Path, lines: list[str]) -> TextLinesSource:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines))
    return TextLinesSource(path)


def packed(tmp_path: Path, lines: list[str], row_length: int, **options: Any) -> Packed:
    source = Mapped(text_source(tmp_path, lines), [Tokenize()])
    return Packed(source, index_lengths(source), row_length, **options)


# Pictures


def test_each_tile_shows_the_image_of_its_own_row(tmp_path: Path):
    data = digits(19)
    loader = DataLoader(data, batch_size=12, order=Shuffle(3))
    batch = loader.host_batch_at(0)
    seen = peek(loader, 0, picture=tmp_path / "sheet.png")
    shown = tiles(seen)
    assert len(shown) == 12
    places = [(top, left) for left, top, _, _ in boxes(seen)]
    assert places == sorted(set(places))  # read as a text is
    least, most = int(batch["image"].min()), int(batch["image"].max())
    for tile, image in zip(shown, batch["image"], strict=True):
        assert min(tile.shape[:2]) >= 128
        assert abs(tile.shape[0] - tile.shape[1]) <= 1
        expected = np.round((image - float(least)) / (most - least) * 255)
        np.testing.assert_array_equal(points(tile, 8, 8), expected.repeat(3, axis=2))


def test_colours_of_uint8_images_are_drawn_as_they_are(tmp_path: Path):
    data = {"image": images(6, 32, 32, 3)}
    seen = peek(DataLoader(data, batch_size=6), 0, picture=tmp_path / "sheet.png")
    for tile, image in zip(tiles(seen), data["image"], strict=True):
        np.testing.assert_array_equal(points(tile, 32, 32), image)


def test_an_alpha_channel_is_left_out(tmp_path: Path):
    data = {"image": images(3, 20, 16, 4)}
    seen = peek(DataLoader(data, batch_size=3), 0, picture=tmp_path / "sheet.png")
    for tile, image in zip(tiles(seen), data["image"], strict=True):
        np.testing.assert_array_equal(points(tile, 20, 16), image[..., :3])


def test_floats_are_stretched_over_the_range_of_the_batch_and_it_is_said(tmp_path: Path):
    values = images(4, 16, 16, 3).astype(np.float32) / 51 - 2  # -2 to 3
    values[1, 5, 6, 0], values[2, 7, 8] = np.nan, np.inf
    seen = peek(DataLoader({"x": values}, batch_size=5), 0, picture=tmp_path / "sheet.png")
    shown = [points(tile, 16, 16) for tile in tiles(seen)]
    assert shown[1][5, 6].tolist() == shown[2][7, 8].tolist() == MAGENTA
    for tile, image in zip(shown, values, strict=False):
        known = np.isfinite(image).all(axis=2)
        np.testing.assert_array_equal(tile[known], np.round((image[known] + 2) * 51))
    assert "-2 is black, 3 white, magenta not finite" in printed(seen)
    leaf = fact(seen, "x")
    assert (leaf.least, leaf.most, leaf.nan, leaf.inf) == (-2, 3, 1, 3)
    assert "1 NaN, 3 infinite" in printed(seen)


def test_rows_that_are_padding_are_crossed_out_and_no_others(tmp_path: Path):
    loader = DataLoader(digits(19), batch_size=12)
    seen = peek(loader, 1, picture=tmp_path / "sheet.png")
    assert seen.masked == (7, 8, 9, 10, 11)
    for row, tile in enumerate(tiles(seen)):
        crossed = (tile == RED).all(axis=2)
        assert crossed.any() == (row >= 7)
        assert (row >= 7) == bool((tile[~crossed] > 150).mean() > 0.9)  # faint


def test_no_more_rows_are_drawn_than_can_be_looked_at(tmp_path: Path):
    seen = peek(DataLoader(digits(70), batch_size=70), 0, picture=tmp_path / "sheet.png")
    assert len(tiles(seen)) == 64
    assert "64 of 70 rows" in printed(seen)


def test_large_images_are_shrunk_to_a_size_that_fits(tmp_path: Path):
    plain = (
        np.full((3, 300, 400, 3), 200, np.uint8) - np.arange(3, dtype=np.uint8)[:, None, None, None]
    )
    seen = peek(DataLoader({"image": plain}, batch_size=3), 0, picture=tmp_path / "sheet.png")
    for tile, value in zip(tiles(seen), (200, 199, 198), strict=True):
        assert 150 < tile.shape[0] < tile.shape[1] < 260
        assert (tile[10:-10, 10:-10] == value).all()


def test_images_of_different_sizes_are_drawn_from_the_host(tmp_path: Path):
    files = np.empty(3, object)
    for row, image in enumerate(made := [images(1, 20 + row, 30, 3)[0] for row in range(3)]):
        files[row] = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1].tobytes()
    loader = DataLoader({"image": files}, batch_size=4, operators=[DecodeImage()])
    seen = peek(loader, 0, picture=tmp_path / "sheet.png")
    for tile, image in zip(tiles(seen), made, strict=False):
        np.testing.assert_array_equal(points(tile, len(image), 30), image)
    assert "uint8 of 3 sizes" in printed(seen)
    assert seen.texts == ()
    assert seen.masked == (3,)


def test_several_images_of_a_row_stand_side_by_side(tmp_path: Path):
    data = {"image": images(3, 24, 20, 3), "cells": images(3, 24, 20, most=3)}
    seen = peek(DataLoader(data, batch_size=3), 0, picture=tmp_path / "sheet.png")
    assert seen.sheet is not None
    assert list(seen.sheet.notes) == ["cells", "image"]
    for row in range(3):
        cells, image = (points(tile, 24, 20) for tile in tiles(seen)[2 * row : 2 * row + 2])
        np.testing.assert_array_equal(cells[..., 0], data["cells"][row] * 85)
        np.testing.assert_array_equal(image, data["image"][row])


def test_a_caption_shows_what_there_is_one_of_in_a_row(tmp_path: Path):
    data = {**digits(9), "weight": np.linspace(0.5, 0.9, 9, dtype=np.float32)}
    seen = peek(DataLoader(data, batch_size=10), 0, picture=tmp_path / "sheet.png")
    assert seen.sheet is not None
    captions = [axes.get_title() for axes in seen.sheet.figure.axes if axes.get_title()]
    assert captions[2] == "row 2 · label=15 · weight=0.6"
    labels = [f"row {row} · label={7 * row + 1}" for row in range(9)]
    assert [caption.partition(" · weight")[0] for caption in captions] == [
        *labels,
        "row 9 · padding",
    ]


def test_what_is_in_a_caption_is_not_taken_for_mathematics(tmp_path: Path):
    data = {**digits(2), "price": np.array(["$x_{", "a$b$"], object)}
    seen = peek(DataLoader(data, batch_size=2), 0, picture=tmp_path / "sheet.png")
    assert len(tiles(seen)) == 2


def test_a_picture_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    loader, path = DataLoader(digits(19), batch_size=12), tmp_path / "new" / "sheet.png"
    peek(loader, 0, picture=path)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        peek(loader, 1, picture=path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["sheet.png"]


def test_without_matplotlib_images_are_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    optional.cache_clear()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'gristmill\[peek\]'"):
        peek(DataLoader(digits(3), batch_size=3), 0, picture=tmp_path / "sheet.png")
    loader = DataLoader({"x": np.arange(6.0).reshape(3, 2)}, batch_size=3)
    assert peek(loader, 0, picture=tmp_path / "sheet.png").to_json()["picture"] is None
    assert os.listdir(tmp_path) == []


# What the training step would see


def test_microbatches_on_a_mesh_show_the_same_rows(tmp_path: Path):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    rules = [("image", P("data", "model")), ("label", P("data"))]
    plain = peek(DataLoader(digits(21), batch_size=16), 1, picture=tmp_path / "plain.png")
    loader = DataLoader(digits(21), batch_size=16, sharder=MeshSharder(mesh, rules), microbatches=2)
    split = peek(loader, 1, picture=tmp_path / "split.png")
    np.testing.assert_array_equal(drawn(plain), drawn(split))
    assert split.masked == plain.masked == tuple(range(5, 16))
    image = fact(split, "image")
    assert (image.shape, image.sharding) == ((2, 8, 8, 8, 1), "P(None, 'data', 'model')")


def test_device_operators_are_applied_and_padding_is_in_no_range(tmp_path: Path):
    data = {"image": images(7, 6, 6, 1, most=100) + np.uint8(100)}
    norm = Normalize("image", mean=[0.0], std=[0.5], on="device")
    seen = peek(DataLoader(data, batch_size=5, operators=[norm]), 1, picture=tmp_path / "a.png")
    leaf = fact(seen, "image")
    real = data["image"][5:].astype(float) / 0.5
    assert (leaf.least, leaf.most) == (real.min(), real.max())
    assert leaf.mean == pytest.approx(real.mean())


def test_a_peek_says_where_the_batch_is_and_does_not_move(tmp_path: Path):
    loader = DataLoader(digits(10), batch_size=4, epochs=2, remainder="carry")
    state = loader.get_state()
    seen = peek(loader, 2, picture=tmp_path / "a.png")
    assert loader.get_state() == state
    found = seen.to_json()
    assert (found["step"], found["epoch"], found["positions"]) == (2, 0, [8, 11])
    assert "step 2 · epochs 0 to 1 · positions 8 to 11 · 4 rows" in printed(seen)
    with pytest.raises(ValueError, match="step 5 is out of range"):
        peek(loader, 5, picture=tmp_path / "a.png")
    with pytest.raises(ValueError, match="rows must be an int of at least 0, got -1"):
        peek(loader, 0, picture=tmp_path / "a.png", rows=-1)


class WithSums(PadBatcher):
    """Adds leaves that have no rows."""

    def collate(self, rows: Any, valid: np.ndarray) -> dict[str, Any]:
        sums = {"count": np.int32(valid.sum()), "table": np.arange(6).reshape(2, 3)}
        return {**super().collate(rows, valid), "sums": sums}


def test_leaves_of_every_kind_are_told_in_json_and_in_words(tmp_path: Path):
    count = 5
    data = {
        "flag": np.arange(count) % 2 == 0,
        "nested": {"low": np.arange(count).astype(jnp.bfloat16), "wave": np.arange(count) * 1j},
        "none": np.zeros((count, 0), np.float32),
        "odd": np.full(count, np.nan, np.float32),
    }
    loader = DataLoader(data, batch_size=3, batcher=WithSums())
    seen = peek(loader, 1, picture=tmp_path / "a.png")
    found = json.loads(json.dumps(seen.to_json(), allow_nan=False))
    leaves = {leaf["name"]: leaf for leaf in found["leaves"]}
    ranges = {name: (leaf["min"], leaf["max"]) for name, leaf in leaves.items()}
    assert ranges == {
        "flag": (0, 1),
        "nested/low": (3, 4),
        "nested/wave": (None, None),
        "none": (None, None),
        "odd": (None, None),
        "sums/count": (2, 2),
        "sums/table": (0, 5),
        "valid_mask": (0, 1),
    }
    assert leaves["odd"]["nan"] == 2
    assert found["masked_rows"] == [2]
    assert all(name in printed(seen) for name in leaves)
    keys = [{"key": jax.random.key(n), "n": n} for n in range(3)]
    key = fact(peek(DataLoader(keys, batch_size=2), 1, picture=tmp_path / "a.png"), "key")
    assert (key.shape, key.dtype, key.least) == ((2,), "key<fry>", None)


def test_a_batch_without_a_single_real_row_is_shown(tmp_path: Path):
    never = Filter(lambda record: False)
    seen = peek(
        DataLoader(digits(5), batch_size=3, operators=[never]), 0, picture=tmp_path / "a.png"
    )
    assert seen.masked == (0, 1, 2)
    assert [leaf.mean for leaf in seen.leaves] == [None, None, 0]
    assert len(tiles(seen)) == 3
    assert "3 of them padding (rows 0 to 2)" in printed(seen)


# Texts


def test_texts_that_never_reach_a_device_are_shown_from_the_host(tmp_path: Path):
    lines = ["one", "", "three words here", "vier"]
    source = text_source(tmp_path, lines)
    seen = peek(DataLoader(source, batch_size=3), 0, picture=tmp_path / "a.png")
    assert "since no device can hold these leaves: text" in printed(seen)
    assert shown_lines(seen) == ["one", "three words here"]
    assert [row["segments"] for row in seen.to_json()["texts"][0]["rows"]] == [
        [t] for t in lines[:3]
    ]
    listed = DataLoader(source, batch_size=2, remainder="drop", batcher=DefaultBatcher())
    assert shown_lines(peek(listed, 1, picture=tmp_path / "a.png")) == lines[2:]
    short = DataLoader(source, batch_size=3, operators=[Tokenize()])
    last = peek(short, 1, picture=tmp_path / "a.png", decode=DECODE)
    assert shown_lines(last) == ["vier"]
    assert printed(last).count("padding, valid_mask is False") == 2


def test_what_is_in_a_text_neither_harms_a_terminal_nor_is_taken_for_markup(tmp_path: Path):
    texts = ["\x1b[31mred\x07\n\tend\r", "[bold]b[/bold] [/] :smile:", "a\u202eb\x9bc\u2028d\ud800"]
    data = {"te[bold]xt\x1b": np.array(texts, object)}
    file = io.StringIO()
    seen = peek(DataLoader(data, batch_size=3), 0, picture=tmp_path / "a.png")
    seen.show(Console(file=file, width=100, force_terminal=True, color_system="truecolor"))
    assert shown_lines(seen) == [
        "␛[31mred␇⏎→end␍",
        "[bold]b[/bold] [/] :smile:",
        "a\\u202eb\\x9bc⏎d\\ud800",
    ]
    assert "te[bold]xt␛" in printed(seen)
    assert "\x1b[31m" not in file.getvalue()
    assert not set("\x07\r\t\u202e\x9b\u2028") & set(file.getvalue())


def test_packed_rows_show_each_record_and_where_it_ends(tmp_path: Path):
    lines = [f"{'record' * (n % 3)} {n}" for n in range(17)]
    source = packed(tmp_path, lines, 32)
    loader = DataLoader(source, batch_size=len(source) + 1)
    seen = peek(loader, 0, picture=tmp_path / "a.png", decode=DECODE, rows=99)
    found = seen.to_json()
    rows = found["texts"][0]["rows"]
    assert sorted(text for row in rows for text in row["segments"]) == sorted(lines)
    real = sum(row["places"] - row["padding"] for row in rows)
    assert real == pytest.approx(source.fraction_real * 32 * len(source))
    assert rows[-1]["masked"]
    for row, line in zip(rows, shown_lines(seen), strict=False):
        assert line == "┃".join(row["segments"])


def test_places_that_do_not_count_are_told(tmp_path: Path):
    source = packed(tmp_path, ["xyz", "abcdefé"], 11)
    loader = DataLoader(source, batch_size=1, operators=[ShiftTargets()])
    seen = peek(loader, 0, picture=tmp_path / "a.png", decode=DECODE)
    assert shown_lines(seen) == ["bcdeféx┃yz", "abcdefé┃xy"]
    assert [text["rows"][0]["uncounted"] for text in seen.texts] == [1, 1]
    assert printed(seen).count("2 segments · 1 where loss_mask is False") == 2


def test_padded_rows_show_how_much_of_them_does_not_count(tmp_path: Path):
    source = text_source(tmp_path, ["import os", "x = [1, 2]"])
    loader = DataLoader(source, batch_size=2, operators=[Tokenize(), PadTokens("tokens", 40)])
    seen = peek(loader, 0, picture=tmp_path / "a.png", decode=DECODE)
    assert shown_lines(seen) == ["import os", "x = [1, 2]"]
    assert "row 0 · 40 long · 31 where loss_mask is False" in printed(seen)


def test_tokens_are_numbers_where_they_cannot_be_decoded(tmp_path: Path):
    loader = DataLoader({"tokens": np.arange(12).reshape(2, 6) - 3}, batch_size=2)
    lines = ["-3 -2 -1 0 1 2", "3 4 5 6 7 8"]
    assert shown_lines(peek(loader, 0, picture=tmp_path / "a.png")) == lines

    def decode(tokens: Any) -> str:
        return "".join("abcdefghi"[token] for token in bytes(tokens))

    seen = peek(loader, 0, picture=tmp_path / "a.png", decode=decode)
    assert shown_lines(seen) == lines
    assert "numbers, since they do not decode (ValueError: bytes must be in range" in printed(seen)


def test_long_rows_are_cut_and_wide_characters_fit_the_width(tmp_path: Path):
    texts = np.array(["日本" * 40, " ".join(map(str, range(2000)))], object)
    seen = peek(DataLoader({"text": texts}, batch_size=2), 0, picture=tmp_path / "a.png")
    lines = shown_lines(seen, width=44)
    assert lines[:4] == ["日本" * 10] * 4
    shown, _, said = " ".join(lines[4:]).partition(" … ")
    left_out = int(said.removesuffix(" more characters").replace(",", ""))
    assert texts[1][: len(texts[1]) - left_out].split() == shown.split()
    assert len(shown.split()) > 200
