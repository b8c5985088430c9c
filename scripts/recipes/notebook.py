# %% [markdown]
# A run that goes on after the kernel was restarted. Run all cells, at any time, again.

# %% The loader. Make it in one cell, and take batches from it in another.
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from loader import DataLoader, Shuffle

x = np.random.default_rng(0).normal(size=(640, 3)).astype(np.float32)
data = {"x": x, "y": x @ np.array([1, 2, 3], np.float32)}
loader = DataLoader(data, batch_size=32, order=Shuffle(seed=0), epochs=5)

# %% Go on where the last run was, if there was one. A checkpoint that was cut off is passed over.
weights = jnp.zeros(3)
checkpoints = ocp.training.Checkpointer(str(Path("run").absolute()))
if checkpoints.latest is not None:
    parts = {"model": {"weights": weights}, "data": loader}
    weights = checkpoints.load_checkpointables(None, parts)["model"]["weights"]
print(f"step {loader.step} of {len(loader)}")


# %% Train. After a restart of the kernel, this goes on after the last checkpoint.
@jax.jit
def step(weights, batch):
    gradient = jax.grad(lambda w: ((batch["x"] @ w - batch["y"]) ** 2).mean())(weights)
    return weights - 0.1 * gradient


first = loader.step
for batch in loader:
    weights = step(weights, batch)
    if loader.step % 10 == 0:  # model and loader in one call: both are saved, or neither is
        parts = {"model": {"weights": weights}, "data": loader}
        checkpoints.save_checkpointables(loader.step, parts)
    if loader.step == first + 50:  # here the kernel ends
        break
loader.close()  # ends the helper thread; to loop again starts another
checkpoints.close()

# %% Look at a batch, without moving the loader.
print(f"at step {loader.step}; batch 0 begins with {loader.batch_at(0)['x'][0]}; weights {weights}")
