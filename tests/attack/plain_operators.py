"""The operators again, on one record at a time, in plain numpy: what the oracle says they do."""

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


def mixed_up(batch: Record, draws: np.ndarray) -> Record:
    """A whole batch: every valid row with the next of a circle of them."""
    valid = batch["valid_mask"]
    circle = [row for row in np.argsort(draws[:, 0], kind="stable").tolist() if valid[row]]
    image = batch["image"].astype(np.float32)
    label = np.eye(CLASSES, dtype=np.float32)[batch["label"]] * valid[:, None]
    mixed = {"image": np.zeros_like(image), "label": np.zeros_like(label)}
    quantiles = np.linspace(0, 1, 4097)
    values = scipy.special.betaincinv(0.2, 0.2, quantiles)
    for place, row in enumerate(circle):
        other = circle[(place + 1) % len(circle)]
        share = np.interp(draws[row, 1], quantiles, values)
        for name, leaf in (("image", image), ("label", label)):
            mixed[name][row] = share * leaf[row] + (1 - share) * leaf[other]
    return {**batch, **mixed}
