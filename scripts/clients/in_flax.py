"""A plain loop of flax (nnx) around a `DataLoader`, saved with the model by a `CheckpointManager`.

    python in_flax.py FOLDER STEPS

Run again with the same folder, it goes on after the last step that was saved. Its losses are
those of a run that was never stopped.

Tried with flax 0.12.8 and 0.12.12, and orbax-checkpoint 0.12.8: releases, not commits.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from loader import DataLoader, LoaderRestore, LoaderSave, Shuffle, masked_mean

SAVE_EVERY, EVALUATE_EVERY = 5, 10


def points(seed: int, count: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)
    return {"x": x, "y": np.sin(x.sum(axis=1))}


def loss_of(model: nnx.Linear, batch: dict[str, jax.Array]) -> jax.Array:
    return masked_mean((model(batch["x"])[:, 0] - batch["y"]) ** 2, batch["valid_mask"])


def steps_of(graph: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A step of training, and one of evaluation that gives a sum and a count."""

    def train_step(state: Any, batch: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
        model, optimizer = nnx.merge(graph, state)
        loss, gradients = nnx.value_and_grad(loss_of)(model, batch)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), loss

    def eval_step(state: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        count = batch["valid_mask"].sum()
        return loss_of(nnx.merge(graph, state)[0], batch) * count, count

    return train_step, eval_step


def train(folder: str, steps: int) -> Iterator[tuple[int, float, float | None]]:
    """The step, the loss, and now and then the loss on the held-out points."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    loader = DataLoader(
        points(0, 1003), batch_size=64, order=Shuffle(seed=0), epochs=None, steps=steps, mesh=mesh
    )
    held_out = DataLoader(points(1, 203), batch_size=64, mesh=mesh).from_start()

    model = nnx.Linear(8, 1, rngs=nnx.Rngs(0))
    graph, state = nnx.split((model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)))
    everywhere = NamedSharding(mesh, P())
    state = jax.device_put(state, everywhere)

    shardings = everywhere, NamedSharding(mesh, P("data"))  # the batch is split over its rows
    train_step, eval_step = steps_of(graph)
    train_step = jax.jit(train_step, in_shardings=shardings, donate_argnums=0)
    train_step = train_step.lower(state, loader.batch_spec()).compile()  # before anything is read
    eval_step = jax.jit(eval_step, in_shardings=shardings)

    with ocp.CheckpointManager(folder) as manager, loader:
        if manager.latest_step() is not None:
            like = ocp.args.Composite(
                state=ocp.args.StandardRestore(nnx.to_pure_dict(state)), data=LoaderRestore(loader)
            )
            restored = manager.restore(manager.latest_step(), args=like)
            nnx.replace_by_pure_dict(state, restored.state)
        for batch in loader:
            state, loss = train_step(state, batch)
            done, held_out_loss = loader.step, None
            if done % SAVE_EVERY == 0:
                pure = ocp.args.StandardSave(nnx.to_pure_dict(state))
                manager.save(done, args=ocp.args.Composite(state=pure, data=LoaderSave(loader)))
            if done % EVALUATE_EVERY == 0:
                sums = [eval_step(state, each) for each in held_out]  # the same batches each time
                held_out_loss = float(sum(s for s, _ in sums) / sum(n for _, n in sums))
            yield done, float(loss), held_out_loss


if __name__ == "__main__":
    for done, loss, held_out_loss in train(sys.argv[1], int(sys.argv[2])):
        print(done, loss, held_out_loss, flush=True)
