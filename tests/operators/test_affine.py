"""RandomAffine: the warp of the definition, drawn as people expect, an image and its mask alike."""

import math
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, RowError
from loader.records.stacking import ragged_leaf
from operators import RandomAffine

ROWS, COLUMNS = (np.arange(n, dtype=np.float32) for n in (40, 60))
# Each pixel says where it is: its column and its row.
PLACES = np.stack(np.broadcast_arrays(COLUMNS[None], ROWS[:, None]), -1)
# Small steps between neighbours, so that a place that is wrong by far shows, and rounding does not.
SETTINGS: dict[str, Any] = {
    "degrees": (25, 25),
    "scale": (1.3, 1.3),
    "shear": (10, 10, -7, -7),
    "seed": 0,
}


def forwards() -> np.ndarray:
    """What SETTINGS do to (x, y), counted from the middle: shear, shear, turn, scale."""
    angle, by_y, by_x = np.radians([25, 10, -7])
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    x_by_y = np.array([[1, -np.tan(by_y)], [0, 1]])
    y_by_x = np.array([[1, 0], [-np.tan(by_x), 1]])
    return 1.3 * turn @ y_by_x @ x_by_y


def warped(image: np.ndarray, fill: float, method: str) -> tuple[np.ndarray, np.ndarray]:
    """The image in the plainest way, in float64, and which pixels are not on a border."""
    height, width, channels = image.shape
    around = np.full((height + 2, width + 2, channels), fill, np.float64)
    around[1:-1, 1:-1] = image
    middle = np.array([(width - 1) / 2, (height - 1) / 2])
    back = np.linalg.inv(forwards())
    out = np.empty(image.shape)
    clear = np.empty(image.shape[:2], bool)
    for row in range(height):
        for column in range(width):
            place = back @ ([column, row] - middle) + middle
            taps = np.rint(place)[None] if method == "nearest" else np.floor(place) + CORNERS
            shares = np.abs(1 - np.abs(taps - place)).prod(1)
            shares = np.ones(1) if method == "nearest" else shares
            x, y = np.clip(taps, -1, [width, height]).astype(int).T + 1
            out[row, column] = shares @ around[y, x]
            clear[row, column] = (np.abs(place % 1 - 0.5) > 1e-3).all()
    return out, clear


CORNERS = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])


@pytest.mark.parametrize(
    ("dtype", "channels"),
    [
        *(("uint8", n) for n in (1, 2, 3, 4, 7)),
        *((name, 3) for name in ("int8", "uint16", "int16", "float16", "float32", "float64")),
        ("float32", 2),
    ],
)
def test_a_linear_warp_is_that_of_the_definition(dtype: str, channels: int):
    image = np.random.default_rng(0).integers(0, 100, (23, 31, channels)).astype(dtype)
    want, _ = warped(image, 9, "linear")
    whole = np.dtype(dtype).kind in "iu"
    operator = RandomAffine("x", fill=9, **SETTINGS)
    for leaf in (image[None], ragged_leaf([image, image[:, :-1]])):
        got = operator({"x": leaf})["x"][0]
        assert got.dtype == dtype
        # Places are in float32: a little off, which whole numbers may be rounded by.
        tolerance = 0.501 if whole else 0.05 if dtype == "float16" else 2e-3
        assert np.abs(got.astype(np.float64) - want).max() < tolerance


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int8", "float16", "int32", "int64", "float64"])
def test_a_nearest_warp_moves_pixels_of_any_dtype_as_they_are(dtype: str):
    rng = np.random.default_rng(0)
    bits = rng.integers(-(2**62), 2**62, (23, 31, 3))
    image = (rng.normal(size=bits.shape) if dtype.startswith("float") else bits).astype(dtype)
    numbers = np.arange(23 * 31).reshape(23, 31, 1)
    want, clear = warped(numbers, -1, "nearest")
    got = RandomAffine("x", fill=1, method="nearest", **SETTINGS)({"x": image[None]})["x"][0]
    assert got.dtype == dtype
    known = np.append(image.reshape(-1, 3), np.ones((1, 3), dtype), 0)[want[..., 0].astype(int)]
    assert clear.mean() > 0.95
    assert np.array_equal(got[clear], known[clear])
    assert (want == -1).any()


