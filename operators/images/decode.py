"""From the bytes of an image file to its pixels."""

import dataclasses
import struct
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from loader.records.errors import RowError
from loader.records.integers import checked_int
from loader.records.optional import optional
from loader.records.spec import Spec, is_text, leaf_spec
from loader.records.stacking import ragged_leaf
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.image_spec import two_sizes
from operators.leaves import get, name_of, put

_MOST_PIXELS = 100_000_000  # of one image: 300 MB in colour


@dataclasses.dataclass(frozen=True)
class _Decode:
    name: str
    channels: int
    size: tuple[int, int] | None
    most_pixels: int | None = None
    row_wise = True
    rows_at_once = 8  # whole images are large: crop some before the next are decoded

    def __call__(self, rows: Any) -> Any:
        cv2 = optional("cv2", "DecodeImage", "images")
        # EXIF orientation is not looked at: pixels as they are stored, as most decoders give them.
        flags = cv2.IMREAD_IGNORE_ORIENTATION
        flags |= cv2.IMREAD_GRAYSCALE if self.channels == 1 else cv2.IMREAD_COLOR_RGB
        images = []
        for row, data in enumerate(get(rows, self.name)):
            image = self._decoded(cv2, row, data, flags)
            if self.size is not None and image.shape[:2] != self.size:
                raise RowError(
                    row,
                    f"leaf {self.name!r} is an image of {image.shape[:2]} where size={self.size} "
                    "was promised: leave out size, and add Resize or a crop",
                )
            images.append(image.reshape(*image.shape[:2], self.channels))
        return put(rows, self.name, np.stack(images) if self.size else ragged_leaf(images))

    def _decoded(self, cv2: Any, row: int, data: Any, flags: int) -> np.ndarray:
        if isinstance(data, np.ndarray) and data.dtype == np.uint8:
            data = data.tobytes()
        if not isinstance(data, bytes):
            raise RowError(
                row, f"leaf {self.name!r} is a {type(data).__name__}, not the bytes of an image"
            )
        # Before memory is taken: a few bytes can ask for gigabytes.
        self._refuse_large(row, *_stored_size(data))
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags) if data else None
        if image is None:
            raise RowError(
                row,
                f"leaf {self.name!r} is no whole JPEG or PNG image ({len(data)} bytes, beginning "
                f"with {data[:8]!r}): write that record anew, or leave it out with a filter",
            )
        self._refuse_large(row, *image.shape[:2])  # of formats that were not looked into before
        return image

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


def _stored_size(data: bytes) -> tuple[int, int]:
    """Height and width as the header of a JPEG or PNG file says; (0, 0) if it does not say."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
        return height, width
    place = 2 if data[:2] == b"\xff\xd8" else len(data)
    while place + 9 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame header
            return struct.unpack_from(">HH", data, place + 5)
        if marker in (0x01, 0xFF) or 0xD0 <= marker <= 0xD7:  # these have no length
            place += 1 if marker == 0xFF else 2
        else:
            place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return 0, 0


class DecodeImage(OperatorModule):
    """JPEG or PNG bytes to uint8 pixels (height, width, channels), by OpenCV, without the GIL.

    Images may differ in size: put `Resize` or a crop after it. With `size=(height, width)` all
    must have that size, and nothing needs to follow. Colours are red, green, blue. An image of more
    than `most_pixels` (100 million if not given) is refused, if it is JPEG or PNG before it is
    decoded.
    """

    def __init__(
        self,
        leaf: str = "image",
        *,
        channels: int = 3,
        size: Sequence[int] | None = None,
        most_pixels: int | None = None,
        **options: Unpack[OperatorOptions],
    ) -> None:
        optional("cv2", "DecodeImage", "images")  # missing, it is said now
        if channels not in (1, 3):
            raise ValueError(f"channels must be 1 (grey) or 3 (colours), got {channels!r}")
        height_width = None if size is None else two_sizes(size)
        most = None if most_pixels is None else checked_int("most_pixels", most_pixels, 1)
        super().__init__(_Decode(name_of(leaf), channels, height_width, most), **options)
