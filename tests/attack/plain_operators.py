"""The operators again, on one record at a time, in plain numpy: what the oracle says they do."""

import importlib
import random
from typing import Any

import cv2
import numpy as np
import scipy.special

Record = dict[str, Any]
CLASSES = 5


def plain_records(count: int) -> Record:
    """Records of which no two are alike: stacked."""
    ids = np.arange(count, dtype=np.int32)
    x = ids[:, None, None] * 6 + np.arange(6, dtype=np.float32).reshape(3, 2) + 0.5
    return {"id": ids, "x": x.astype(np.float32)}


def pictures(count: int) -> Record:
    ids = np.arange(count, dtype=np.int32)
    pixels = (ids[:, None] * 7 + np.arange(16)).astype(np.uint8).reshape(count, 4, 4, 1)
    return {"id": ids, "image": pixels, "label": ids % CLASSES}


def token_row(count: int) -> np.ndarray:
    return (np.arange(count) * 7919 % 30011).astype(np.int32)


def documents(count: int) -> list[np.ndarray]:
    """Lists of tokens of different lengths, of which none begins as another does."""
    return [np.arange(1 + n % 7, dtype=np.int32) + 100 * (n + 1) for n in range(count)]


def text(number: int) -> str:
    return f"line {number} " + "y" * (number % 9)


def unchanged(record: Record, _: Any) -> Record:
    return record


def doubled(record: Record, _: Any) -> Record:
    return {**record, "twice": record["id"] * np.int32(2)}


