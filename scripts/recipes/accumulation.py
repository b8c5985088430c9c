"""Gradients of a large batch, a microbatch at a time: sums and counts, divided once.

A mean of the means of microbatches would weigh the rows of a padded one more than others.
"""

import jax
import jax.numpy as jnp
import numpy as np

from loader import DataLoader, Shuffle

x = np.random.default_rng(0).normal(size=(330, 3)).astype(np.float32)
data = {"x": x, "y": x @ np.array([1, 2, 3], np.float32)}


def summed(weights, batch):
    return ((batch["x"] @ weights - batch["y"]) ** 2 * batch["valid_mask"]).sum()


@jax.jit
def step(weights, batch):
    def add(so_far, microbatch):
        gradient = jax.grad(summed)(weights, microbatch)
        return (so_far[0] + gradient, so_far[1] + microbatch["valid_mask"].sum()), None

    (gradient, count), _ = jax.lax.scan(add, (jnp.zeros(3), 0), batch)
    return weights - 0.1 * gradient / jnp.maximum(count, 1)


def train(microbatches):
    weights = jnp.zeros(3)
    order = Shuffle(seed=0)
    loader = DataLoader(data, batch_size=64, order=order, epochs=3, microbatches=microbatches)
    with loader:
        for batch in loader:  # leaves of shape (microbatches, 64 / microbatches, ...)
            weights = step(weights, batch)
    return weights


print(train(4))
np.testing.assert_allclose(train(4), train(1), rtol=1e-5)  # as if the batch were in one piece
