"""RandAugment and TrivialAugment: the operations, ranges and chances that were published."""

from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from loader import DataLoader, RowError
from operators import RandAugment, TrivialAugment

OPERATIONS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness",
    "color", "contrast", "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
ROWS, COLUMNS = (np.arange(n, dtype=np.uint8) for n in (120, 150))
# Each pixel says where it is, counted from 1: 0 is what comes from outside.
PLACES = np.stack(np.broadcast_arrays(ROWS[:, None] + 1, COLUMNS[None] + 1, np.uint8(9)), -1)


def picture(seed: int = 0, height: int = 23, width: int = 31) -> np.ndarray:
    rng = np.random.default_rng(seed)
    slope = np.linspace(30, 220, height * width).reshape(height, width, 1)
    return (slope * rng.uniform(0.4, 1, 3) + rng.integers(0, 25, (height, width, 3))).astype(
        np.uint8
    )


def trivial(
    name: str, images: np.ndarray, bin_: int, sign: int = 1, *, leaf: str = "x", **more: Any
) -> Any:
    """TrivialAugment, with the draws that choose this operation, bin and sign."""
    draws = [(OPERATIONS.index(name) + 0.5) / 14, (bin_ + 0.5) / 31, (sign + 2) / 4]
    operator = TrivialAugment([leaf, *more], seed=0, method="nearest")
    rows = {leaf: images[None], **{key: value[None] for key, value in more.items()}}
    out = operator.transform(rows, np.array([draws], np.float32))
    return {key: value[0] for key, value in out.items()} if more else out[leaf][0]


def rand(name: str, images: np.ndarray, sign: int = 1, **settings: Any) -> np.ndarray:
    """RandAugment of one operation."""
    draws = [(OPERATIONS.index(name) + 0.5) / 14, (sign + 2) / 4]
    operator = RandAugment("x", num_ops=1, seed=0, method="nearest", **settings)
    return operator.transform({"x": images[None]}, np.array([draws], np.float32))["x"][0]


def test_tables_are_those_of_pillow():
    images = [picture(n) for n in range(3)]
    images += [np.full((5, 6, 3), 77, np.uint8), images[0][:1, :1], images[1] // 64 * np.uint8(64)]
    for image in images:
        pillow = Image.fromarray(image)
        wanted: dict[tuple[str, int], Any] = {
            ("identity", 9): image,
            ("autocontrast", 9): ImageOps.autocontrast(pillow),
            ("equalize", 9): ImageOps.equalize(pillow),
            ("posterize", 0): image,
            ("posterize", 12): ImageOps.posterize(pillow, 6),  # 8 - round(12 / 30 * 6)
            ("posterize", 30): ImageOps.posterize(pillow, 2),
            ("solarize", 0): ImageOps.solarize(pillow, 255),
            ("solarize", 10): ImageOps.solarize(pillow, 170),
            ("solarize", 30): ImageOps.invert(pillow),
        }
        for (name, bin_), want in wanted.items():
            assert np.array_equal(trivial(name, image, bin_), want), (name, bin_)
            assert np.array_equal(trivial(name, image, bin_, -1), want), name  # has no sign
        grey = image[..., :1]
        for name in ("autocontrast", "equalize", "posterize", "solarize"):
            whole = trivial(name, np.repeat(grey, 3, -1), 20)
            assert np.array_equal(np.repeat(trivial(name, grey, 20), 3, -1), whole)
    for settings, bits in (({}, 7), ({"magnitude": 30}, 4)):
        fewer = np.asarray(ImageOps.posterize(Image.fromarray(images[0]), bits))
        assert np.array_equal(rand("posterize", images[0], **settings), fewer)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("color", ImageEnhance.Color),
        ("contrast", ImageEnhance.Contrast),
        ("sharpness", ImageEnhance.Sharpness),
    ],
)
def test_factors_are_those_of_pillow_within_one_step(name: str, kind: Any):
    for image in (picture(), picture(1, 2, 9), picture(2, 1, 1)):
        for sign in (1, -1):
            for got, factor in (
                (trivial(name, image, 0, sign), 1),
                (trivial(name, image, 20, sign), 1 + sign * 0.66),
                (trivial(name, image, 30, sign), 1 + sign * 0.99),
                (rand(name, image, sign), 1 + sign * 0.27),  # 9 of 30, of 0.9
                (rand(name, image, sign, magnitude=10, bins=11), 1 + sign * 0.9),
            ):
                want = np.asarray(kind(Image.fromarray(image)).enhance(factor))
                assert np.abs(got.astype(int) - want).max() <= 1, (sign, factor)


