"""The images of a batch on one PNG sheet: a tile for each row, with its number and its labels.

An image is (height, width, channels) with 1, 3 or 4 channels, or (height, width) if it is not too
narrow for one. uint8 that makes use of its range is drawn as it is; everything else is stretched
from its least to its most finite value in the batch, black to white, and a note says so. What is
not finite is magenta. A row that is padding is crossed out.
"""

import dataclasses
import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from loader.records.optional import optional
from loader.records.whole_file import write_whole
from loader.records.words import visible

MOST_ROWS, _FEW_ROWS = 64, 12
_SIDES = (2.5, 1.5)  # inches of a tile: of few rows, of many
_WIDTH, _LEAST_WIDTH, _CHARACTERS = 12, 6, 16  # inches of the sheet, and characters to the inch
_TEXT: dict[str, Any] = {"fontsize": 8, "parse_math": False}
_MOST_CHARACTERS = 40  # of a label
_CHANNELS, _LEAST_SIDE, _MOST_NARROW = (1, 3, 4), 5, 4  # what is smaller or longer is a matrix
_IN_USE = 127  # uint8 that never goes above it is stretched
_MAGENTA = (255, 0, 255)
_BLANK = np.zeros((8, 8, 1), np.uint8)


@dataclasses.dataclass(frozen=True)
class Sheet:
    """A sheet that was drawn: the first `rows` of `of_rows` rows; `notes` say how, by leaf."""

    path: Path
    rows: int
    of_rows: int
    notes: dict[str, str]
    figure: Any  # of matplotlib, with an axes for each image

    def to_json(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in ("rows", "of_rows", "notes")}
        return {"path": str(self.path), **named}


def draw_sheet(
    leaves: Mapping[str, Any], valid: np.ndarray, path: Path, title: str
) -> Sheet | None:
    """Draw all leaves that look like images, with single numbers and texts as captions.

    None if there are none, and then nothing is written.
    """
    found = {name: images for name, leaf in leaves.items() if (images := images_of(leaf))}
    if not found:
        return None
    rows, notes, drawn = min(len(valid), MOST_ROWS), {}, []
    for name, images in found.items():
        real = [image for image, there in zip(images, valid, strict=True) if there] or images
        black, white, finite = _tones(real)
        shapes = sorted({"x".join(map(str, image.shape)) for image in real})
        what = f"{real[0].dtype} {shapes[0] if len(shapes) == 1 else f'of {len(shapes)} sizes'}"
        tones = f"{black:.4g} is black, {white:.4g} white" + ", magenta not finite" * (not finite)
        notes[name] = f"{what}, {tones}"
        drawn.append([_pixels(image, black, white) for image in images[:rows]])
    head = [title, *(f"{visible(name)}: {note}" for name, note in notes.items())]
    captions = [_caption(leaves, row, bool(valid[row])) for row in range(rows)]
    figure = _figure(head, captions, list(zip(*drawn, strict=True)), valid)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, file.getvalue())
    return Sheet(path, rows, len(valid), notes, figure)


def _figure(head: list[str], captions: list[str], tiles: list[Any], valid: np.ndarray) -> Any:
    """The sheet: a grid in which the images of a row are side by side, under its caption."""
    optional("matplotlib", "drawing the images of a batch", "peek")
    from matplotlib.figure import Figure  # without pyplot, which keeps figures and a backend

    side, leaves = _SIDES[len(tiles) > _FEW_ROWS], len(tiles[0])
    across = max(1, min(len(tiles), int(_WIDTH / (side * leaves))))
    lines = math.ceil(len(tiles) / across)
    width = max(_LEAST_WIDTH, across * leaves * side)
    figure = Figure(figsize=(width, 1 + lines * side), layout="constrained")
    wrapped = [textwrap.fill(line, int(width * _CHARACTERS)) for line in head]
    figure.suptitle("\n".join(wrapped), **_TEXT)
    grid = figure.subplots(lines, across * leaves, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for row, (images, caption) in enumerate(zip(tiles, captions, strict=True)):
        first = row % across * leaves
        for axes, image in zip(grid[row // across, first:], images, strict=False):
            axes.imshow(image, alpha=1.0 if valid[row] else 0.1)
            if not valid[row]:
                for ends in ((0, 1), (1, 0)):
                    axes.plot((0, 1), ends, "crimson", transform=axes.transAxes)
        words = textwrap.wrap(caption, int(side * _CHARACTERS), max_lines=3, placeholder=" …")
        grid[row // across, first].set_title("\n".join(words), **_TEXT)
    return figure


def images_of(leaf: Any) -> list[np.ndarray] | None:
    """An image (height, width, channels) for each row, blank where there is none; None of none."""
    if not isinstance(leaf, np.ndarray) or leaf.ndim == 0:
        return None
    if all(row is None for row in leaf):
        return None
    images = [_BLANK if row is None else _image(row) for row in leaf]
    found = [image for image in images if image is not None]
    return found if len(found) == len(images) else None


def _image(row: Any) -> np.ndarray | None:
    if not isinstance(row, np.ndarray) or min(row.shape, default=0) < 1 or row.ndim > 3:
        return None
    if not any(jnp.issubdtype(row.dtype, kind) for kind in (np.bool_, np.integer, np.floating)):
        return None
    least, most = min(row.shape), max(row.shape)
    if row.ndim == 2 and least >= _LEAST_SIDE and most <= _MOST_NARROW * least:
        return row[:, :, None]
    if row.ndim == 3 and row.shape[2] in _CHANNELS and min(row.shape[:2]) > 1:
        return row
    return None


def _tones(images: Sequence[np.ndarray]) -> tuple[float, float, bool]:
    """Which value of these images is black, which is white, and whether all are finite."""
    values = np.concatenate([image.ravel().astype(np.float64) for image in images])
    known = values[np.isfinite(values)]
    least, most = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if all(image.dtype == np.uint8 for image in images) and most > _IN_USE:
        least, most = 0.0, 255.0
    if least == most:
        least, most = min(least, 0.0), max(most, 1.0)
    return least, most, known.size == values.size


def _pixels(image: np.ndarray, black: float, white: float) -> np.ndarray:
    """The image as uint8 (height, width, 3), red, green, blue. An alpha channel is left out."""
    values = image[:, :, :3].astype(np.float64)
    finite, span = np.isfinite(values), white - black or 1.0
    values = np.where(finite, values / span - black / span, 0)  # so it cannot overflow
    pixels = (values.clip(0, 1) * 255).round().astype(np.uint8)
    pixels = np.broadcast_to(pixels, (*image.shape[:2], 3)).copy()
    pixels[~finite.all(axis=2)] = _MAGENTA
    return pixels


def _caption(leaves: Mapping[str, Any], row: int, real: bool) -> str:
    """The row's number and what else there is one of for each row."""
    if not real:
        return f"row {row} · padding"
    words = [f"row {row}"]
    for name, leaf in leaves.items():
        if isinstance(leaf, np.ndarray) and leaf.ndim == 1 and np.ndim(value := leaf[row]) == 0:
            text = f"{value:.4g}" if isinstance(value, np.floating) else str(value)
            words.append(visible(f"{name}={text[:_MOST_CHARACTERS]}"))
    return " · ".join(words)
