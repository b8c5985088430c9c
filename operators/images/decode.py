"""From the bytes of an image file to its pixels."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from loader.records.errors import RowError
from loader.records.integers import checked_int
from loader.records.optional import optional
from loader.records.spec import Spec, is_text, leaf_spec
from loader.records.stacking import ragged_leaf
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.headers import asks_for_too_much, is_jpeg, stored_size
from operators.images.image_spec import ImageSize, two_sizes
from operators.leaves import get, name_of, put

_MOST_PIXELS = 100_000_000  # of one image: 300 MB in colour
_REDUCED = {8: 64, 4: 32, 2: 16, 1: 0}  # by how much, and cv2.IMREAD_REDUCED_GRAYSCALE_8, ...


@dataclasses.dataclass(frozen=True)
class _Decode:
    name: str
    channels: int
    size: tuple[int, int] | None
    most_pixels: int | None = None
    least: tuple[int, int] | None = None
    upright: bool = False
    thread_safe = True
    row_wise = True
    # Whole images are large: crop some before the next are decoded. With eight of 400 x 500, their
    # memory goes back to the system each time, and to take it again costs a tenth of the time.
    rows_at_once = 4

    def __call__(self, rows: Any) -> Any:
        cv2 = optional("cv2", "DecodeImage", "images")
        images = []
        for row, data in enumerate(get(rows, self.name)):
            image = self._decoded(cv2, row, data)
            if self.size is not None and image.shape[:2] != self.size:
                raise RowError(
                    row,
                    f"leaf {self.name!r} is an image of {image.shape[:2]} where size={self.size} "
                    "was promised: leave out size, and add Resize or a crop",
                )
            images.append(image.reshape(*image.shape[:2], self.channels))
        return put(rows, self.name, np.stack(images) if self.size else ragged_leaf(images))

    def _decoded(self, cv2: Any, row: int, data: Any) -> np.ndarray:
        if isinstance(data, np.ndarray) and data.dtype == np.uint8:
            data = data.tobytes()
        if not isinstance(data, bytes):
            raise RowError(
                row, f"leaf {self.name!r} is a {type(data).__name__}, not the bytes of an image"
            )
        stored = stored_size(data)
        # Before memory is taken: a few bytes can ask for gigabytes.
        self._refuse_large(row, *stored)
        flags = cv2.IMREAD_GRAYSCALE if self.channels == 1 else cv2.IMREAD_COLOR_RGB
        flags |= 0 if self.upright else cv2.IMREAD_IGNORE_ORIENTATION
        if self.least is not None and is_jpeg(data):
            flags |= _REDUCED[self._reduction(stored, self.least)]
        try:
            whole = data and not asks_for_too_much(data)
            image = cv2.imdecode(np.frombuffer(data, np.uint8), flags) if whole else None
        except cv2.error as error:
            if error.code == cv2.Error.StsNoMem:
                raise MemoryError(f"of an image of {len(data)} bytes: {error.err}") from error
            image = None
        if image is None:
            raise RowError(
                row,
                f"leaf {self.name!r} is no whole JPEG or PNG image ({len(data)} bytes, beginning "
                f"with {data[:8]!r}): write that record anew, or leave it out with a filter",
            )
        self._refuse_large(row, *image.shape[:2])  # of formats that were not looked into before
        return image

    def _reduction(self, stored: tuple[int, int], least: tuple[int, int]) -> int:
        """By how much a JPEG of this size can be reduced and still be large enough.

        One that is to be turned upright may be lying on its side, and fits both ways.
        """
        ways = [stored, stored[::-1]] if self.upright else [stored]
        pairs = [pair for way in ways for pair in zip(way, least, strict=True)]
        return next(by for by in _REDUCED if by == 1 or all(-(-n // by) >= m for n, m in pairs))

    def _refuse_large(self, row: int, height: int, width: int) -> None:
        most = self.most_pixels or _MOST_PIXELS
        if height * width > most:
            raise RowError(
                row,
                f"leaf {self.name!r} is an image of {height} x {width} pixels, which is more than "
                f"{most:,}: leave it out, or give DecodeImage(most_pixels={height * width})",
            )

    def output_spec(self, spec: Spec) -> Spec:
        leaf = get(spec, self.name)
        if not is_text(leaf.dtype) and leaf.dtype != np.uint8:
            raise ValueError(f"leaf {self.name!r} is {leaf.dtype}, not the bytes of an image")
        shape = (*(self.size or (None, None)), self.channels)
        return put(spec, self.name, leaf_spec(shape, np.dtype(np.uint8)))


class DecodeImage(OperatorModule):
    """The bytes of JPEG, PNG or WebP files to uint8 pixels (height, width, channels), by OpenCV.

    Images may differ in size: put `Resize` or a crop after it. With `size=(height, width)` all
    must have that size, and nothing needs to follow. Colours are red, green, blue. An image of more
    than `most_pixels` (100 million if not given) is refused, of these formats before it is decoded.

    `least=(height, width)` decodes a JPEG at 1/2, 1/4 or 1/8 of its size, as long as that is at
    least so large. With `upright`, images are turned as their EXIF orientation says; without, they
    have their pixels as they are stored.
    """

    def __init__(
        self,
        leaf: str = "image",
        *,
        channels: int = 3,
        size: Sequence[int] | None = None,
        most_pixels: int | None = None,
        least: ImageSize | None = None,
        upright: bool = False,
        **options: Unpack[OperatorOptions],
    ) -> None:
        optional("cv2", "DecodeImage", "images")  # missing, it is said now
        if channels not in (1, 3):
            raise ValueError(f"channels must be 1 (grey) or 3 (colours), got {channels!r}")
        if not isinstance(upright, bool):
            raise ValueError(f"upright must be True or False, got {upright!r}")
        height_width = None if size is None else two_sizes(size)
        most = None if most_pixels is None else checked_int("most_pixels", most_pixels, 1)
        smallest = None if least is None else two_sizes(least)
        transform = _Decode(name_of(leaf), channels, height_width, most, smallest, upright)
        super().__init__(transform, **options)
