"""PadImage and CropImage: the window or the canvas that was asked for, of every image."""

from typing import Any

import numpy as np
import pytest

from loader import DataLoader, RowError
from loader.records.stacking import ragged_leaf
from operators import CropImage, PadImage

RNG = np.random.default_rng(0)
IMAGES = [RNG.integers(0, 256, (4 + n % 3, 9 - n % 4, 3), np.uint8) for n in range(12)]


@pytest.mark.parametrize("where", ["center", "corner"])
def test_an_image_is_put_onto_the_canvas_as_it_is(where: Any):
    pad = PadImage("x", (8, 9), value=(7, 8, 9), where=where, mask="real")
    ragged = pad({"x": ragged_leaf(IMAGES)})
    assert (ragged["x"].shape, ragged["x"].dtype) == ((12, 8, 9, 3), np.uint8)
    for image, got, real in zip(IMAGES, ragged["x"], ragged["real"], strict=True):
        rooms = np.array([8, 9]) - image.shape[:2]
        top, left = rooms // 2 if where == "center" else (0, 0)
        sides = [(top, rooms[0] - top), (left, rooms[1] - left)]
        want = np.stack([np.pad(image[..., c], sides, constant_values=7 + c) for c in range(3)], -1)
        assert np.array_equal(got, want)
        assert np.array_equal(real[..., 0], np.pad(np.ones(image.shape[:2], bool), sides))
    stacked = pad({"x": np.stack([IMAGES[0], IMAGES[0][::-1]])})
    assert np.array_equal(stacked["x"][0], ragged["x"][0])


def test_an_image_and_its_mask_are_padded_alike_each_with_its_value():
    rows = {"image": ragged_leaf(IMAGES), "mask": ragged_leaf([i[..., :1] for i in IMAGES])}
    out = PadImage(("image", "mask"), 9, value=200)(rows)
    named = PadImage(("image", "mask"), 9, value={"mask": 255}, mask="real")(rows)
    real = named["real"][..., 0]
    assert np.array_equal(out["image"][real], named["image"][real])
    assert (out["image"][~real] == 200).all()
    assert (out["mask"][~real] == 0).all()
    assert (named["mask"][~real] == 255).all()
    other = ragged_leaf([i[1:, :, :1] for i in IMAGES])
    with pytest.raises(RowError, match=r"leaf 'mask' is an image of \(3, 9\) pixels, and 'image'"):
        PadImage(("image", "mask"), 9)({**rows, "mask": other})


def test_a_window_is_cut_out_of_every_image():
    crop = CropImage(["x", "y"], 1, 2, 3, 4)
    out = crop({"x": ragged_leaf(IMAGES), "y": np.stack([IMAGES[0]] * 12)})
    assert (out["x"].shape, out["x"].dtype) == ((12, 3, 4, 3), np.uint8)
    for image, got in zip(IMAGES, out["x"], strict=True):
        assert np.array_equal(got, image[1:4, 2:6])
    assert np.array_equal(out["y"][5], IMAGES[0][1:4, 2:6])


def test_images_that_do_not_fit_are_refused_with_the_remedy():
    ragged = {"x": ragged_leaf(IMAGES)}
    with pytest.raises(RowError, match=r"image of \(6, 7\) pixels, larger than the size \(5, 9\)"):
        PadImage("x", (5, 9))(ragged)
    with pytest.raises(RowError, match=r"window ends at row 4 and column 7: put Resize or Pad"):
        CropImage("x", 1, 2, 3, 5)(ragged)
    grey = {"x": ragged_leaf([IMAGES[0], IMAGES[1][..., :1]])}
    with pytest.raises(RowError, match=r"uint8\[5, 8, 1\] where others .* 3 channels.* padded"):
        PadImage("x", 9)(grey)
    with pytest.raises(RowError, match=r"uint8\[5, 8, 1\] where others .* 3 channels.* cropped"):
        CropImage("x", 0, 0, 2, 2)(grey)
    for settings, message in (
        ({"where": "middle"}, r"where must be one of \['center', 'corner'\]"),
        ({"size": 0}, "size must be a positive int or"),
        ({"value": [[1]]}, "value must be a number, or one for each channel"),
        ({"mask": 3}, "expected the name of one leaf"),
    ):
        make: Any = PadImage
        with pytest.raises(ValueError, match=message):
            make(**{"leaf": "x", "size": 9, **settings})
    for window in ((-1, 0, 1, 1), (0, 0, 0, 1), (0, 0.5, 1, 1)):
        cut: Any = CropImage
        with pytest.raises(ValueError, match="must be an int of at least"):
            cut("x", *window)
    data = {"x": np.zeros((4, 5, 6, 3), np.uint8)}
    for operator, message in (
        (PadImage("x", (4, 8)), r"larger than the size \(4, 8\).*put Resize or CenterCrop before"),
        (PadImage("x", 8, mask="x"), "there is a leaf 'x' already: give mask= another name"),
        (PadImage("x", 8, value=300), "value=300.0 does not fit leaf 'x', which is uint8"),
        (CropImage("x", 3, 0, 3, 3, on="device"), "window ends at row 6 and column 3"),
    ):
        with pytest.raises(ValueError, match=message):
            DataLoader(data, batch_size=2, operators=[operator]).batch_spec()
