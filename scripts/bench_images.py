"""The workload in which images are brought to another size: against a bare loop of OpenCV's resize.

The images lie in memory, each an array of its own, as a decoder gives them; nobody copies them. All
work in one thread, and OpenCV too. "From one array" is this loader over a dict of arrays, which
copies rows out of it first.
"""

import functools
from collections.abc import Iterator
from typing import Any

import cv2
import jax
import numpy as np
from bench_contest import Batches, Contest, Contestant, Promise, Result
from bench_contestants import Task, gristmill, limit
from bench_data import Columns
from bench_process import in_child
from bench_timing import Pace, hold

from operators import Resize

_CASES = ((256, 256, 224, 256, 64), (1200, 1600, 256, 64, 32))  # given, wanted, how many, batch


def images(pace: Pace) -> Iterator[Result]:
    """Images in memory resized, 256 x 256 to 224 and 1200 x 1600 to 256, in one thread."""
    for height, width, size, count, batch_size in _CASES:
        pictures = in_child(some_pictures, count, height, width)
        others = ("area", "cubic") if size == 224 else ("area",)
        for method in ("linear", *(() if pace.quick else others)):
            resize = functools.partial(_resized, pictures.arrays["image"], size, method)
            task = Task(pictures, batch_size)
            settings = {"prefetch": 0, "operators": [Resize("image", size, method=method)]}
            ours = gristmill(task, lambda pictures=pictures: _InPlace(pictures), **settings)
            copied = gristmill(task, lambda pictures=pictures: pictures.arrays, **settings)
            contestants = (
                alone("a loop of cv2.resize", limit("", resize, task).make, "limit"),
                alone("gristmill", ours.make, "gristmill"),
                alone("gristmill, from one array", copied.make, "copied"),
            )
            shapes = {"image": ((size, size, 3), "uint8"), "label": ((), "int32")}
            title = f"images, {height} x {width} to {size}, {method}"
            # The bare loop has Intel's IPP, which gives `cubic` other last bits.
            promise = Promise(count, shapes, None if method == "cubic" else resize)
            yield hold(Contest(title, contestants, promise), pace)


def alone(name: str, make: Any, family: str) -> Contestant:
    """One that has no threads of OpenCV beside it."""

    def batches() -> Batches:
        cv2.setNumThreads(1)
        return make()

    return Contestant(name, batches, family, ahead=1)


def some_pictures(count: int, height: int, width: int) -> Columns:
    """Pictures with edges and gradients, no two alike."""
    rng = np.random.default_rng(0)
    images = np.empty((count, height, width, 3), np.uint8)
    for image in images:
        coarse = rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8)
        cv2.resize(coarse, (width, height), dst=image, interpolation=cv2.INTER_CUBIC)
    return Columns({"image": images, "label": np.arange(count, dtype=np.int32)})


def _resized(images: np.ndarray, size: int, method: str, indices: np.ndarray) -> dict[str, Any]:
    """The rows of a batch in the plainest way that copies nothing: a loop over the records."""
    out = np.empty((len(indices), size, size, 3), np.uint8)
    flags = {"linear": cv2.INTER_LINEAR, "area": cv2.INTER_AREA, "cubic": cv2.INTER_CUBIC}
    flag = flags[method]
    for into, index in zip(out, indices, strict=True):
        cv2.resize(images[index], (size, size), dst=into, interpolation=flag)
    return {"image": out, "label": indices.astype(np.int32)}


class _InPlace:
    """The pictures as they lie in memory: operators read them there."""

    owned_rows = True  # nobody writes into them
    thread_safe = True

    def __init__(self, pictures: Columns) -> None:
        self._images = list(pictures.arrays["image"])

    def __len__(self) -> int:
        return len(self._images)

    def gather(self, indices: np.ndarray) -> dict[str, Any]:
        rows = np.empty(len(indices), object)
        for row, index in enumerate(indices.tolist()):
            rows[row] = self._images[index]
        return {"image": rows, "label": indices.astype(np.int32)}

    def record_spec(self) -> dict[str, Any]:
        image = jax.ShapeDtypeStruct(self._images[0].shape, np.dtype("uint8"))
        return {"image": image, "label": jax.ShapeDtypeStruct((), np.dtype("int32"))}
