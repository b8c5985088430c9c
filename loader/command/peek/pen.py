"""What pictures are drawn with: OpenCV and its font. Colours are red, green, blue."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

FONT_SIZE, LINE_HEIGHT = 14, 18  # pixels
_WEIGHT = 400  # regular
PAPER, EDGE = (255, 255, 255), (205, 205, 210)
INK, FAINT, RED = (35, 35, 40), (100, 100, 108), (200, 30, 45)
_PADDING = 235  # the grey of rows that are padding
_UNBOUNDED = (1 << 16, 1 << 16)  # texts are measured as on a canvas that ends nowhere


@dataclasses.dataclass(frozen=True)
class Pen:
    """Draws on arrays (height, width, 3) of uint8, in place."""

    cv2: Any
    font: Any

    @classmethod
    def made(cls) -> "Pen":
        try:
            import cv2
        except ImportError as error:
            raise ImportError(
                "drawing the images of a batch needs the package cv2, which is not installed: "
                "pip install 'gristmill[images]'"
            ) from error
        return cls(cv2, cv2.FontFace("sans"))

    def width(self, text: str) -> int:
        measured = self.cv2.getTextSize(
            _UNBOUNDED, _spaced(text), (0, 0), self.font, FONT_SIZE, _WEIGHT
        )
        return measured[0] + measured[2]

    def wrapped(self, parts: Iterable[str], between: str, width: int, most: int) -> tuple[str, ...]:
        """The parts in at most so many lines of this width; an ellipsis where something is cut."""
        lines: list[str] = []
        for part in parts:
            longer = f"{lines[-1]}{between}{part}" if lines else part
            if lines and self.width(longer) <= width:
                lines[-1] = longer
            elif len(lines) < most:
                lines.append(self._cut(part, width))
            else:
                lines[-1] = self._cut(f"{longer}…", width)
                break
        return tuple(lines)

    def _cut(self, text: str, width: int) -> str:
        if self.width(text) <= width:
            return text
        while text and self.width(f"{text}…") > width:
            text = text[:-1]
        return f"{text}…"

    def write(self, canvas: np.ndarray, text: str, left: int, top: int, colour: Any) -> None:
        """One line of text, in a line's height from `top`."""
        at = (left, top + FONT_SIZE)
        self.cv2.putText(canvas, _spaced(text), at, colour, self.font, FONT_SIZE, _WEIGHT)

    def shrunk(self, pixels: np.ndarray, height: int, width: int) -> np.ndarray:
        return self.cv2.resize(pixels, (width, height), interpolation=self.cv2.INTER_AREA)

    def edge(self, canvas: np.ndarray, left: int, top: int, width: int, height: int) -> None:
        """A thin line around a box."""
        corner = (left + width, top + height)
        self.cv2.rectangle(canvas, (left - 1, top - 1), corner, EDGE, 1)

    def crossed_out(self, pixels: np.ndarray) -> np.ndarray:
        """The image as that of a row which is padding."""
        faint = (pixels * 0.1 + _PADDING * 0.9).astype(np.uint8)
        bottom, right = pixels.shape[0] - 1, pixels.shape[1] - 1
        for start, end in (((0, 0), (right, bottom)), ((0, bottom), (right, 0))):
            self.cv2.line(faint, start, end, RED, 2, self.cv2.LINE_AA)
        return faint

    def png(self, canvas: np.ndarray) -> bytes:
        done, data = self.cv2.imencode(".png", self.cv2.cvtColor(canvas, self.cv2.COLOR_RGB2BGR))
        assert done, f"OpenCV encodes no PNG of {canvas.shape}"
        return data.tobytes()


def _spaced(text: str) -> str:
    """The text with words that stand apart: the font's space is a narrow one."""
    return text.replace(" ", "  ")
