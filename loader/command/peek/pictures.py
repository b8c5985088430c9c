"""The images of a batch on one PNG sheet: a tile for each row, with its number and its labels.

Small images are enlarged by whole factors, each value a square of pixels; large ones are shrunk.
A row that is padding is greyed and crossed out. The head of the sheet says what was drawn, and how.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loader.command.peek.marked_text import visible
from loader.command.peek.pen import Pen
from loader.command.peek.pixels import images_of, tones_of
from loader.command.peek.tiles import Box, Tile, laid_out
from loader.records.spec import VALID_MASK
from loader.records.whole_file import write_whole

MOST_ROWS = 64
_SIDE = 128  # pixels: what is smaller is enlarged up to it
_LARGEST = 256  # pixels: what is larger is shrunk to it, or to _SIDE if there are many rows
_MANY_ROWS = 12
_CAPTION_CHARACTERS = 40  # of one value


@dataclasses.dataclass(frozen=True)
class Sheet:
    """A sheet that was drawn: the first `rows` of `of_rows` rows; `notes` say how, by leaf.

    `boxes` are the places (left, top, width, height) of the images on it: for each row, one for
    each leaf of `notes`.
    """

    path: Path
    rows: int
    of_rows: int
    notes: dict[str, str]
    boxes: tuple[tuple[Box, ...], ...]

    def to_json(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in ("rows", "of_rows", "notes")}
        return {"path": str(self.path), **named}


def draw_sheet(
    leaves: Mapping[str, Any], valid: np.ndarray, path: Path, title: str
) -> Sheet | None:
    """Draw all leaves that look like images; None if there are none, and then nothing is written.

    `leaves` have a row for each entry of `valid`. Those of one number or text a row are captions.
    """
    found = {name: images for name, leaf in leaves.items() if (images := images_of(leaf))}
    if not found:
        return None
    pen = Pen.made()
    rows = min(len(valid), MOST_ROWS)
    told = np.flatnonzero(valid[:rows]).tolist() or [0]  # an image may be missing from the others
    columns, notes = [], {}
    for name, images in found.items():
        tones = tones_of(image for image, real in zip(images, valid, strict=True) if real)
        drawn = [_fitted(pen, tones.pixels(image), rows) for image in images[:rows]]
        notes[name] = f"{_change([(images[row], drawn[row]) for row in told])}, {tones}"
        columns.append(drawn)
    tiles = [
        Tile(images, _caption(leaves, row, bool(valid[row])), bool(valid[row]))
        for row, images in enumerate(zip(*columns, strict=True))
    ]
    head = [f"{title} · {rows_drawn(rows, len(valid))}"]
    head += [f"{visible(name)}: {note}" for name, note in notes.items()]
    canvas, boxes = laid_out(pen, head, tiles)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, pen.png(canvas))
    return Sheet(path, rows, len(valid), notes, boxes)


def rows_drawn(rows: int, of_rows: int) -> str:
    """In words, which rows are on the sheet."""
    if rows < of_rows:
        return f"the first {rows} of {of_rows} rows"
    return f"all {rows} rows" if rows > 1 else "the one row"


def _fitted(pen: Pen, pixels: np.ndarray, rows: int) -> np.ndarray:
    """The image in a size in which so many of them can be looked at."""
    longest, largest = max(pixels.shape), _LARGEST if rows <= _MANY_ROWS else _SIDE
    if longest > largest:
        height, width = (max(1, round(side * largest / longest)) for side in pixels.shape[:2])
        return pen.shrunk(pixels, height, width)
    factor = max(1, _SIDE // longest)
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def _change(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> str:
    """What the images are, and how their size was changed, from each and what was drawn of it."""
    image, drawn = pairs[0]
    shapes = {image.shape for image, _ in pairs}
    if len(shapes) > 1:
        return f"{image.dtype} of {len(shapes)} sizes, fitted"
    what = f"{image.dtype} {'x'.join(map(str, image.shape))}"
    what += ", alpha left out" if image.shape[2] == 4 else ""
    was, now = image.shape[0], drawn.shape[0]
    if now > was:
        return f"{what}, enlarged {now // was} times"
    return f"{what}, shrunk to {now}x{drawn.shape[1]}" if now < was else what


def _caption(leaves: Mapping[str, Any], row: int, real: bool) -> tuple[str, ...]:
    """The row's number and what else there is one of for each row."""
    if not real:
        return f"row {row}", "padding"
    values = [
        f"{name}={_short(leaf[row])}"
        for name, leaf in leaves.items()
        if isinstance(leaf, np.ndarray) and leaf.ndim == 1 and name != VALID_MASK
        if not isinstance(leaf[row], np.ndarray)
    ]
    return f"row {row}", *map(visible, values)


def _short(value: Any) -> str:
    if isinstance(value, np.floating | float):
        return f"{value:.4g}"
    return str(value)[:_CAPTION_CHARACTERS]
