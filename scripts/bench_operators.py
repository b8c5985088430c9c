"""The workload of operators on images: each beside the same in Albumentations or torchvision.

The images are in memory, bytes of 224 x 224, and all work in one thread. Every contestant writes
its results into the memory of a batch. The limit is a loop that only copies them there, which no
operator can reach.

To add a line, write it into `LINES`: what the operators are, and a function that makes the rival.
"""

import dataclasses
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from bench_contest import Batches, Contest, Promise, Result
from bench_contestants import Task, gristmill
from bench_data import Columns
from bench_images import alone, some_pictures
from bench_labels import labels
from bench_process import in_child
from bench_timing import Pace, hold
from bench_tokens import tokens

from loader import Sequential
from operators import (
    Albumentations,
    ColorJitter,
    CropImage,
    GaussianBlur,
    Grayscale,
    PadImage,
    RandAugment,
    RandomAffine,
    RandomErasing,
    TrivialAugment,
)

_COUNT, _SIZE, _BATCH = 256, 224, 64
_JITTER: dict[str, Any] = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4}
_SHEAR = (-10, 10, -10, 10)

OnImage = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Line:
    """An operator, and a rival: what is called for each image, made in the rival's process."""

    operators: Callable[[], list[Any]]
    rival: Callable[[], OnImage]
    package: str = "albumentations"
    shape: tuple[int, int, int] = (_SIZE, _SIZE, 3)  # of what comes out
    quick: bool = False  # whether --quick looks at it too


def _albumentations(name: str, **settings: Any) -> OnImage:
    """A transform of Albumentations that always happens."""
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
    transform = getattr(importlib.import_module("albumentations"), name)(p=1.0, **settings)
    return lambda image: transform(image=image)["image"]


def _pipeline() -> Any:
    """As the page of Albumentations begins."""
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
    library = importlib.import_module("albumentations")
    steps = library.RandomCrop(192, 192), library.HorizontalFlip()
    return library.Compose([*steps, library.RandomBrightnessContrast()])


def _bare_pipeline() -> OnImage:
    pipeline = _pipeline()
    return lambda image: pipeline(image=image)["image"]


def _torchvision(name: str) -> OnImage:
    """A transform of torchvision on Pillow's images, which is faster there than on tensors."""
    from PIL import Image

    importlib.import_module("torch").set_num_threads(1)
    v2: Any = importlib.import_module("torchvision.transforms.v2")
    transform = getattr(v2, name)(interpolation=v2.InterpolationMode.BILINEAR)
    return lambda image: np.asarray(transform(Image.fromarray(image)))


