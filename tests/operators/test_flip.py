"""`RandomFlip`: pixels of every dtype and layout are moved, and no bit of them changes."""

from typing import Any

import numpy as np
import pytest

from loader.records.stacking import is_ragged, ragged_leaf
from operators import RandomFlip

DIRECTIONS: tuple[Any, ...] = ("horizontal", "vertical")
DTYPES = [*"?bBhHiIqQefdFD", ">i4", ">f8"]


def some_images(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Any bits, also those of NaNs; of bools their own."""
    rng = np.random.default_rng(3)
    if dtype == "?":
        return rng.random(shape) < 0.5
    bits = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    return bits.view(dtype)[..., 0]


def mirrored(image: np.ndarray, direction: str) -> np.ndarray:
    return image[:, ::-1] if direction == "horizontal" else image[::-1]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_of_a_pixel_moves_as_it_is(dtype: str, direction: Any):
    flip = RandomFlip("x", direction=direction, probability=1, seed=0)
    for shape in ((3, 5, 4, 3), (2, 1, 1, 1), (2, 4, 7, 5), (2, 3, 3, 130), (2, 3, 2, 600)):
        images = some_images(dtype, shape)
        for given in (images, ragged_leaf(list(images))):
            made = flip({"x": given})["x"]
            assert is_ragged(made) == is_ragged(given)
            for got, image in zip(made, images, strict=True):
                assert got.dtype == image.dtype
                assert got.shape == image.shape
                assert got.tobytes() == mirrored(image, direction).tobytes()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_images_in_any_memory_are_mirrored_and_left_as_they_were(direction: Any):
    whole = some_images("B", (2, 30, 40, 4))
    layouts = {
        "a window": whole[:, 3:20, 5:25],
        "upside down": whole[:, ::-1],
        "backwards": whole[:, :, ::-1],
        "channels first": np.moveaxis(whole, 1, 3),
        "every second": whole[:, ::2, 1::3],
        "some channels": whole[..., 1:3],
        "read only": np.frombuffer(whole.tobytes(), np.uint8).reshape(whole.shape),
    }
    flip = RandomFlip("x", direction=direction, probability=1, seed=0)
    for name, images in layouts.items():
        before = images.tobytes()
        for given in (images, ragged_leaf(list(images))):
            for got, image in zip(flip({"x": given})["x"], images, strict=True):
                np.testing.assert_array_equal(got, mirrored(image, direction), err_msg=name)
        assert images.tobytes() == before, name


def test_the_rows_are_in_memory_that_jax_takes_without_a_copy():
    images = some_images("B", (3, 64, 64, 3))
    made = RandomFlip("x", seed=1)({"x": images})["x"]
    assert made.ctypes.data % 64 == 0
