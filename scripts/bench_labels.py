"""Operators on labels, beside the same formula elsewhere: OneHot in numpy, CutMix in torch.

Both are given the records in order, as slices of arrays. CutMix runs on the device, here this
machine's processor, and its batches are placed there first; torch has them where numpy has.
"""

import functools
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from bench_contest import Batches, Contest, Contestant, Promise, Result
from bench_contestants import Task, gristmill
from bench_data import Columns
from bench_images import alone, some_pictures
from bench_process import in_child
from bench_timing import Pace, hold

from loader import Sequential
from operators import CutMix, OneHot

_LABELS, _CLASSES, _LABELS_AT_ONCE = 65_536, 1000, 1024
_IMAGES, _SIZE, _IMAGES_AT_ONCE, _KINDS = 256, 224, 64, 10


def labels(pace: Pace) -> Iterator[Result]:
    """OneHot beside rows taken from numpy's `eye`, and CutMix beside the same in torch."""
    yield hold(_one_hot(), pace)
    if not pace.quick:
        yield hold(_cutmix(), pace)


def _one_hot() -> Contest:
    columns = in_child(_some_classes)
    task = Task(columns, _LABELS_AT_ONCE)
    settings = {"prefetch": 0, "order": Sequential(), "operators": [OneHot("class", _CLASSES)]}
    ours = gristmill(task, lambda: columns.arrays, **settings)
    taken = functools.partial(_rows_of_eye, columns.arrays)
    contestants = (
        alone("np.take of np.eye", taken, "numpy"),
        alone("gristmill", ours.make, "gristmill"),
    )
    shapes = {"class": ((_CLASSES,), "float32"), "label": ((), "int32")}
    return Contest("operators, OneHot", contestants, Promise(_LABELS, shapes, _encoded(columns)))


def _some_classes() -> Columns:
    classes = np.random.default_rng(0).integers(0, _CLASSES, _LABELS).astype(np.int32)
    return Columns({"class": classes, "label": np.arange(_LABELS, dtype=np.int32)})


def _encoded(columns: Columns) -> Any:
    """What the rows with these labels must be."""

    def rows(numbers: np.ndarray) -> dict[str, np.ndarray]:
        classes = columns.arrays["class"][numbers]
        own = classes[:, None] == np.arange(_CLASSES)
        return {"class": own.astype(np.float32), "label": numbers.astype(np.int32)}

    return rows


def _rows_of_eye(arrays: dict[str, np.ndarray]) -> Batches:
    eye = np.eye(_CLASSES, dtype=np.float32)
    while True:
        for start in range(0, _LABELS, _LABELS_AT_ONCE):
            rows = {name: array[start : start + _LABELS_AT_ONCE] for name, array in arrays.items()}
            yield {**rows, "class": np.take(eye, rows["class"], axis=0)}


def _cutmix() -> Contest:
    pictures = in_child(some_pictures, _IMAGES, _SIZE, _SIZE)
    arrays = {**pictures.arrays, "class": np.arange(_IMAGES, dtype=np.int32) % _KINDS}
    task = Task(pictures, _IMAGES_AT_ONCE, devices=1)
    operators = [CutMix(label="class", num_classes=_KINDS, seed=0)]
    ours = gristmill(task, lambda: arrays, order=Sequential(), operators=operators)
    contestants = (
        Contestant("torch", functools.partial(_mixed_by_torch, arrays), "torch", "torch"),
        Contestant("gristmill", ours.make, "gristmill", devices=1, ahead=ours.ahead),
    )
    shapes = {
        "image": ((_SIZE, _SIZE, 3), "uint8"),
        "class": ((_KINDS,), "float32"),
        "label": ((), "int32"),
    }
    return Contest("operators, CutMix", contestants, Promise(_IMAGES, shapes))


def _mixed_by_torch(arrays: dict[str, np.ndarray]) -> Batches:
    """A rectangle of its own for each image, from the next of a random circle of the batch.

    Copied one by one: `torch.where` takes forty times as long for bytes.
    """
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)  # two take a hundred times as long: the copies are small
    beta = torch.distributions.Beta(1.0, 1.0)
    while True:
        for start in range(0, _IMAGES, _IMAGES_AT_ONCE):
            rows = {name: array[start : start + _IMAGES_AT_ONCE] for name, array in arrays.items()}
            count = len(rows["label"])
            images = torch.from_numpy(rows["image"])
            circle = torch.randperm(count)
            partner = torch.empty_like(circle)
            partner[circle] = circle.roll(-1)
            half = (0.5 * beta.sample((count,)).sqrt() * _SIZE).int()
            middles = torch.randint(0, _SIZE, (2, count))
            begin, end = (middles - half).clamp(min=0), (middles + half).clamp(max=_SIZE)
            mixed = images.clone()
            sides = zip(partner.tolist(), *begin.tolist(), *end.tolist(), strict=True)
            for row, (other, top, left, bottom, right) in enumerate(sides):
                mixed[row, top:bottom, left:right] = images[other, top:bottom, left:right]
            share = ((end - begin).prod(0) / _SIZE**2)[:, None]
            own = torch.nn.functional.one_hot(torch.from_numpy(rows["class"]).long(), _KINDS)
            classes = (1 - share) * own + share * own[partner]
            yield {**rows, "image": mixed.numpy(), "class": classes.numpy()}
