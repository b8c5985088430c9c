"""RandomResizedCrop: regions of the sizes that people expect, resized as Resize does it."""

import math
from typing import Any

import cv2
import numpy as np
import pytest

from loader import DataLoader, RowError, Shuffle
from loader.testing import assert_covers_each_record_once, assert_resumes_exactly
from operators import DecodeImage, RandomResizedCrop, Resize

ROWS, COLUMNS = (np.arange(n, dtype=np.float32) for n in (60, 90))
# Each pixel says where it is, so that a region at the size of the image shows its corners.
PLACES = np.stack(np.broadcast_arrays(ROWS[:, None], COLUMNS[None]), -1)


def regions(count: int, image: np.ndarray = PLACES, **settings: Any) -> np.ndarray:
    """Top, left, height and width of so many regions, as seen in what comes out."""
    crop = RandomResizedCrop("x", image.shape[:2], seed=3, method="nearest", **settings)
    out = crop({"x": np.broadcast_to(image, (count, *image.shape))})["x"]
    first, last = out.min((1, 2)), out.max((1, 2))
    return np.concatenate([first, last - first + 1], 1).astype(int)


@pytest.fixture(scope="module")
def found() -> np.ndarray:
    return regions(1500)


def test_regions_have_the_areas_and_shapes_asked_for_and_are_anywhere(found: np.ndarray):
    top, left, height, width = found.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 60).all()
    assert (left + width <= 90).all()
    area, ratio = height * width / 5400, width / height
    assert 0.07 < area.min() < 0.09
    assert area.max() > 0.85  # 60 x 80 is the largest
    assert 0.72 < ratio.min() < 0.78
    assert 1.28 < ratio.max() < 1.38
    for at, room in ((top, 60 - height), (left, 90 - width)):
        share = at[room > 5] / room[room > 5]
        assert np.histogram(share, 5, (0, 1))[0].min() > len(share) / 5 * 0.8
    narrow = regions(50, scale=(0.25, 0.25), ratio=(2.0, 2.0))
    # 5400 / 4 pixels, twice as wide as high: 26 x 52.
    assert (narrow[:, 2:] == [26, 52]).all()


def test_areas_and_ratios_are_distributed_as_those_of_the_plain_recipe(found: np.ndarray):
    """Ten tries: an area, evenly; a ratio, evenly in its logarithm; the first that fits."""
    rng = np.random.default_rng(0)
    plain = []
    while len(plain) < 1500:
        for _ in range(10):
            area = 5400 * rng.uniform(0.08, 1)
            ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
            height, width = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < height <= 60 and 0 < width <= 90:
                plain.append((height * width, width / height))
                break
        else:
            plain.append((60 * 80, 80 / 60))
    ours = np.stack([found[:, 2] * found[:, 3], found[:, 3] / found[:, 2]], 1)
    for quantity in range(2):
        shares = np.linspace(0.05, 0.95, 10)
        one, other = (np.quantile(v[:, quantity], shares) for v in (ours, np.array(plain)))
        np.testing.assert_allclose(one, other, rtol=0.05)


def test_where_no_region_fits_it_is_the_middle_of_the_image():
    wide, high = PLACES[:10], PLACES[:, :10]
    whole = {"scale": (1.0, 1.0)}
    assert (regions(50, wide, **whole) == [0, 38, 10, 13]).all()  # 4/3 of the height
    assert (regions(50, high, **whole) == [23, 0, 13, 10]).all()
    assert (regions(50, PLACES[:1, :1]) == [0, 0, 1, 1]).all()
    assert (regions(9, PLACES, scale=(1, 1), ratio=(1.5, 1.5)) == [0, 0, 60, 90]).all()


@pytest.mark.parametrize("method", ["linear", "area", "cubic", "nearest"])
def test_a_region_is_cut_out_and_resized_as_by_a_crop_and_resize(method: Any):
    rng = np.random.default_rng(0)
    images = np.empty(20, object)
    images[:] = [rng.integers(0, 256, (60 + n, 90 - n, 3), np.uint8) for n in range(20)]
    out = RandomResizedCrop("x", (31, 23), seed=5, method=method)({"x": images})["x"]
    places = np.empty(20, object)
    places[:] = [_places(image) for image in images]
    where = RandomResizedCrop("x", (200, 200), seed=5, method="nearest")({"x": places})["x"]
    for image, got, place in zip(images, out, where, strict=True):
        (top, left), (bottom, right) = place.min((0, 1)), place.max((0, 1))
        region = image[int(top) : int(bottom) + 1, int(left) : int(right) + 1]
        want = Resize("x", (31, 23), method=method)({"x": region[None].copy()})["x"][0]
        assert np.array_equal(got, want)
    assert (out.shape, out.dtype) == ((20, 31, 23, 3), np.uint8)


def _places(image: np.ndarray) -> np.ndarray:
    rows, columns = (np.arange(n, dtype=np.float32) for n in image.shape[:2])
    return np.stack(np.broadcast_arrays(rows[:, None], columns[None]), -1)


def test_an_image_and_its_mask_are_cut_alike_and_the_mask_keeps_its_values():
    image = np.random.default_rng(1).integers(0, 256, (30, 40, 50, 3), np.uint8)
    mask = (image[..., :1] > 128) * np.uint8(7)
    rows = {"image": image, "mask": mask, "again": image}
    out = RandomResizedCrop(["image", "mask", "again"], 16, seed=0)(rows)
    assert np.array_equal(out["image"], out["again"])
    assert set(np.unique(out["mask"])) == {0, 7}
    cut = RandomResizedCrop("image", 16, seed=0, method="nearest")(rows)["image"]
    assert np.array_equal((cut[..., :1] > 128) * np.uint8(7), out["mask"])
    with pytest.raises(
        RowError, match=r"leaf 'mask' is an image of \(40, 49\) pixels, and 'image'"
    ):
        RandomResizedCrop(["image", "mask"], 8, seed=0)({"image": image, "mask": mask[:, :, 1:]})


class Photos:
    """JPEG files, each of another size."""

    def __len__(self) -> int:
        return 17

    def __getitem__(self, index: int) -> Any:
        pixels = np.random.default_rng(index).integers(0, 256, (6, 5, 3), np.uint8)
        image = cv2.resize(pixels, (90 + index, 120 - index), interpolation=cv2.INTER_CUBIC)
        return {"image": cv2.imencode(".jpg", image)[1].tobytes(), "id": np.int32(index)}


def test_on_files_of_different_sizes_it_resumes_and_covers_whatever_the_batch_size():
    def make(batch_size: int = 5) -> DataLoader:
        crop = RandomResizedCrop("image", 24, seed=2)
        operators = [DecodeImage(least=(40, 40)), crop]
        return DataLoader(
            Photos(), batch_size=batch_size, order=Shuffle(0), epochs=2, operators=operators
        )

    assert_resumes_exactly(make)
    assert_covers_each_record_once(make(), "id")
    whole = next(make(17).host_batches())
    for batch, start in zip(make().host_batches(), (0, 5, 10), strict=False):
        assert np.array_equal(batch["image"], whole["image"][start : start + 5])
    first, second = make(17).host_batches()
    order = [int(np.flatnonzero(second["id"] == n)[0]) for n in first["id"]]
    assert (first["image"] != second["image"][order]).any((1, 2, 3)).all()  # epochs differ
