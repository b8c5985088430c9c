"""The images of a batch on one PNG sheet: a tile for each row, with its number and its labels.

An image is (height, width, channels) with 1, 3 or 4 channels, or (channels, height, width), or
(height, width) if it is not too narrow for one. uint8 that makes use of its range is drawn as it
is; everything else is stretched from its least to its most finite value in the batch, black to
white, and a note says so. What is not finite is magenta. A row that is padding is crossed out.
"""

import dataclasses
import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from loader.command.peek.texts import visible
from loader.records.optional import optional
from loader.records.spec import VALID_MASK
from loader.records.whole_file import write_whole

MOST_ROWS = 64
_FEW_ROWS = 12
_SIDES = (256, 144)  # pixels of a tile: of few rows, of many
_WIDTH = 1160  # pixels of all tiles of a line
_LINE, _CHARACTER = 15, 6.5  # pixels: the height of a line of text, the width of a character
_CAPTION_LINES, _CAPTION_CHARACTERS = 3, 40
_CHANNELS = (1, 3, 4)
_LEAST_SIDE = 5  # of an image without channels: what is smaller is a matrix
_MOST_NARROW = 4
_IN_USE = 127  # uint8 that never goes above it is stretched
_MAGENTA = (255, 0, 255)
_BLANK = np.zeros((8, 8, 1), np.uint8)


@dataclasses.dataclass(frozen=True)
class Sheet:
    """A sheet that was drawn: the first `rows` of `of_rows` rows; `notes` say how, by leaf.

    `boxes` are the places (left, top, width, height) of the images on it, in pixels: for each row,
    one for each leaf of `notes`.
    """

    path: Path
    rows: int
    of_rows: int
    notes: dict[str, str]
    boxes: tuple[tuple[tuple[int, int, int, int], ...], ...]

    def to_json(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in ("rows", "of_rows", "notes")}
        return {"path": str(self.path), **named}

    @property
    def which(self) -> str:
        """In words, which rows are on the sheet."""
        return _which(self.rows, self.of_rows)


def draw_sheet(
    leaves: Mapping[str, Any], valid: np.ndarray, path: Path, title: str
) -> Sheet | None:
    """Draw all leaves that look like images; None if there are none, and then nothing is written.

    `leaves` have a row for each entry of `valid`. Those of one number or text a row are captions.
    """
    found = {name: images for name, leaf in leaves.items() if (images := images_of(leaf))}
    if not found:
        return None
    rows, notes = min(len(valid), MOST_ROWS), {}
    drawn: list[list[np.ndarray]] = []
    for name, images in found.items():
        real = [image for image, there in zip(images, valid, strict=True) if there]
        black, white, finite = tones_of(real)
        notes[name] = f"{_what(real or images)}, {black:.4g} is black, {white:.4g} white"
        notes[name] += "" if finite else ", magenta not finite"
        drawn.append([_pixels(image, black, white) for image in images[:rows]])
    head = [f"{title} · {_which(rows, len(valid))}"]
    head += [f"{visible(name)}: {note}" for name, note in notes.items()]
    captions = [_caption(leaves, row, bool(valid[row])) for row in range(rows)]
    png, boxes = _png(head, captions, list(zip(*drawn, strict=True)), valid)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, png)
    return Sheet(path, rows, len(valid), notes, boxes)


