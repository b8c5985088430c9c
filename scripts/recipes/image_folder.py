"""A folder of images, a folder in it for each class: trained on, and held-out accuracy, exact."""

from pathlib import Path

import cv2
import jax
import jax.numpy as jnp
import numpy as np

from loader import DataLoader, ImageFolderSource, Shuffle, Threads, masked_mean
from operators import DecodeImage, Normalize, RandomFlip, Resize


def write_some_images(folder: Path, count: int, seed: int) -> None:
    """Replace this by a folder of your own."""
    random = np.random.default_rng(seed)
    for number in range(count):
        name, level = [("dark", 60), ("light", 190)][number % 2]
        (folder / name).mkdir(parents=True, exist_ok=True)
        height, width = random.integers(24, 48, 2)  # of varied sizes
        pixels = random.integers(level - 50, level + 50, (height, width, 3), np.uint8)
        cv2.imwrite(str(folder / name / f"{number}.jpg"), pixels)


write_some_images(Path("train"), 60, seed=0)
write_some_images(Path("test"), 21, seed=1)

to_one_size = [DecodeImage("image"), Resize("image", 32, method="area")]
normalize = Normalize("image", mean=127.5, std=64.0, on="device")
images = ImageFolderSource("train")
train = DataLoader(
    images,
    batch_size=16,
    order=Shuffle(seed=0),
    epochs=4,
    operators=[*to_one_size, RandomFlip("image", seed=1), normalize],
    workers=Threads(2),  # two threads decode
)
held_out = ImageFolderSource("test", classes=images.classes)  # the same labels
test = DataLoader(held_out, batch_size=16, operators=[*to_one_size, normalize])


def logits(weights, batch):
    return batch["image"].mean((1, 2)) @ weights


@jax.jit
def step(weights, batch):
    def loss(weights):
        chances = jax.nn.log_softmax(logits(weights, batch))
        chosen = jnp.take_along_axis(chances, batch["label"][:, None], axis=1)[:, 0]
        return masked_mean(-chosen, batch["valid_mask"])

    return weights - 0.5 * jax.grad(loss)(weights)


@jax.jit
def hits(weights, batch):
    return ((logits(weights, batch).argmax(-1) == batch["label"]) & batch["valid_mask"]).sum()


weights = jnp.zeros((3, len(held_out.classes)))
with train, test:
    for batch in train:
        weights = step(weights, batch)
    right = sum(int(hits(weights, batch)) for batch in test)
print(f"{right} of {len(held_out)} right; classes {held_out.classes}")
assert right == len(held_out) == 21
