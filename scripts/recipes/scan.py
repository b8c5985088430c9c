"""Several steps in one call: `lax.scan` over k batches, for steps that are shorter than a dispatch.

A batch of k * B rows in k microbatches is k batches of B rows, in the same order.
"""

import jax
import jax.numpy as jnp
import numpy as np

from loader import DataLoader, Shuffle, masked_mean

B, k = 16, 4
x = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
data = {"x": x, "y": x @ np.array([1, 2, 3], np.float32)}


def step(weights, batch):
    def loss(weights):
        errors = batch["x"] @ weights - batch["y"]
        return masked_mean(errors**2, batch["valid_mask"])  # 0 where no row is valid

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.05 * gradient, value


@jax.jit
def steps(weights, batches):
    return jax.lax.scan(step, weights, batches)


one_by_one = jnp.zeros(3)
with DataLoader(data, batch_size=B, order=Shuffle(seed=0)) as loader:
    for batch in loader:
        one_by_one, _ = jax.jit(step)(one_by_one, batch)

weights = jnp.zeros(3)
with DataLoader(data, batch_size=k * B, microbatches=k, order=Shuffle(seed=0)) as loader:
    for batches in loader:  # leaves of shape (k, B, ...)
        weights, losses = steps(weights, batches)
print(weights, losses)
# In the last call some batches are all padding: they change nothing.
np.testing.assert_allclose(weights, one_by_one, rtol=1e-5)
