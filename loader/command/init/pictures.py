"""The operators for images: one size, and values around zero."""

from typing import Any

import numpy as np

from loader.command.init.chosen import Step
from loader.command.init.found import Table
from loader.command.init.leaves import Leaf
from loader.records.optional import optional

_DECODED = 16  # of the images that are looked at
_MOST_SIZE = 224  # as most models take images
_SMALL = 96  # images of one size up to this are left as they are


def steps(image: Leaf, count: int) -> tuple[list[Step], list[Table]]:
    """The operators to train with, and those to measure with."""
    if image.kind == "pixels":
        normalize = _normalize(image.name, list(image.rows), count)
        return [normalize], [normalize[0]]
    pictures = _decoded(image)
    shapes = {picture.shape[:2] for picture in pictures}
    normalize = _normalize(image.name, pictures, len(pictures))
    decode: Table = {"kind": "DecodeImage", "leaf": image.name}
    (height, width), *others = shapes
    if not others and max(height, width) <= _SMALL:
        decode["size"] = [height, width]
        words = f"all of {len(pictures)} images looked at are {height} x {width}"
        return [(decode, [words]), normalize], [decode, normalize[0]]
    sides = sorted(min(shape) for shape in shapes)
    size = min(_MOST_SIZE, max(8, sides[len(sides) // 2] // 8 * 8))
    words = f"{len(pictures)} images looked at have sides of {sides[0]} to {max(map(max, shapes))}"
    crop = {"kind": "RandomResizedCrop", "leaf": image.name, "size": size, "seed": 1}
    resize = {"kind": "Resize", "leaf": image.name, "size": size, "method": "area"}
    said = [
        f"{words}: a random part of each, at one size. For the whole, without chance: "
        f'kind = "Resize", without seed'
    ]
    return [(decode, []), (crop, said), normalize], [decode, resize, normalize[0]]


def _decoded(image: Leaf) -> list[np.ndarray]:
    cv2: Any = optional("cv2", "a data set of images", "images")
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    some = image.rows[:: max(1, len(image.rows) // _DECODED)]
    found = [cv2.imdecode(np.frombuffer(data, np.uint8), flags) for data in some]
    whole = [picture for picture in found if picture is not None]
    if not whole:
        raise ValueError(
            f"none of {len(found)} images in the leaf {image.name!r} can be decoded: they are cut "
            "off, or of a kind that OpenCV does not read; write them as JPEG or PNG"
        )
    return whole


def _normalize(name: str, pictures: list[np.ndarray], count: int) -> Step:
    """By the mean and the deviation of these pictures, for each channel."""
    channels = pictures[0].shape[2] if pictures[0].ndim == 3 else 1
    pixels = np.concatenate([np.reshape(p, (-1, channels)) for p in pictures]).astype(np.float64)
    mean, std = pixels.mean(0), np.maximum(pixels.std(0), 1e-3)
    table: Table = {"kind": "Normalize", "leaf": name}
    for key, values in (("mean", mean), ("std", std)):
        rounded = [round(float(value), 3) for value in values]
        table[key] = rounded if channels > 1 else rounded[0]
    return table, [f"of {count} images, for each channel; Normalize.fit looks at all of them"]