def moved(name: str, amount: float, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where a pixel of the result comes from."""
    if name.startswith("shear"):
        return (x + amount * y, y) if name.endswith("x") else (x, y + amount * x)
    if name.startswith("translate"):
        return (x + amount, y) if name.endswith("x") else (x, y + amount)
    turn, middle_x, middle_y = np.radians(amount), 149 / 2, 119 / 2
    right, down = x - middle_x, y - middle_y
    back_x = np.cos(turn) * right + np.sin(turn) * down
    return middle_x + back_x, middle_y - np.sin(turn) * right + np.cos(turn) * down


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("name", "by_rand", "by_trivial"),
    [
        ("shear_x", 0.09, 0.99),
        ("shear_y", 0.09, 0.99),
        ("translate_x", int(0.3 * 150 / 331 * 150), 32),
        ("translate_y", int(0.3 * 150 / 331 * 120), 32),
        ("rotate", 9, 135),
    ],
)
def test_images_are_moved_as_far_as_was_published(
    name: str, by_rand: float, by_trivial: float, sign: int
):
    y, x = np.mgrid[:120, :150].astype(np.float64)
    for got, amount in (
        (rand(name, PLACES, sign), by_rand),
        (trivial(name, PLACES, 30, sign), by_trivial),
    ):
        from_x, from_y = moved(name, sign * amount, x, y)
        inside = (from_x > -0.49) & (from_x < 149.49) & (from_y > -0.49) & (from_y < 119.49)
        outside = (from_x < -0.51) | (from_x > 149.51) | (from_y < -0.51) | (from_y > 119.51)
        assert np.abs(got[inside, 1] - 1.0 - from_x[inside]).max() < 0.51
        assert np.abs(got[inside, 0] - 1.0 - from_y[inside]).max() < 0.51
        assert not got[outside].any()
        assert inside.mean() > 0.2


def test_a_mask_is_moved_as_its_image_and_keeps_its_values():
    image = picture(5, 30, 40)
    mask = (image[..., :1] > 120) * np.int16(-7)
    for name in OPERATIONS:
        both: Any = trivial(name, image, 25, leaf="image", mask=mask)
        if name in OPERATIONS[1:6]:
            moved_image = trivial(name, image, 25)
            assert np.array_equal(both["image"], moved_image)
            inside = moved_image.any(-1)
            kept = (moved_image[..., :1] > 120) * np.int16(-7)
            assert np.array_equal(both["mask"][inside], kept[inside])
        else:
            assert np.array_equal(both["mask"], mask), name
    rows = {"image": image[None], "mask": mask[None, :, 1:]}
    with pytest.raises(
        RowError, match=r"leaf 'mask' is an image of \(30, 39\) pixels, and 'image'"
    ):
        RandAugment(["image", "mask"], seed=0)(rows)


def test_operations_signs_and_magnitudes_are_drawn_evenly():
    image = picture(0, 20, 20)
    images = np.broadcast_to(image, (3000, *image.shape))
    out = RandAugment("x", num_ops=1, magnitude=20, seed=1, method="nearest")({"x": images})["x"]
    found = {row.tobytes() for row in out}
    expected = {
        rand(name, image, sign, magnitude=20).tobytes(): name
        for name in OPERATIONS
        for sign in (1, -1)
    }
    assert found == set(expected)
    shares = [np.mean([row.tobytes() == key for row in out]) for key in expected]
    assert len(expected) == 2 * 9 + 5  # identity and the four tables have no sign
    for share, name in zip(shares, expected.values(), strict=True):
        assert share == pytest.approx(1 / 28 if name in OPERATIONS[1:10] else 1 / 14, abs=0.015)
    pixel = np.full((1, 1, 3), 100, np.uint8)
    after = TrivialAugment("x", seed=1)({"x": np.broadcast_to(pixel, (9000, 1, 1, 3))})["x"]
    every = {trivial("brightness", pixel, n, sign)[0, 0, 0] for n in range(31) for sign in (1, -1)}
    assert every <= set(after[:, 0, 0, 0])  # every bin, up and down


def test_several_operations_come_one_after_the_other():
    image = picture()
    draws = np.array([[(11 + 0.5) / 14, 0.9, (6 + 0.5) / 14, 0.9]], np.float32)
    both = RandAugment("x", seed=0).transform({"x": image[None]}, draws)["x"][0]
    assert np.array_equal(both, rand("brightness", rand("solarize", image)))
    nothing = np.zeros((1, 4), np.float32)
    kept = RandAugment("x", seed=0).transform({"x": image[None]}, nothing)["x"]
    assert np.array_equal(kept[0], image)
    assert not np.shares_memory(kept, image)


def test_what_cannot_be_is_refused():
    for make, message in (
        (
            lambda: RandAugment("x", magnitude=31, seed=0),
            "magnitude must be less than bins=31, got 31",
        ),
        (lambda: RandAugment("x", num_ops=0, seed=0), "num_ops must be"),
        (lambda: TrivialAugment("x", bins=1, seed=0), "bins must be"),
        (
            lambda: RandAugment("x", method="area", seed=0),
            r"method must be one of \['linear', 'nea",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    floats = {"x": np.zeros((4, 5, 5, 3), np.float32)}
    with pytest.raises(ValueError, match="leaf 'x' is float32 where images of uint8 are needed"):
        DataLoader(floats, batch_size=2, operators=[RandAugment("x", seed=0)]).batch_spec()
