"""RandomErasing: rectangles as people expect them, the same for an image and its mask."""

import math
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, RowError
from loader.records.stacking import ragged_leaf
from operators import RandomErasing

make: Any = RandomErasing


def rectangles(count: int, shape: tuple[int, int] = (40, 60), **settings: Any) -> np.ndarray:
    """Top, left, height and width of what is erased of so many images; zeros if nothing is."""
    ones = np.ones((count, *shape, 1), np.uint8)
    erased = make("x", seed=1, **{"probability": 1, **settings})({"x": ones})["x"][..., 0] == 0
    found = []
    for image in erased:
        rows, columns = (np.flatnonzero(image.any(axis)) for axis in (1, 0))
        if not rows.size:
            found.append((0, 0, 0, 0))
            continue
        box = rows[0], columns[0], rows[-1] + 1 - rows[0], columns[-1] + 1 - columns[0]
        assert image.sum() == box[2] * box[3]  # one whole rectangle
        found.append(box)
    return np.array(found)


def test_areas_ratios_and_places_are_distributed_as_those_of_the_plain_recipe():
    """Ten tries: an area, evenly; a ratio, evenly in its logarithm; the first that fits."""
    found = rectangles(1500)
    rng, plain = np.random.default_rng(0), []
    while len(plain) < 1500:
        for _ in range(10):
            area = 2400 * rng.uniform(0.02, 0.33)
            ratio = math.exp(rng.uniform(math.log(0.3), math.log(3.3)))
            height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if height < 40 and width < 60:
                plain.append((height * width, height / width))
                break
    ours = np.stack([found[:, 2] * found[:, 3], found[:, 2] / found[:, 3]], 1)
    for quantity in range(2):
        shares = np.linspace(0.05, 0.95, 10)
        one, other = (np.quantile(v[:, quantity], shares) for v in (ours, np.array(plain)))
        np.testing.assert_allclose(one, other, rtol=0.12)
    for axis, length in enumerate((40, 60)):
        room = length - found[:, 2 + axis]
        share = found[:, axis][room > 9] / room[room > 9]
        assert (share.min(), share.max()) == (0, 1)
        assert np.histogram(share, 5, (0, 1))[0].min() > len(share) / 5 * 0.8
    narrow = rectangles(50, scale=(0.25, 0.25), ratio=(0.5, 0.5))
    assert (narrow[:, 2:] == [17, 35]).all()  # 600 pixels, half as high as wide


def test_an_image_is_left_by_chance_and_where_no_rectangle_fits():
    for probability in (0.0, 0.25, 1.0):
        erased = rectangles(2000, (8, 9), probability=probability)[:, 2] > 0
        assert erased.mean() == pytest.approx(probability, abs=0.03)
    assert not rectangles(50, (1, 1)).any()
    assert not rectangles(50, scale=(1, 1)).any()  # one as large as the image is no part of it
    assert not rectangles(50, (2, 2), scale=(0.001, 0.001)).any()  # less than a pixel


def test_the_value_is_written_and_all_else_stays():
    images = np.random.default_rng(0).integers(0, 256, (40, 9, 12, 3), np.uint8)
    ragged = ragged_leaf([image[: 7 + n % 3] for n, image in enumerate(images)])
    before = [image.copy() for image in ragged]
    for leaf in (images, ragged):
        erase = make("x", probability=1, value=(1, 2, 3), seed=0)
        where = make("x", probability=1, value=1.0, seed=0)
        ones = ragged_leaf([np.zeros(image.shape, np.float32) for image in leaf])
        for old, got, inside in zip(
            leaf, erase({"x": leaf})["x"], where({"x": ones})["x"], strict=True
        ):
            assert 0 < inside.sum() < inside.size
            assert np.array_equal(got, np.where(inside == 1, np.array([1, 2, 3], np.uint8), old))
    assert all(map(np.array_equal, ragged, before))  # what was given is not written into


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_random_values_are_those_of_the_dtype_and_belong_to_row_and_pixel(dtype: str):
    settings: dict[str, Any] = {"probability": 1, "scale": (0.8, 0.8), "ratio": (1, 1), "seed": 0}
    images = np.zeros((300, 12, 12, 3), dtype)
    out = make("x", value="random", **settings)({"x": images})["x"]
    inside = make("x", value=1, **settings)({"x": images})["x"] == 1
    drawn = out[inside].reshape(300, -1)
    assert not out[~inside].any()
    if dtype == "float32":
        assert drawn.mean() == pytest.approx(0, abs=0.02)
        assert drawn.std() == pytest.approx(1, abs=0.02)
        assert np.mean(np.abs(drawn) < 0.6745) == pytest.approx(0.5, abs=0.02)
    else:
        info = np.iinfo(dtype)
        low, high = int(info.min), int(info.max) + 1
        counts = np.histogram(drawn, 8, (low, high))[0] / drawn.size
        assert np.allclose(counts, 1 / 8, atol=0.01)
    table = np.corrcoef(drawn[:, :60].T) - np.eye(60)  # pixels and channels
    assert np.abs(table).max() < 0.3
    alike = np.abs(np.corrcoef(drawn)) > 0.3  # rows: two begin at the same value by chance
    assert alike.sum() <= 304
    again = make("x", value="random", **settings)
    few = again.process({"x": images[:5]}, np.arange(100, 105))["x"]
    assert np.array_equal(few, out[100:105])


def test_an_image_and_its_mask_are_erased_alike():
    image = np.random.default_rng(1).integers(1, 256, (30, 9, 12, 3), np.uint8)
    mask = np.full((30, 9, 12, 1), 5, np.int32)
    rows = {"image": image, "mask": mask}
    for settings, of_mask in (({}, 0), ({"value": "random"}, 0), ({"value": {"mask": -1}}, -1)):
        out = make(("image", "mask"), probability=1, seed=0, **settings)(rows)
        inside = out["mask"][..., 0] == of_mask
        assert 0 < inside.mean() < 0.5
        assert np.array_equal(out["image"][~inside], image[~inside])
        assert (out["image"] != image).any(-1)[inside].mean() > 0.95
    with pytest.raises(RowError, match=r"leaf 'mask' is an image of \(8, 12\) pixels, and 'image'"):
        make(("image", "mask"), seed=0)({**rows, "mask": mask[:, 1:]})


def test_what_it_cannot_do_is_refused():
    for settings, message in (
        ({"scale": (0.1, 2)}, "scale must be two positive numbers of at most 1, the smaller first"),
        ({"ratio": (0, 1)}, "ratio must be two positive numbers, the smaller first"),
        ({"probability": -1}, r"probability must lie in \[0, 1\]"),
        ({"value": "noise"}, "value must be a number, or one for each channel, or 'random', got"),
    ):
        with pytest.raises(ValueError, match=message):
            make("x", **settings)
    for dtype, value, message in (
        ("uint8", -1, r"value=-1.0 does not fit leaf 'x', which is uint8: give whole numbers"),
        ("uint8", 0.5, r"value=0.5 does not fit leaf 'x'"),
        ("int64", "random", r"leaf 'x' is int64, for which value='random' has no values"),
    ):
        with pytest.raises(ValueError, match=message):
            DataLoader(
                {"x": np.zeros((4, 5, 6, 3), dtype)},
                batch_size=2,
                operators=[make("x", value=value, seed=0)],
            )
