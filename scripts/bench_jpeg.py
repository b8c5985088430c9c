"""The workload in which records are work: JPEG images to decode, crop and flip."""

import functools
import multiprocessing
from collections.abc import Iterator
from typing import Any

import grain
import numpy as np
from bench_contest import Batches, Contest, Contestant, Promise, Result
from bench_contestants import GRAIN_SETTINGS, Task, grain_contestants, gristmill
from bench_process import in_child
from bench_timing import Pace, hold

from operators import DecodeImage, RandomCrop, RandomFlip


def jpeg(pace: Pace) -> Iterator[Result]:
    """JPEG images of 256 x 256: decode, random crop to 224, random flip, host batches of 32."""
    source = in_child(Jpegs, 512, 256, 256)
    task = Task(source, 32)
    operators = [DecodeImage(), RandomCrop("image", 224, seed=0), RandomFlip("image", seed=0)]
    settings = tuple(s for s in GRAIN_SETTINGS if s.threads or (s.processes and not pace.quick))
    in_two = functools.partial(_in_two_processes, source, task.batch_size)
    contestants = (
        plain_loop(source, task.batch_size),
        gristmill(task, lambda: source, threads=2, operators=operators),
        *grain_contestants(task, (DecodeCropFlip(),), settings),
        Contestant(
            "that one thread, in 2 processes", in_two, "two cores", ahead=2, labels_only=True
        ),
    )
    shapes = {"image": ((224, 224, 3), "uint8"), "label": ((), "int32")}
    yield hold(Contest("jpeg, host, batch 32", contestants, Promise(len(source), shapes)), pace)


class Jpegs:
    """JPEG images in memory, with their number; a Grain source, and a dataset of torch."""

    def __init__(self, count: int, height: int, width: int) -> None:
        import cv2

        rng = np.random.default_rng(0)
        self.blobs = []
        for _ in range(count):
            coarse = rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8)
            image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
            self.blobs.append(cv2.imencode(".jpg", image)[1].tobytes())

    @property
    def columns(self) -> dict[str, Any]:
        """The same as a user gives them to this loader."""
        return {"image": self.blobs, "label": np.arange(len(self), dtype=np.int32)}

    def __len__(self) -> int:
        return len(self.blobs)

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return {"image": self.blobs[index], "label": np.int32(index)}


class DecodeCropFlip(grain.transforms.RandomMap):
    """What the operators do, record by record, with the same decoder."""

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        import cv2

        data = np.frombuffer(element["image"], np.uint8)
        image: Any = cv2.imdecode(data, cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
        top, left = rng.integers(0, 33, 2)
        image = image[top : top + 224, left : left + 224]
        image = cv2.flip(image, 1) if rng.random() < 0.5 else np.ascontiguousarray(image)
        return {"image": image, "label": element["label"]}


def plain_loop(source: Any, batch_size: int) -> Contestant:
    """The limit: one thread, and nothing but the decoder."""
    make = functools.partial(_decode_batches, source, batch_size)
    return Contestant("one thread, same decoder", make, "limit")


def _decode_batches(source: Any, batch_size: int, part: slice = slice(None)) -> Batches:
    """Batches in the plainest way: a loop over records, in this thread."""
    step, rng = DecodeCropFlip(), np.random.default_rng(0)
    while True:
        order = rng.permutation(len(source))[part]
        for start in range(0, len(order), batch_size):
            rows = [step.random_map(source[i], rng) for i in order[start : start + batch_size]]
            yield {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def _make_when_told(pipe: Any, source: Any, batch_size: int, part: slice) -> None:
    batches = _decode_batches(source, batch_size, part)
    while pipe.recv():
        batch = next(batches)
        pipe.send(batch["label"])


def _in_two_processes(source: Any, batch_size: int) -> Batches:
    """The same loop in two processes that hand over labels only: what two cores can do."""
    context = multiprocessing.get_context("fork")
    pipes = []
    for number in range(2):
        ours, theirs = context.Pipe()
        arguments = (theirs, source, batch_size, slice(number, None, 2))
        context.Process(target=_make_when_told, args=arguments, daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.send(True)
    while True:
        for pipe in pipes:
            labels = pipe.recv()
            pipe.send(True)
            yield {"label": labels}