def _png(
    head: Sequence[str], captions: Sequence[str], tiles: Sequence[Any], valid: np.ndarray
) -> tuple[bytes, Any]:
    """The sheet as a file, and where on it the images of each tile are."""
    optional("matplotlib", "drawing the images of a batch", "peek")
    from matplotlib.figure import Figure  # without pyplot, which keeps figures and a backend

    side, leaves = _SIDES[len(tiles) > _FEW_ROWS], len(tiles[0])
    across = max(1, min(len(tiles), _WIDTH // (side * leaves)))
    down = -(-len(tiles) // across)
    width = max(560, across * leaves * side)
    head = [line for text in head for line in textwrap.wrap(text, int(width / _CHARACTER))]
    above, gap = (len(head) + 1) * _LINE, (_CAPTION_LINES + 1) * _LINE
    height = above + down * (side + gap)
    figure = Figure(figsize=(width / 100, height / 100), dpi=100)
    style: dict[str, Any] = {"fontsize": 8, "parse_math": False, "va": "top"}
    for number, line in enumerate(head):
        colour = "dimgrey" if number else "black"
        figure.text(8 / width, 1 - (number + 0.5) * _LINE / height, line, color=colour, **style)
    boxes = []
    for number, (images, caption) in enumerate(zip(tiles, captions, strict=True)):
        top = above + number // across * (side + gap)
        left = number % across * leaves * side + 8
        colour = "black" if valid[number] else "crimson"
        figure.text(left / width, 1 - top / height, _wrapped(caption, side * leaves),
                    color=colour, **style)  # fmt: skip
        own = []
        for place, image in enumerate(images):
            box = (left + place * side, top + gap - _LINE, side - 16, side - 16)
            own.append(_draw(figure, image, box, bool(valid[number])))
        boxes.append(tuple(own))
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue(), tuple(boxes)


def _draw(figure: Any, image: np.ndarray, box: Any, real: bool) -> Any:
    """An image in the upper left corner of a box, as large as fits; gives where it is."""
    left, top, *most = box
    scale = min(most[0] / image.shape[1], most[1] / image.shape[0])
    scale = max(1, int(scale)) if scale >= 1 else scale  # every value a square of pixels
    width, height = round(image.shape[1] * scale), round(image.shape[0] * scale)
    whole_width, whole_height = (figure.get_size_inches() * figure.dpi).round()
    place = (left / whole_width, 1 - (top + height) / whole_height)
    axes = figure.add_axes((*place, width / whole_width, height / whole_height))
    axes.set(xticks=[], yticks=[])
    axes.imshow(image, aspect="auto", alpha=1.0 if real else 0.1)
    if not real:
        for ends in ((0, 1), (1, 0)):
            axes.plot((0, 1), ends, color="crimson", transform=axes.transAxes)
    return left, top, width, height


def _which(rows: int, of_rows: int) -> str:
    if rows < of_rows:
        return f"the first {rows} of {of_rows} rows"
    return f"all {rows} rows" if rows > 1 else "the one row"


def images_of(leaf: Any) -> list[np.ndarray] | None:
    """An image (height, width, channels) for each row, blank where there is none; None of none."""
    if not isinstance(leaf, np.ndarray) or leaf.ndim == 0:
        return None
    if leaf.ndim > 1 and leaf.dtype == object:
        return None
    images = [_BLANK if row is None else _image(row) for row in leaf]
    found = [image for image in images if image is not None]
    return found if len(found) == len(images) and any(row is not None for row in leaf) else None


def _image(row: Any) -> np.ndarray | None:
    if not isinstance(row, np.ndarray) or min(row.shape, default=0) < 1:
        return None
    kinds = (np.bool_, np.integer, np.floating)
    if not any(jnp.issubdtype(row.dtype, kind) for kind in kinds):
        return None
    if row.ndim == 3 and row.shape[2] in _CHANNELS and min(row.shape[:2]) > 1:
        return row
    if row.ndim == 3 and row.shape[0] in _CHANNELS and min(row.shape[1:]) >= _LEAST_SIDE:
        return np.moveaxis(row, 0, 2)
    sides = sorted(row.shape)
    if row.ndim == 2 and sides[0] >= _LEAST_SIDE and sides[1] <= _MOST_NARROW * sides[0]:
        return row[:, :, None]
    return None


def tones_of(images: Sequence[np.ndarray]) -> tuple[float, float, bool]:
    """Which value of these images is black, which is white, and whether all are finite."""
    values = [image.astype(np.float64) for image in images]
    known = [own[np.isfinite(own)] for own in values]
    finite = all(a.size == b.size for a, b in zip(values, known, strict=True))
    least = min((float(own.min()) for own in known if own.size), default=0.0)
    most = max((float(own.max()) for own in known if own.size), default=1.0)
    if all(image.dtype == np.uint8 for image in images) and most > _IN_USE:
        return 0.0, 255.0, finite
    return (least, most, finite) if least < most else (min(least, 0.0), max(most, 1.0), finite)


def _pixels(image: np.ndarray, black: float, white: float) -> np.ndarray:
    """The image as uint8 (height, width, 3), red, green, blue. An alpha channel is left out."""
    values = image[:, :, :3].astype(np.float64)
    finite = np.isfinite(values)
    span = white - black or 1.0
    values = np.where(finite, values / span - black / span, 0)  # so it cannot overflow
    pixels = (values.clip(0, 1) * 255).round().astype(np.uint8)
    pixels = np.broadcast_to(pixels, (*image.shape[:2], 3)).copy()
    pixels[~finite.all(axis=2)] = _MAGENTA
    return pixels


def _what(images: Sequence[np.ndarray]) -> str:
    """What the images are."""
    image, shapes = images[0], {image.shape for image in images}
    if len(shapes) > 1:
        return f"{image.dtype} of {len(shapes)} sizes"
    what = f"{image.dtype} {'x'.join(map(str, image.shape))}"
    return f"{what}, alpha left out" if image.shape[2] == 4 else what


def _caption(leaves: Mapping[str, Any], row: int, real: bool) -> str:
    """The row's number and what else there is one of for each row."""
    if not real:
        return f"row {row} · padding"
    values = [
        f"{name}={_short(leaf[row])}"
        for name, leaf in leaves.items()
        if isinstance(leaf, np.ndarray) and leaf.ndim == 1 and name != VALID_MASK
        if not isinstance(leaf[row], np.ndarray)
    ]
    return " · ".join((f"row {row}", *map(visible, values)))


def _short(value: Any) -> str:
    if isinstance(value, np.floating | float):
        return f"{value:.4g}"
    return str(value)[:_CAPTION_CHARACTERS]


def _wrapped(text: str, width: float) -> str:
    lines = textwrap.wrap(text, int(width / _CHARACTER), max_lines=_CAPTION_LINES, placeholder=" …")
    return "\n".join(lines)
