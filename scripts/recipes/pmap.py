"""Batches for `jax.pmap`: leaves of shape (devices, rows of a device, ...).

On a mesh, `jax.jit` with `DataLoader(..., mesh=mesh)` needs none of this.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from loader import DataLoader, MeshSharder, Shuffle

devices = jax.local_device_count()
mesh = jax.make_mesh((devices,), ("devices",))
x = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
loader = DataLoader(
    {"x": x, "y": x @ np.array([1, 2, 3], np.float32)},
    batch_size=8 * devices,
    microbatches=devices,  # the leading axis, one for each device
    order=Shuffle(seed=0),
    epochs=20,
    # Each device gets its part from the helper thread, before the step asks for it.
    sharder=MeshSharder(mesh, rules=[("microbatches", P("devices")), (".*", P())]),
)


@functools.partial(jax.pmap, axis_name="devices")
def step(weights, batch):
    def loss(weights):
        return ((batch["x"] @ weights - batch["y"]) ** 2 * batch["valid_mask"]).sum()

    # Sums and counts over all devices, divided once: a device may have fewer valid rows.
    gradient = jax.lax.psum(jax.grad(loss)(weights), "devices")
    count = jax.lax.psum(batch["valid_mask"].sum(), "devices")
    return weights - 0.1 * gradient / jnp.maximum(count, 1)


weights = jnp.zeros((devices, 3))  # a copy for each device
with loader:
    for batch in loader:
        assert batch["x"].shape == (devices, 8, 3)
        # One step at a time: devices made of one CPU may wait for one another for ever otherwise.
        weights = jax.block_until_ready(step(weights, batch))
print(weights[0])
np.testing.assert_allclose(weights, np.broadcast_to([1, 2, 3], (devices, 3)), atol=1e-3)
