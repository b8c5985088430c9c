"""How tiles are laid out on a sheet: a head, then tiles in lines, each with its caption below."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from loader.command.peek.pen import FAINT, INK, LINE_HEIGHT, PAPER, RED, Pen

_WIDTH = 1160  # pixels: of all tiles of a line, unless one is wider
_LEAST_WIDTH = 100  # of a tile, so that its caption can be read
_LEAST_SHEET = 560
_GAP, _BESIDE, _MARGIN, _ABOVE_CAPTION = 16, 3, 20, 3
_HEAD_LINES, _CAPTION_LINES = 3, 3
Box = tuple[int, int, int, int]  # left, top, width, height


@dataclasses.dataclass(frozen=True)
class Tile:
    """What is drawn of one row: images side by side, and the parts of its caption."""

    images: tuple[np.ndarray, ...]
    caption: tuple[str, ...]
    real: bool  # not padding

    @property
    def width(self) -> int:
        return sum(image.shape[1] + _BESIDE for image in self.images) - _BESIDE

    @property
    def height(self) -> int:
        return max(image.shape[0] for image in self.images)


def laid_out(
    pen: Pen, head: Sequence[str], tiles: Sequence[Tile]
) -> tuple[np.ndarray, tuple[tuple[Box, ...], ...]]:
    """The sheet, and where on it the images of each tile are."""
    width = max(_LEAST_WIDTH, *(tile.width for tile in tiles))
    across = max(1, min(len(tiles), (_WIDTH + _GAP) // (width + _GAP)))
    whole = max(_LEAST_SHEET, across * (width + _GAP) - _GAP + 2 * _MARGIN)
    text_width = whole - 2 * _MARGIN
    lines = [
        line for text in head for line in pen.wrapped(text.split(), " ", text_width, _HEAD_LINES)
    ]
    captions = [pen.wrapped(tile.caption, " · ", width, _CAPTION_LINES) for tile in tiles]
    text_height = LINE_HEIGHT * max(map(len, captions)) + _ABOVE_CAPTION
    height = max(tile.height for tile in tiles) + text_height + _GAP
    first = _MARGIN + LINE_HEIGHT * len(lines) + _GAP // 2
    down = -(-len(tiles) // across)
    canvas = np.full((first + down * height + _MARGIN - _GAP, whole, 3), PAPER, np.uint8)
    for number, line in enumerate(lines):
        colour = FAINT if number else INK
        pen.write(canvas, line, _MARGIN, _MARGIN // 2 + number * LINE_HEIGHT, colour)
    boxes = []
    for number, (tile, caption) in enumerate(zip(tiles, captions, strict=True)):
        left = _MARGIN + number % across * (width + _GAP)
        top = first + number // across * height
        boxes.append(_draw_images(pen, canvas, tile, left, top))
        for place, line in enumerate(caption):
            below = top + tile.height + _ABOVE_CAPTION + place * LINE_HEIGHT
            pen.write(canvas, line, left, below, INK if tile.real else RED)
    return canvas, tuple(boxes)


def _draw_images(pen: Pen, canvas: np.ndarray, tile: Tile, left: int, top: int) -> tuple[Box, ...]:
    boxes = []
    for image in tile.images:
        height, width = image.shape[:2]
        shown = image if tile.real else pen.crossed_out(image)
        canvas[top : top + height, left : left + width] = shown
        pen.edge(canvas, left, top, width, height)
        boxes.append((left, top, width, height))
        left += width + _BESIDE
    return tuple(boxes)
