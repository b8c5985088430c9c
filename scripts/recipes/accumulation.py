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


@jax.jit
def step_at_once(weights, batch):
    gradient = jax.grad(lambda w: summed(w, batch) / batch["valid_mask"].sum())(weights)
    return weights - 0.1 * gradient


def train(step, microbatches):
    """Leaves are of shape (microbatches, 64 / microbatches, ...), or (64, ...) without."""
    weights, order = jnp.zeros(3), Shuffle(seed=0)
    with DataLoader(
        data, batch_size=64, order=order, epochs=3, microbatches=microbatches
    ) as loader:
        for batch in loader:  # 330 records: the last batch of an epoch has 10 of 64
            weights = step(weights, batch)
    return weights


print(train(step, microbatches=4))
np.testing.assert_allclose(train(step, 4), train(step_at_once, None), rtol=1e-5)