def test_turns_are_clockwise_around_the_middle():
    images = np.random.default_rng(0).integers(0, 256, (5, 12, 12, 3), np.uint8)
    for quarters in (1, 2, 3):
        turn = RandomAffine("x", degrees=(90 * quarters, 90 * quarters), seed=0)
        assert np.array_equal(turn({"x": images})["x"], np.rot90(images, -quarters, (1, 2)))


def found(count: int, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where so many images were sampled: the matrices, and the places of the middle pixels."""
    affine = RandomAffine("x", seed=3, fill=-1000, **settings)
    out = affine({"x": np.broadcast_to(PLACES, (count, *PLACES.shape))})["x"].astype(np.float64)
    across, down = out[:, 20, 31] - out[:, 20, 30], out[:, 21, 30] - out[:, 20, 30]
    return np.stack([across, down], -1), out[:, 20, 30]


def evenly(values: np.ndarray, low: float, high: float) -> None:
    """Values of an even distribution between these ends."""
    shares = (values - low) / (high - low)
    assert 0 <= shares.min() < 0.02
    assert 0.98 < shares.max() <= 1.001
    assert np.histogram(shares, 5, (0, 1))[0].min() > len(shares) / 5 * 0.75


def test_angles_scales_and_shears_are_drawn_evenly_from_their_ranges():
    back, _ = found(600, degrees=30)
    evenly(np.degrees(np.arctan2(-back[:, 1, 0], back[:, 0, 0])), -30, 30)
    back, _ = found(600, degrees=(10, 20))
    evenly(np.degrees(np.arctan2(-back[:, 1, 0], back[:, 0, 0])), 10, 20)
    back, _ = found(600, scale=(0.5, 2))
    evenly(1 / back[:, 0, 0], 0.5, 2)
    assert np.allclose(back[:, 0, 0], back[:, 1, 1], atol=1e-3)
    back, _ = found(600, shear=20)
    evenly(np.degrees(np.arctan(back[:, 0, 1])), -20, 20)
    assert (np.abs(back[:, 1, 0]) < 1e-3).all()
    back, _ = found(600, shear=(0, 0, 5, 10))
    evenly(np.degrees(np.arctan(back[:, 1, 0])), 5, 10)
    both, _ = found(300, degrees=30, scale=(0.5, 2))
    turned = np.arctan2(-both[:, 1, 0], both[:, 0, 0])
    assert abs(np.corrcoef(turned, np.linalg.det(both))[0, 1]) < 0.15  # each has its own draw


def test_images_move_by_whole_pixels_of_at_most_these_shares():
    _, places = found(900, translate=(0.1, 0.2))
    moves = np.array([30, 20]) - places
    assert np.array_equal(moves, moves.round())
    for axis, most in ((0, 6), (1, 8)):
        assert sorted(set(moves[:, axis])) == list(range(-most, most + 1))
    assert abs(np.corrcoef(moves.T)[0, 1]) < 0.15
    still, places = found(5, translate=(0.1, 0), degrees=(90, 90))
    assert np.allclose(still, [[0, 1], [-1, 0]], atol=1e-4)
    moves = places - np.array([30, 19])  # around (29.5, 19.5), a quarter turn, then to the side
    assert np.allclose(moves, moves.round(), atol=1e-4)
    assert np.abs(moves[:, 0]).max() < 0.01 < np.abs(moves[:, 1]).max() < 6.5


def test_an_image_and_its_mask_move_alike_and_the_mask_keeps_its_values():
    image = np.random.default_rng(1).integers(1, 256, (30, 40, 50, 3), np.uint8)
    mask = (image[..., :1] > 128) * np.int32(70_000)
    rows = {"image": image, "mask": mask, "again": image}
    settings: dict[str, Any] = {"degrees": 90, "scale": (0.6, 1.5), "shear": 10, "seed": 0}
    out = RandomAffine(["image", "mask", "again"], fill=0, **settings)(rows)
    assert np.array_equal(out["image"], out["again"])
    assert set(np.unique(out["mask"])) == {0, 70_000}
    nearest = RandomAffine("image", method="nearest", **settings)(rows)["image"]
    assert np.array_equal((nearest[..., :1] > 128) * np.int32(70_000), out["mask"])
    bare = (nearest == 0).all(-1)
    assert bare.any()
    other = RandomAffine(("image", "mask"), fill=(1, 2, 3), method="nearest", **settings)(rows)
    assert (other["image"][bare] == [1, 2, 3]).all()
    assert (other["mask"][bare] == 0).all()  # the fill is that of the image
    named = RandomAffine(("image", "mask"), fill={"mask": 255}, method="nearest", **settings)(rows)
    assert (named["mask"][bare] == 255).all()
    assert (named["image"][bare] == 0).all()
    with pytest.raises(
        RowError, match=r"leaf 'mask' is an image of \(40, 49\) pixels, and 'image'"
    ):
        RandomAffine(["image", "mask"], degrees=9, seed=0)({**rows, "mask": mask[:, :, 1:]})


def test_an_image_is_left_as_it_is_by_chance():
    images = np.random.default_rng(2).integers(0, 256, (2000, 6, 5, 1), np.uint8)
    settings: dict[str, Any] = {"degrees": (180, 180), "probability": 0.3, "seed": 0}
    for leaf in (images, ragged_leaf(list(images))):
        out = np.stack(list(RandomAffine("x", **settings)({"x": leaf})["x"]))
        turned = (out == images[:, ::-1, ::-1]).all((1, 2, 3))
        assert (turned | (out == images).all((1, 2, 3))).all()
        assert turned.mean() == pytest.approx(0.3, abs=0.03)


def test_what_it_cannot_do_is_refused():
    make: Any = RandomAffine
    for settings, message in (
        ({}, r"RandomAffine\('x'\) changes nothing: give degrees"),
        (
            {"degrees": (5, -5)},
            "degrees must be an angle in degrees or two, the smaller first, fin",
        ),
        ({"degrees": math.inf}, "degrees must be an angle"),
        ({"degrees": "9"}, "degrees must be an angle"),
        ({"shear": 90}, "shear must be an angle .* greater than -90 and less than 90, got 90"),
        ({"shear": (1, 2, 3)}, "shear must be an angle"),
        ({"translate": (0.1, 1.5)}, r"translate must be two shares in \[0, 1\]"),
        ({"translate": 0.1}, "translate must be two shares"),
        ({"scale": (0, 1)}, "scale must be two positive numbers, the smaller first"),
        ({"degrees": 5, "method": "cubic"}, r"method must be one of \['linear', 'nearest'\]"),
        ({"degrees": 5, "fill": "black"}, "fill must be a number, or one for each channel, got"),
        ({"degrees": 5, "fill": {"y": 1}}, r"fill names \['y'\]: the leaves are \['x'\]"),
        ({"degrees": 5, "probability": 2}, r"probability must lie in \[0, 1\]"),
        ({"degrees": 5, "on": "device"}, "RandomAffine runs on host, got on='device'"),
    ):
        with pytest.raises(ValueError, match=message):
            make("x", **settings)
    for dtype, settings, message in (
        ("uint8", {"fill": 256}, "fill=256.0 does not fit leaf 'x', which is uint8: .* 0 to 255"),
        ("uint8", {"fill": (1, 2)}, r"has 2 numbers, and leaf 'x' has 3 channels"),
        ("int32", {}, r"int32, whose values float32 does not hold.*method='nearest'"),
    ):
        data = {"x": np.zeros((4, 5, 6, 3), dtype)}
        with pytest.raises(ValueError, match=message):
            DataLoader(data, batch_size=2, operators=[make("x", degrees=5, seed=0, **settings)])
    empty = ragged_leaf([np.ones((3, 4, 1), np.uint8), np.ones((0, 4, 1), np.uint8)])
    with pytest.raises(RowError, match=r"image of \(0, 4\) pixels: leave it out with a filter"):
        RandomAffine("x", degrees=5, seed=0)({"x": empty})