LINES: dict[str, Line] = {
    "ColorJitter without hue": Line(
        lambda: [ColorJitter("image", **_JITTER, seed=0)],
        lambda: _albumentations("ColorJitter", **_JITTER, hue=(0.0, 0.0)),
    ),
    "ColorJitter": Line(
        lambda: [ColorJitter("image", **_JITTER, hue=0.1, seed=0)],
        lambda: _albumentations("ColorJitter", **_JITTER, hue=0.1),
        quick=True,
    ),
    "Grayscale": Line(
        lambda: [Grayscale("image")],
        lambda: _albumentations("ToGray", num_output_channels=3, method="weighted_average"),
    ),
    "RandomAffine": Line(
        lambda: [
            RandomAffine(
                "image", degrees=30, translate=(0.1, 0.1), scale=(0.8, 1.2), shear=_SHEAR, seed=0
            )
        ],
        lambda: _albumentations(
            "Affine",
            rotate=(-30, 30),
            translate_percent=(-0.1, 0.1),
            scale=(0.8, 1.2),
            shear={"x": (-10, 10), "y": (-10, 10)},
        ),
        quick=True,
    ),
    "RandomErasing": Line(
        lambda: [RandomErasing("image", probability=1, seed=0)],
        lambda: _albumentations("Erasing", scale=(0.02, 0.33), ratio=(0.3, 3.3)),
    ),
    "RandomErasing, random values": Line(
        lambda: [RandomErasing("image", probability=1, value="random", seed=0)],
        lambda: _albumentations("Erasing", scale=(0.02, 0.33), ratio=(0.3, 3.3), fill="random"),
    ),
    "PadImage": Line(
        lambda: [PadImage("image", 256, value=9)],
        lambda: _albumentations(
            "PadIfNeeded", min_height=256, min_width=256, border_mode=0, fill=9
        ),
        shape=(256, 256, 3),
    ),
    "CropImage": Line(
        lambda: [CropImage("image", 10, 20, 192, 192)],
        lambda: _albumentations("Crop", x_min=20, y_min=10, x_max=212, y_max=202),
        shape=(192, 192, 3),
    ),
    "GaussianBlur": Line(
        lambda: [GaussianBlur("image", sigma=(0.1, 2.0), seed=0)],
        lambda: _albumentations("GaussianBlur", sigma_limit=(0.1, 2.0), blur_limit=0),
    ),
    "a pipeline of Albumentations": Line(
        lambda: [Albumentations(_pipeline(), seed=0)], _bare_pipeline, shape=(192, 192, 3)
    ),
    "RandAugment": Line(
        lambda: [RandAugment("image", seed=0)],
        lambda: _torchvision("RandAugment"),
        "torchvision",
    ),
    "TrivialAugment": Line(
        lambda: [TrivialAugment("image", seed=0)],
        lambda: _torchvision("TrivialAugmentWide"),
        "torchvision",
    ),
}


def operators(pace: Pace) -> Iterator[Result]:
    """Operators in memory, each beside the same in another package, or in numpy."""
    images = in_child(some_pictures, _COUNT, _SIZE, _SIZE)
    for name, line in LINES.items():
        if line.quick or not pace.quick:
            yield hold(_contest(name, line, images), pace)
    yield from labels(pace)
    yield from tokens(pace)


def _contest(name: str, line: Line, images: Columns) -> Contest:
    task = Task(images, _BATCH)
    settings = {"prefetch": 0, "order": Sequential(), "operators": line.operators()}
    ours = gristmill(task, functools.partial(_Slices, images), **settings)
    copies = functools.partial(_batches, images, _copier, line.shape)
    rival = functools.partial(_batches, images, line.rival, line.shape)
    contestants = (
        alone("rows copied", copies, "limit"),
        alone("gristmill", ours.make, "gristmill"),
        dataclasses.replace(alone(line.package, rival, line.package), package=line.package),
    )
    shapes = {"image": (line.shape, "uint8"), "label": ((), "int32")}
    if line.shape != (_SIZE, _SIZE, 3):  # then a copy is another thing
        contestants = contestants[1:]
    return Contest(f"operators, {name}", contestants, Promise(_COUNT, shapes))


def _copier() -> OnImage:
    return lambda image: image


def _batches(images: Columns, make: Callable[[], OnImage], shape: tuple[int, int, int]) -> Batches:
    """The rows of each batch in the plainest way: a loop over the images, in order."""
    change = make()
    pixels = images.arrays["image"]
    while True:
        for start in range(0, _COUNT, _BATCH):
            out = np.empty((_BATCH, *shape), np.uint8)
            for into, image in zip(out, pixels[start : start + _BATCH], strict=True):
                into[:] = change(image)
            yield {"image": out, "label": np.arange(start, start + _BATCH, dtype=np.int32)}


class _Slices:
    """The images, of which a batch is a slice: nobody copies them before the operator does."""

    owned_rows = True  # nobody writes into them
    thread_safe = True

    def __init__(self, images: Columns) -> None:
        self._arrays = images.arrays

    def __len__(self) -> int:
        return _COUNT

    def gather(self, indices: np.ndarray) -> dict[str, Any]:
        first, last = int(indices[0]), int(indices[-1])
        assert np.array_equal(indices, np.arange(first, last + 1)), "not in order"
        return {name: array[first : last + 1] for name, array in self._arrays.items()}
