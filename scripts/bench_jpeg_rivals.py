"""tf.data and torch on JPEG images: decode, cut out at 224 x 224, flip; each as it is fastest.

Without `whole`, a random region of any size and shape is resized to 224; with it, a window of 224
is cut out of an image of 256, as it is. tf.data decodes nothing but the region. torch has Pillow,
which resizes a region in one pass, and no torchvision: that does the same by way of more Python.
"""

import functools
import importlib
import io
import math
import os
import random
from typing import Any

import grain
import numpy as np
from bench_contest import Batches, Contestant
from bench_contestants import Task
from bench_frameworks import torch_batches
from bench_jpeg import Jpegs

SIZE = 224
_SCALE, _RATIO, _TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10


def tf_contestant(task: Task, source: Jpegs, *, whole: bool) -> Contestant:
    make = functools.partial(_tf_batches, task, source, whole)
    return Contestant("tf.data", make, "tf.data", "tensorflow", ahead=16)  # it decides by itself


def torch_contestant(task: Task, source: Jpegs, *, whole: bool) -> Contestant:
    dataset: Any = WithPillow(source, whole)
    make = functools.partial(torch_batches, task, dataset, by_batch=False, workers=2)
    return Contestant("torch, 2 workers, Pillow", make, "torch", "torch", ahead=9)


def _tf_batches(task: Task, source: Jpegs, whole: bool) -> Batches:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    tf: Any = importlib.import_module("tensorflow")

    def window(data: Any) -> Any:
        if whole:
            corner = tf.random.uniform([2], 0, 256 - SIZE + 1, tf.int32)
            return tf.concat([corner, [SIZE, SIZE]], 0)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(data),
            tf.zeros([1, 0, 4]),
            min_object_covered=0.0,
            area_range=_SCALE,
            aspect_ratio_range=_RATIO,
            max_attempts=_TRIES,
            use_image_if_no_bounding_boxes=True,
        )
        return tf.concat([begin[:2], size[:2]], 0)

    def record(data: Any, label: Any) -> Any:
        image = tf.io.decode_and_crop_jpeg(data, window(data), channels=3)
        if not whole:
            image = tf.cast(tf.image.resize(image, (SIZE, SIZE)), tf.uint8)
        return {"image": tf.image.random_flip_left_right(image), "label": label}

    labels = np.arange(len(source), dtype=np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((source.blobs, labels))
    dataset = dataset.shuffle(len(source), seed=0).repeat()
    dataset = dataset.map(record, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
    return dataset.batch(task.batch_size).prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


class WithPillow:
    """The records for torch, in its worker processes."""

    def __init__(self, source: Jpegs, whole: bool) -> None:
        self._source, self._whole = source, whole

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image_module: Any = importlib.import_module("PIL.Image")
        image = image_module.open(io.BytesIO(self._source.blobs[index]))
        width, height = image.size
        image = image.convert("RGB")
        if self._whole:
            left, top = random.randint(0, width - SIZE), random.randint(0, height - SIZE)
            image = image.crop((left, top, left + SIZE, top + SIZE))
        else:
            top, left, tall, wide = region(height, width, random)
            box = left, top, left + wide, top + tall
            image = image.resize((SIZE, SIZE), image_module.Resampling.BILINEAR, box=box)
        if random.random() < 0.5:
            image = image.transpose(image_module.Transpose.FLIP_LEFT_RIGHT)
        return {"image": np.array(image), "label": np.int32(index)}


class DecodeRegionFlip(grain.transforms.RandomMap):
    """A random region at 224, for Grain, with the decoder that this loader has."""

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        import cv2

        data = np.frombuffer(element["image"], np.uint8)
        image: Any = cv2.imdecode(data, cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
        height, width = image.shape[:2]
        top, left, tall, wide = region(height, width, random)
        image = cv2.resize(image[top : top + tall, left : left + wide], (SIZE, SIZE))
        image = cv2.flip(image, 1) if rng.random() < 0.5 else image
        return {"image": image, "label": element["label"]}


def region(height: int, width: int, numbers: Any) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random region, by a generator of Python's or like it."""
    logs = math.log(_RATIO[0]), math.log(_RATIO[1])
    for _ in range(_TRIES):
        area = height * width * numbers.uniform(*_SCALE)
        ratio = math.exp(numbers.uniform(*logs))
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            top = int(numbers.uniform(0, height - tall + 1))
            return top, int(numbers.uniform(0, width - wide + 1)), tall, wide
    return 0, 0, height, width
