"""An evaluation that is exact, every record once, and can be repeated as often as you like."""

import jax
import jax.numpy as jnp
import numpy as np

from loader import DataLoader, Shuffle, masked_mean

random = np.random.default_rng(0)
x = random.normal(size=(1000, 4)).astype(np.float32)
data = {"x": x, "y": (x @ np.array([1, -2, 3, 0.5], np.float32) > 0).astype(np.int32)}
train = DataLoader(
    {name: leaf[:900] for name, leaf in data.items()},
    batch_size=64,
    order=Shuffle(seed=0),
    epochs=3,
)
# 100 records in batches of 32: the last one is padded, and `valid_mask` says which rows count.
held_out = {name: leaf[900:] for name, leaf in data.items()}
test = DataLoader(held_out, batch_size=32)


@jax.jit
def step(weights, batch):
    def loss(weights):
        return masked_mean(
            jax.nn.softplus(-(2 * batch["y"] - 1) * (batch["x"] @ weights)), batch["valid_mask"]
        )

    return weights - jax.grad(loss)(weights)


@jax.jit
def hits(weights, batch):
    return (((batch["x"] @ weights > 0) == batch["y"]) & batch["valid_mask"]).sum()


def accuracy(weights):
    """Each loop over `from_start()` begins at the first record, wherever the last one ended."""
    return sum(int(hits(weights, batch)) for batch in test.from_start()) / len(held_out["y"])


def quick(weights):
    """The same of the first two batches, while training goes on."""
    return sum(int(hits(weights, batch)) for batch in test.from_start(steps=2)) / 64


weights = jnp.zeros(4)
with train:
    for epoch in train.by_epoch():
        for batch in epoch:
            weights = step(weights, batch)
            if train.step % 10 == 0:
                print(f"step {train.step}: {quick(weights):.2f}")
        print(f"epoch {epoch.index}: {accuracy(weights):.2f}")

right = ((x[900:] @ np.asarray(weights) > 0) == data["y"][900:]).mean()
assert accuracy(weights) == accuracy(weights) == right > 0.9
