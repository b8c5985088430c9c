# %% [markdown]
# A run that goes on after the kernel was restarted. Run all cells, at any time, again.

# %% The loader. Make it in one cell, and take batches from it in another.
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from loader import DataLoader, Shuffle

x = np.random.default_rng(0).normal(size=(640, 3)).astype(np.float32)
data = {"x": x, "y": x @ np.array([1, 2, 3], np.float32)}
loader = DataLoader(data, batch_size=32, order=Shuffle(seed=0), epochs=5)

# %% Go on where the last run was, if there was one.
weights = jnp.zeros(3)
if Path("run/weights.npy").exists():
    weights = jnp.asarray(np.load("run/weights.npy"))
    loader.restore("run/state")
print(f"step {loader.step} of {len(loader)}")


# %% Train. Stop this cell when you like, and run it again: no batch is lost, and none comes twice.
@jax.jit
def step(weights, batch):
    gradient = jax.grad(lambda w: ((batch["x"] @ w - batch["y"]) ** 2).mean())(weights)
    return weights - 0.1 * gradient


first = loader.step
for batch in loader:
    weights = step(weights, batch)
    if loader.step % 10 == 0:
        Path("run").mkdir(exist_ok=True)
        np.save("run/weights.npy", weights)
        loader.save("run/state")
    if loader.step == first + 50:  # here the kernel ends
        break
loader.close()  # ends the helper thread; to loop again starts another

# %% Look at a batch, without moving the loader.
print(f"at step {loader.step}; batch 0 begins with {loader.batch_at(0)['x'][0]}; weights {weights}")
