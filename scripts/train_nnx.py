"""Flax NNX, Optax and Orbax around a `DataLoader`: a training script to copy from.

    python scripts/train_nnx.py FOLDER [--steps N]

Learns which of ten classes a point is of, on all devices there are. Run it again with the same
folder, and perhaps more steps: it goes on where it was. The parts to look for: the step compiled
from `batch_spec()` before anything is read, the loss weighted by `valid_mask`, one call of Orbax
for model and loader, an evaluation loop that runs over the same loader as often as it is asked to.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint import v1 as ocp

from loader import DataLoader, Shuffle, masked_mean

CLASSES, RECORDS = 10, 5000


def points(seed: int, count: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    label = random.integers(0, CLASSES, count)
    angle = 2 * np.pi * label / CLASSES
    middle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return {"x": (middle + random.normal(0, 0.1, (count, 2))).astype(np.float32), "label": label}


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(2, 64, rngs=rngs)
        self.outer = nnx.Linear(64, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.outer(nnx.relu(self.inner(x)))


def loss_of(model: Model, batch: dict[str, jax.Array]) -> jax.Array:
    losses = optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["label"])
    return masked_mean(losses, batch["valid_mask"])  # rows that are padding do not count


@nnx.jit
def train_step(model: Model, optimizer: nnx.Optimizer[Model], batch: Any) -> jax.Array:
    loss, gradients = nnx.value_and_grad(loss_of)(model, batch)
    optimizer.update(model, gradients)
    return loss


@nnx.jit
def hits(model: Model, batch: dict[str, jax.Array]) -> jax.Array:
    return ((model(batch["x"]).argmax(-1) == batch["label"]) & batch["valid_mask"]).sum()


def accuracy(model: Model, loader: DataLoader) -> float:
    """Over all records, each once: a loader that has ended starts again."""
    return sum(int(hits(model, batch)) for batch in loader) / loader.plan.num_records


def main() -> None:
    parser = argparse.ArgumentParser(description="Flax NNX, Optax and Orbax around a DataLoader.")
    parser.add_argument("folder", type=Path, help="where checkpoints are, or will be")
    parser.add_argument("--steps", type=int, default=400, help="train up to this step (400)")
    options = parser.parse_args()

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    train = DataLoader(
        points(0, RECORDS),
        batch_size=64,
        order=Shuffle(seed=0),
        epochs=None,
        steps=options.steps,
        mesh=mesh,
    )
    test = DataLoader(points(1, 1003), batch_size=256, mesh=mesh)

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    state = nnx.state((model, optimizer))
    nnx.update((model, optimizer), jax.device_put(state, NamedSharding(mesh, P())))
    step = train_step.lower(model, optimizer, train.batch_spec()).compile()

    with ocp.training.Checkpointer(str(options.folder.absolute())) as checkpoints, train, test:
        if checkpoints.latest is not None:
            like = {"state": nnx.to_pure_dict(nnx.state((model, optimizer))), "data": train}
            loaded = checkpoints.load_checkpointables(None, like)
            nnx.update((model, optimizer), loaded["state"])
            print(f"goes on from step {checkpoints.latest.step}")
        for batch in train:
            loss = step(model, optimizer, batch)
            number = train.get_state()["step"]
            if number % 100 == 0 or number == options.steps:
                state = nnx.to_pure_dict(nnx.state((model, optimizer)))
                checkpoints.save_checkpointables(
                    number, {"state": state, "data": train}, force=True
                )
                first, again = accuracy(model, test), accuracy(model, test)
                assert first == again, "the same loader gives the same records again"
                print(f"step {number}: loss {float(loss):.4f}, accuracy {first:.1%}")
        print(train.stats())


if __name__ == "__main__":
    main()