def halved(record: Record, _: Any) -> Record:
    return {**record, "half": np.asarray(record["id"] // 2, record["id"].dtype)}


def noisy(record: Record, draws: np.ndarray) -> Record:
    generator = np.random.default_rng([int(number * 2**24) for number in draws])
    return {**record, "noise": np.float32(generator.random())}


def kept(record: Record, _: Any) -> Record | None:
    return record if record["id"] % 3 != 1 else None


def not_refused(record: Record, _: Any) -> Record | None:
    return record if record["id"] % 5 != 2 else None


def selected(record: Record, _: Any) -> Record:
    return {"id": record["id"]}


def renamed(record: Record, _: Any) -> Record:
    rest = {name: leaf for name, leaf in record.items() if name != "id"}
    return {**rest, "number": record["id"]}


def with_constant(record: Record, _: Any) -> Record:
    return {**record, "weight": np.float32(1.5)}


def cast(record: Record, _: Any) -> Record:
    return {**record, "id": record["id"].astype(np.int64)}


def normalized(record: Record, _: Any) -> Record:
    return {**record, "x": (record["x"] - np.float32(3.5)) * np.float32(0.5)}


def decoded(record: Record, _: Any) -> Record:
    pixels = cv2.imdecode(np.frombuffer(record["image"], np.uint8), cv2.IMREAD_GRAYSCALE)
    assert pixels is not None, "not an image"
    return {**record, "image": pixels[:, :, None]}


def flipped(record: Record, draws: np.ndarray) -> Record:
    flip = draws[0] < np.float32(0.5)
    return {**record, "image": record["image"][:, ::-1] if flip else record["image"]}


def albumented(record: Record, draws: np.ndarray) -> Record:
    """By the library itself, seeded by the draws."""
    library = importlib.import_module("albumentations")
    seed = int(draws[0] * 2**24) * 2**24 + int(draws[1] * 2**24)
    pipeline = library.Compose([library.HorizontalFlip(), library.GaussNoise()])
    pipeline.set_random_state(np.random.default_rng(seed), random.Random(seed))
    image = pipeline(image=record["image"].copy())["image"]
    return {**record, "image": image.reshape(record["image"].shape)}


def flipped_or_not(record: Record, draws: np.ndarray) -> Record:
    return flipped(record, draws[1:]) if draws[0] < np.float32(0.5) else record


def _cut(image: np.ndarray, top: int, left: int) -> np.ndarray:
    return image[top : top + 3, left : left + 3]


def center(record: Record, _: Any) -> Record:
    room = (np.array(record["image"].shape[:2]) - 3) // 2
    return {**record, "image": _cut(record["image"], *room.tolist())}


def cropped(record: Record, draws: np.ndarray) -> Record:
    """After a border of one black pixel."""
    image = np.pad(record["image"], [(1, 1), (1, 1), (0, 0)])
    rooms = np.array(image.shape[:2]) - 3
    corner = np.minimum((draws * (rooms + 1).astype(np.float32)).astype(int), rooms)
    return {**record, "image": _cut(image, *corner.tolist())}


def _nearest(image: np.ndarray, height: int, width: int) -> np.ndarray:
    rows = [int(row * (1 / (height / image.shape[0]))) for row in range(height)]
    columns = [int(column * (1 / (width / image.shape[1]))) for column in range(width)]
    return image[rows][:, columns]


def resized(record: Record, _: Any) -> Record:
    return {**record, "image": _nearest(record["image"], 6, 5)}


def region(record: Record, draws: np.ndarray) -> Record:
    """The first of ten sizes that fits, somewhere; else the middle."""
    tall, wide = record["image"].shape[:2]
    for area, ratio in zip(draws[:10].tolist(), draws[10:20].tolist(), strict=True):
        pixels = tall * wide * (0.08 + 0.92 * area)
        shape = np.exp(np.log(3 / 4) + (np.log(4 / 3) - np.log(3 / 4)) * ratio)
        height, width = round(np.sqrt(pixels / shape)), round(np.sqrt(pixels * shape))
        if 1 <= height <= tall and 1 <= width <= wide:
            rooms = tall - height, wide - width
            chances = zip(draws[20:], rooms, strict=True)
            top, left = (min(int(d * np.float32(room + 1)), room) for d, room in chances)
            break
    else:
        ratio = min(max(wide / tall, 3 / 4), 4 / 3)
        height = max(1, round(min(tall, wide / ratio)))
        width = max(1, round(min(wide, tall * ratio)))
        top, left = (tall - height) // 2, (wide - width) // 2
    part = record["image"][top : top + height, left : left + width]
    return {**record, "image": _nearest(part, 4, 4)}


def jittered(record: Record, draws: np.ndarray) -> Record:
    """Brightness and contrast of grey bytes, both from a half to three halves."""
    brightness, contrast = (np.float32(0.5) + draw * np.float32(1.0) for draw in draws[1:3])
    return {**record, "image": enhanced(record["image"], brightness, contrast)}


def enhanced(image: np.ndarray, brightness: np.float32, contrast: np.float32) -> np.ndarray:
    """Both in one line, in multiples of 1/1024."""
    mean = np.float32(image.sum()) * (np.float32(1) / np.float32(image.size))
    gain = int(np.rint(brightness * contrast * np.float32(1024)))
    offset = int(np.rint((1 - contrast) * brightness * mean * np.float32(1024)))
    values = (image.astype(np.int64) * gain + offset + 512) // 1024
    return values.clip(0, 255).astype(np.uint8)


def greyed(record: Record, _: Any) -> Record:
    """The mean of these pixels and two images made of them, in multiples of 1/32768."""
    pixels = record["image"].astype(int)
    total = 9798 * pixels + 19235 * (255 - pixels) + 3735 * (pixels // 2)
    return {**record, "image": ((total + 2**14) // 2**15).astype(np.uint8)}


def blurred(record: Record, draws: np.ndarray) -> Record:
    """Or not; in multiples of 1/256 along rows, and of 2/256 along columns."""
    if draws[0] >= np.float32(0.5):
        return record
    image = record["image"]
    padded = np.pad(image, [(3, 3), (3, 3), (0, 0)], mode="reflect").astype(np.int64)
    across, down = [0, 2, 53, 146, 53, 2, 0], [0, 2, 54, 144, 54, 2, 0]
    rows: Any = sum(weight * padded[n : n + len(image)] for n, weight in enumerate(down))
    total: Any = sum(w * rows[:, n : n + image.shape[1]] for n, w in enumerate(across))
    return {**record, "image": ((total + 1 + 2**15) // 2**16).astype(np.uint8)}


def moved(record: Record, draws: np.ndarray) -> Record:
    """By at most half of the width and 0.4 of the height, in whole pixels; 7 comes after it."""
    image = record["image"]
    tall, wide = image.shape[:2]
    right, down = (
        round(-most + 2 * most * number)
        for most, number in zip((0.5 * wide, 0.4 * tall), draws[2:4].tolist(), strict=True)
    )
    padded = np.pad(image, [(tall, tall), (wide, wide), (0, 0)], constant_values=7)
    return {
        **record,
        "image": padded[tall - down : 2 * tall - down, wide - right : 2 * wide - right],
    }


def erased(record: Record, draws: np.ndarray) -> Record:
    """The first of ten sizes that fits, of 4096 areas and as many shapes; or nothing."""
    image = record["image"].copy()
    tall, wide = image.shape[:2]
    middles = (np.floor(draws[1:21].astype(float) * 4096) + 0.5) / 4096
    for area, ratio in zip(middles[:10], middles[10:], strict=True):
        side = np.sqrt((0.1 + 0.5 * area) * tall * wide)
        shape = np.exp((np.log(0.3) + np.log(11) * ratio) / 2)
        height, width = round(side * shape), round(side / shape)
        if 1 <= height < tall and 1 <= width < wide:
            rooms = tall - height, wide - width
            chances = zip(draws[21:23], rooms, strict=True)
            top, left = (min(int(d * np.float32(room + 1)), room) for d, room in chances)
            if draws[0] < np.float32(0.5):
                image[top : top + height, left : left + width] = 9
            break
    return {**record, "image": image}


def window(record: Record, _: Any) -> Record:
    return {**record, "image": record["image"][:3, :3]}


def on_canvas(record: Record, _: Any) -> Record:
    tall, wide = record["image"].shape[:2]
    rooms = 6 - tall, 7 - wide
    sides = [*((room // 2, room - room // 2) for room in rooms), (0, 0)]
    padded = np.pad(record["image"], sides, constant_values=3)
    real = np.pad(np.ones((tall, wide, 1), bool), sides)
    return {**record, "image": padded, "real": real}


def one_hot(record: Record, _: Any) -> Record:
    return {**record, "label": np.eye(CLASSES, dtype=np.float32)[record["label"]]}


def cropped_and_flipped(record: Record, draws: np.ndarray) -> Record:
    return flipped(cropped(record, draws[:2]), draws[2:])


def tokenized(record: Record, _: Any) -> Record:
    rest = {name: leaf for name, leaf in record.items() if name != "text"}
    tokens = np.frombuffer(record["text"].encode(), np.uint8).astype(np.int32) + 3
    return {**rest, "tokens": tokens}


def cropped_tokens(record: Record, draws: np.ndarray) -> Record:
    tokens = record["tokens"]
    room = max(len(tokens) - 4, 0)
    first = min(int(draws[0] * np.float32(room + 1)), room)
    return {**record, "tokens": tokens[first : first + 4]}


def padded_tokens(record: Record, _: Any) -> Record:
    tokens = np.zeros(24, np.int32)
    tokens[: len(record["tokens"])] = record["tokens"]
    return {**record, "tokens": tokens, "loss_mask": np.arange(24) < len(record["tokens"])}


def shifted(record: Record, _: Any) -> Record:
    tokens = record["tokens"]
    counts = np.ones(len(tokens) - 1, bool)
    shorter = dict(record)
    if "loss_mask" in record:
        counts &= record["loss_mask"][1:]
    if "segment_ids" in record:
        segments = record["segment_ids"]
        counts &= (segments[1:] == segments[:-1]) & (segments[1:] > 0)
        shorter = {**record, "segment_ids": segments[:-1], "positions": record["positions"][:-1]}
    return {**shorter, "tokens": tokens[:-1], "targets": tokens[1:], "loss_mask": counts}


def _in_circle(batch: Record, draws: np.ndarray) -> tuple[dict[int, int], np.ndarray]:
    """Each valid row and the next of a circle of them; and the labels as probabilities."""
    valid = batch["valid_mask"]
    circle = [row for row in np.argsort(draws[:, 0], kind="stable").tolist() if valid[row]]
    label = batch["label"]
    label = np.eye(CLASSES, dtype=np.float32)[label] if label.ndim == 1 else label
    return dict(zip(circle, [*circle[1:], *circle[:1]], strict=True)), label * valid[:, None]


def mixed_up(batch: Record, draws: np.ndarray) -> Record:
    """A whole batch: every valid row with its partner."""
    partners, label = _in_circle(batch, draws)
    image = batch["image"].astype(np.float32)
    mixed = {"image": np.zeros_like(image), "label": np.zeros_like(label)}
    quantiles = np.linspace(0, 1, 4097)
    values = scipy.special.betaincinv(0.2, 0.2, quantiles)
    for row, other in partners.items():
        share = np.interp(draws[row, 1], quantiles, values)
        for name, leaf in (("image", image), ("label", label)):
            mixed[name][row] = share * leaf[row] + (1 - share) * leaf[other]
    return {**batch, **mixed}


def cut_mixed(batch: Record, draws: np.ndarray) -> Record:
    """A whole batch: of every valid row, a part of its partner."""
    partners, label = _in_circle(batch, draws)
    image, labels = batch["image"].copy(), label.copy()
    tall, wide = image.shape[1:3]
    for row, other in partners.items():
        share = (int(draws[row, 1] * np.float32(4096)) + 0.5) / 4096  # Beta(1, 1) is even
        spans = []
        for length, number in zip((tall, wide), draws[row, 2:], strict=True):
            half = int(0.5 * np.sqrt(share) * length)
            middle = min(int(number * np.float32(length)), length - 1)
            spans.append((max(middle - half, 0), min(middle + half, length)))
        (top, bottom), (left, right) = spans
        image[row, top:bottom, left:right] = batch["image"][other, top:bottom, left:right]
        part = (bottom - top) * (right - left) / (tall * wide)
        labels[row] = (1 - part) * label[row] + part * label[other]
    return {**batch, "image": image, "label": labels}
