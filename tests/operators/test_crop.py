"""`RandomCrop`, `CenterCrop` and `CropImage`: several leaves are cut alike, or it is refused."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, OperatorModule, RowError
from loader.records.stacking import ragged_leaf
from operators import CenterCrop, RandomCrop, Sequence


def pixels(height: int, width: int) -> np.ndarray:
    """An image of which no two pixels are alike."""
    return np.arange(height * width, dtype=np.int32).reshape(height, width, 1)


def test_an_image_and_its_mask_are_cut_at_the_same_places():
    sizes = [(9 + n % 3, 12 - n % 4) for n in range(20)]
    leaf = ragged_leaf([pixels(*size) for size in sizes])
    for padding in (0, 2):
        crop = RandomCrop(["image", "mask"], (5, 6), padding=padding, seed=1)
        cut = crop({"image": leaf, "mask": leaf.copy()})
        np.testing.assert_array_equal(cut["image"], cut["mask"])
    assert len({image.tobytes() for image in cut["image"]}) > 15


@pytest.mark.parametrize("make", [functools.partial(RandomCrop, seed=0), CenterCrop])
def test_leaves_of_other_sizes_are_refused_with_the_record(make: Any):
    images = ragged_leaf([pixels(8, 9 + n) for n in range(6)])
    masks = ragged_leaf([pixels(8 + (n == 4), 9 + n) for n in range(6)])
    records = [{"image": i, "mask": m} for i, m in zip(images, masks, strict=True)]
    said = r"leaf 'mask' is an image of \(9, 13\) pixels, and 'image' of \(8, 13\).*one size"
    crop = make(["image", "mask"], 5)
    with pytest.raises(RowError, match=said):
        crop({"image": images, "mask": masks})
    loader = DataLoader(records, batch_size=6, operators=[crop])
    with pytest.raises(ValueError, match=f"record 4: {crop.label}: {said}"):
        next(loader)


@pytest.mark.parametrize("on", ["host", "device"])
@pytest.mark.parametrize("make", [functools.partial(RandomCrop, seed=0), CenterCrop])
def test_where_sizes_are_known_before_they_are_refused_before(make: Any, on: Any):
    data = {"image": np.zeros((4, 8, 9, 3)), "mask": np.zeros((4, 8, 10, 1))}
    with pytest.raises(ValueError, match=r"'mask' is an image of \(8, 10\) .* give them one size"):
        DataLoader(data, batch_size=2, operators=[make(["image", "mask"], 5, on=on)]).batch_spec()


@dataclasses.dataclass(frozen=True)
class _Counted:
    """Notes how many rows it is given at once."""

    seen: Any
    rows_at_once = 4
    row_wise = True

    def __call__(self, rows: Any) -> Any:
        self.seen.append(len(rows["x"]))
        return rows


@pytest.mark.parametrize("alone", [False, True])
def test_a_sequence_takes_as_few_rows_at_once_as_its_first_operator(alone: bool):
    images = ragged_leaf([pixels(8, 9 + n) for n in range(10)])
    seen: list[int] = []
    counted, crop = OperatorModule(_Counted(seen)), RandomCrop("x", 5)
    operators = (
        [Sequence([counted, crop], seed=3)]
        if alone
        else [Sequence([counted]), Sequence([crop], seed=3)]
    )
    data = [{"x": image} for image in images]
    pipeline = DataLoader(data, batch_size=10, operators=operators).pipeline
    assert pipeline.batch_spec()["x"].shape == (10, 5, 5, 1)
    seen.clear()
    batch = pipeline.batch(0)
    assert seen == [4, 4, 2]
    if alone:  # an operator draws by its place
        plain = DataLoader(data, batch_size=10, operators=[Sequence([crop], seed=3)])
        np.testing.assert_array_equal(batch["x"], plain.pipeline.batch(0)["x"])
