"""The operations of RandAugment and TrivialAugment on grey images of 3 x 3, in plain numpy."""

import numpy as np

from tests.attack.plain_operators import Record, enhanced

_NAMES = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness",
    "color", "contrast", "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
_ONE = np.float32(1)


def rand_augmented(record: Record, draws: np.ndarray) -> Record:
    """Two operations, each at 9 of 30."""
    image = record["image"][:3, :3]
    for name, sign in ((draws[0], draws[1]), (draws[2], draws[3])):
        image = _changed(image, name, sign, 9, (0.3, 150 / 331 * 3, 30, 0.9, 4))
    return {**record, "image": image}


def trivially_augmented(record: Record, draws: np.ndarray) -> Record:
    """One operation, at any of 31 sizes."""
    size = _below(draws[1], 31)
    image = _changed(record["image"][:3, :3], draws[0], draws[2], size, (0.99, 32, 135, 0.99, 6))
    return {**record, "image": image}


def _below(draw: np.float32, limit: int) -> int:
    return min(int(draw * np.float32(limit)), limit - 1)


def _changed(
    image: np.ndarray, name: np.float32, sign: np.float32, size: int, most: tuple[float, ...]
) -> np.ndarray:
    """By the operation and the sign of these draws, at so many parts of 30 of the most."""
    operation, part = _NAMES[_below(name, 14)], size / 30
    signed = -part if sign < 0.5 else part
    shear, shift, degrees, factor, bits = most
    values = image.astype(int)
    if operation in _NAMES[1:6]:
        return _moved(image, operation, signed, shear, shift, degrees)
    if operation == "brightness":
        return enhanced(image, np.float32(1 + signed * factor), _ONE)
    if operation == "contrast":
        return enhanced(image, _ONE, np.float32(1 + signed * factor))
    if operation == "sharpness":
        share = round((1 + signed * factor) * 1024) / 1024
        smooth = np.rint((values.sum() + 4 * values[1, 1]) / 13)
        sharp = np.rint(values[1, 1] * share + smooth * (1 - share)).clip(0, 255)
        values[1, 1] = sharp
    elif operation == "posterize":
        values -= values % 2 ** round(part * bits)
    elif operation == "solarize":
        values = np.where(values >= round(255 * (1 - part), 6), 255 - values, values)
    elif operation == "autocontrast" and values.max() > values.min():
        scale = 255 / int(values.max() - values.min())
        values = (values * scale - int(values.min()) * scale).clip(0, 255)
    # Colour is nothing to grey images, and nine pixels are too few to be spread.
    return values.astype(np.uint8)


def _moved(
    image: np.ndarray, operation: str, signed: float, shear: float, shift: float, degrees: float
) -> np.ndarray:
    """Each pixel from the closest to where it comes from; 0 from outside."""
    moved, turn = np.zeros_like(image), np.radians(signed * degrees)
    for y, x in np.ndindex(3, 3):
        from_x, from_y = {
            "shear_x": (x + signed * shear * y, y),
            "shear_y": (x, y + signed * shear * x),
            "translate_x": (x + int(signed * shift), y),
            "translate_y": (x, y + int(signed * shift)),
            "rotate": (
                1 + np.cos(turn) * (x - 1) + np.sin(turn) * (y - 1),
                1 - np.sin(turn) * (x - 1) + np.cos(turn) * (y - 1),
            ),
        }[operation]
        place = round(from_y), round(from_x)
        if all(0 <= number <= 2 for number in place):
            moved[y, x] = image[place]
    return moved
