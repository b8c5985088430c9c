"""Images of different sizes that nothing has brought to one size: what a person is told."""

from collections.abc import Callable, Sequence
from typing import Any

import cv2
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from loader import DataLoader, DefaultBatcher, Mask, MeshSharder, OperatorModule
from loader.records.spec import leaf_spec
from loader.records.stacking import ragged_leaf
from operators import (
    CenterCrop,
    CropImage,
    DecodeImage,
    GaussianBlur,
    Normalize,
    PadImage,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
    Resize,
)

ONE_SHAPE = r"Normalize: leaf 'image' is uint8\[None, .* where numbers of one shape are needed: .*"


class Photos:
    """Pixels, or the bytes of a PNG file; each record of another height."""

    def __init__(self, *, encoded: bool) -> None:
        self.encoded = encoded

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        image = np.full((8 + index, 9, 3), index, np.uint8)
        return {"image": cv2.imencode(".png", image)[1].tobytes() if self.encoded else image}


@pytest.mark.parametrize("on", ["host", "device"])
def test_an_operator_that_needs_one_size_says_so_in_python_too(on: Any):
    operators = [DecodeImage(), Normalize("image", mean=1.0, std=2.0, on=on)]
    loader = DataLoader(Photos(encoded=True), batch_size=3, operators=operators)
    with pytest.raises(ValueError, match=f"{ONE_SHAPE}resize images first"):
        next(loader)
    with pytest.raises(ValueError, match=f"{ONE_SHAPE}resize images first"):
        loader.batch_spec()


def test_so_it_does_of_pixels_that_differ_only_from_record_to_record():
    operators = [Normalize("image", mean=1.0, std=2.0)]
    with pytest.raises(ValueError, match=f"{ONE_SHAPE}resize images first"):
        next(DataLoader(Photos(encoded=False), batch_size=3, operators=operators))


def test_images_that_go_to_a_device_as_they_are_get_the_remedy_for_images():
    loader = DataLoader(Photos(encoded=True), batch_size=3, operators=[DecodeImage()])
    with pytest.raises(ValueError, match=r"leaf 'image' may differ in shape .*Resize\('image', "):
        next(loader)
    assert next(loader.host_batches())["image"][2].shape == (10, 9, 3)
    resized = [DecodeImage(), Resize("image", 8)]
    batch = next(DataLoader(Photos(encoded=True), batch_size=3, operators=resized))
    assert batch["image"].shape == (3, 8, 8, 3)


class Pairs:
    """Two pictures of each height, one after the other: those of a batch of two are alike."""

    thread_safe = True

    def __init__(self, heights: int = 3) -> None:
        self.heights = heights

    def __len__(self) -> int:
        return 2 * self.heights

    def __getitem__(self, index: int) -> Any:
        image = np.full((8 + index // 2, 9, 3), index, np.uint8)
        return {"image": cv2.imencode(".png", image)[1].tobytes()}

    def record_spec(self) -> Any:
        return {"image": jax.ShapeDtypeStruct((), np.dtype(object))}


class Halved:
    def map(self, element: Any) -> Any:
        return {"image": element["image"] // 2}


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_a_batch_in_which_images_happen_to_be_alike_has_the_form_of_all_others(batch_size: int):
    operators = [DecodeImage(), Halved()]
    loader = DataLoader(Pairs(), batch_size=batch_size, operators=operators)
    assert loader.batch_spec()["image"].dtype == object
    shapes = [
        image.shape
        for batch in loader.host_batches()
        for image in batch["image"]
        if image is not None
    ]
    assert shapes == [(8 + n // 2, 9, 3) for n in range(6)]
    loader.reset()
    with pytest.raises(ValueError, match=r"leaf 'image' may differ in shape .*Resize\('image', "):
        next(loader)


def test_a_batcher_that_makes_one_array_of_a_leaf_refuses_them_with_the_remedy():
    settings: dict[str, Any] = {"batch_size": 2, "remainder": "drop", "operators": [DecodeImage()]}
    loader = DataLoader(Pairs(), batcher=DefaultBatcher(), **settings)
    with pytest.raises(ValueError, match=r"leaf 'image' may differ in shape.*Resize\('image', 224"):
        next(loader.host_batches())
    sharder = MeshSharder(jax.make_mesh((2,), ("data",)), rules=[(".*", P("data"))])
    with pytest.raises(ValueError, match=r"leaf 'image/0': .*a list.*Resize\('image', 224\)"):
        DataLoader(Pairs(), batcher=DefaultBatcher(), sharder=sharder, **settings)


def test_an_error_of_a_function_names_its_place_among_the_operators():
    def breaks(rows: Any) -> Any:
        return {"image": rows["image"] + np.ones((2, 5))}

    operators = [DecodeImage(), Resize("image", 8), breaks]
    loader = DataLoader(Photos(encoded=True), batch_size=3, operators=operators)
    with pytest.raises(ValueError, match="could not be broadcast") as raised:
        next(loader)
    assert any(note.startswith("(in operators[2], ") for note in raised.value.__notes__)


def test_statistics_of_images_that_differ_in_size_are_refused_with_the_remedy():
    normalize = Normalize("image")
    with pytest.raises(ValueError, match="rows of 'image' differ in size; put Resize or a crop"):
        normalize.fit(DataLoader(Photos(encoded=True), batch_size=3, operators=[DecodeImage()]))
    resized = DataLoader(
        Photos(encoded=True), batch_size=3, operators=[DecodeImage(), Resize("image", 4)]
    )
    normalize.fit(resized)


class OfAnyKind:
    """Images with another number of channels from record to record; the first has three."""

    def __init__(self, channels: Sequence[int], *, spec: Any = None) -> None:
        self.channels = channels
        if spec is not None:
            self.record_spec = lambda: spec

    def __len__(self) -> int:
        return len(self.channels)

    def __getitem__(self, index: int) -> Any:
        return {"image": np.full((8 + index % 3, 9, self.channels[index]), index + 1, np.uint8)}


class Decoded:
    """As `DecodeImage`: it takes a few rows at a time, so that images of some may be alike."""

    thread_safe = row_wise = True
    rows_at_once = 4

    def __call__(self, rows: Any) -> Any:
        return rows

    def output_spec(self, spec: Any) -> Any:
        return spec


ONE_SIZE: dict[str, Callable[[], Any]] = {
    "RandomCrop": lambda: RandomCrop("image", 4, seed=0),
    "CenterCrop": lambda: CenterCrop("image", 4),
    "CropImage": lambda: CropImage("image", 0, 0, 4, 4),
    "Resize": lambda: Resize("image", 4),
    "RandomResizedCrop": lambda: RandomResizedCrop("image", 4, seed=1),
    "PadImage": lambda: PadImage("image", 12),
}


@pytest.mark.parametrize("name", ONE_SIZE)
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("odd", [2, 4, 5])
def test_an_image_of_another_kind_is_named_whatever_the_batch(name: str, few: bool, odd: int):
    def names_it(**settings: Any) -> Any:
        operators = [*([OperatorModule(Decoded())] if few else []), ONE_SIZE[name]()]
        channels = [3 if n < odd or n % 4 == odd % 4 - 1 else 1 for n in range(12)]
        loader = DataLoader(OfAnyKind(channels), operators=operators, **settings)
        return list(loader.host_batches())

    for batch_size in (1, 2, 3, 4, 5, 8, 12):
        with pytest.raises(ValueError, match=rf"^record {odd}: .*leaf 'image' is uint8\[.*, 1\]"):
            names_it(batch_size=batch_size)
    kept = [
        np.concatenate([batch["image"][batch["valid_mask"]] for batch in batches])
        for batch_size in (1, 3, 8, 12)
        for batches in [names_it(batch_size=batch_size, on_error=Mask(log=None))]
    ]
    for rows in kept:
        assert rows.shape[-1] == 3
        np.testing.assert_array_equal(rows, kept[0])


@pytest.mark.parametrize("name", ONE_SIZE)
def test_images_without_an_axis_for_channels_are_refused_with_the_remedy(name: str):
    grey = [{"image": np.full((8, 9), n, np.uint8)} for n in range(3)]  # whose spec nobody asks for
    loader = DataLoader(grey, batch_size=3, operators=[ONE_SIZE[name]()])
    with pytest.raises(ValueError, match=r"'image' is uint8\[8, 9\] where an .* add an axis for"):
        next(loader.host_batches())


@pytest.mark.parametrize("name", ONE_SIZE)
def test_images_whose_channels_are_not_known_are_refused_before_they_get_one_size(name: str):
    spec = {"image": leaf_spec((None, None, None), np.dtype(np.uint8))}
    with pytest.raises(ValueError, match=f"{name}: leaf 'image' has another number of channels"):
        DataLoader(OfAnyKind([3, 3, 1], spec=spec), batch_size=1, operators=[ONE_SIZE[name]()])


def test_what_changes_image_by_image_does_not_look_at_the_others():
    images = [np.full((4, 5, channels), channels, np.uint8) for channels in (1, 3, 1, 3)]
    for operator in (
        RandomFlip("x", probability=1, seed=0),
        RandomErasing("x", probability=1, value=9, seed=0),
        RandomAffine("x", degrees=20, fill=7, seed=0),
        GaussianBlur("x", sigma=1.0),
    ):
        together = operator({"x": ragged_leaf(images)})["x"]
        assert [image.shape[2] for image in together] == [1, 3, 1, 3], operator.label
