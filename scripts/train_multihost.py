"""Flax NNX, Optax and Orbax on several processes: killed on two, resumed on three.

    python scripts/train_multihost.py

starts itself on two processes of two CPU devices each, kills one of them in mid-run with SIGKILL,
starts again on three, and checks what came of it: every record was trained on exactly twice, as in
a run that nothing disturbed. One process is as good as many: under `gristmill launch` the script
is a worker, and takes as many processes as there are.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint import v1 as ocp

from loader import DataLoader, Shuffle, join_job, masked_mean

RECORDS, EPOCHS, BATCH_SIZE = 1000, 2, 24
TARGET = np.array([1.0, -2.0, 3.0, 0.5], np.float32)


def train(folder: Path) -> None:
    """The training loop, the same for any number of processes."""
    join_job()
    axis_types = (AxisType.Auto,)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=axis_types)
    everywhere = NamedSharding(mesh, P())
    x = np.random.default_rng(0).normal(size=(RECORDS, 4)).astype(np.float32)
    loader = DataLoader(
        {"id": np.arange(RECORDS), "x": x, "y": x @ TARGET},
        batch_size=BATCH_SIZE,
        order=Shuffle(seed=0),
        epochs=EPOCHS,
        mesh=mesh,
    )
    optimizer = optax.sgd(0.1)
    graph, _ = nnx.split(nnx.Linear(4, 1, rngs=nnx.Rngs(0)))

    @jax.jit
    def new_state() -> dict[str, Any]:
        params = nnx.to_pure_dict(nnx.split(nnx.Linear(4, 1, rngs=nnx.Rngs(0)))[1])
        return {"params": params, "opt": optimizer.init(params), "seen": jnp.zeros(RECORDS, int)}

    @jax.jit
    def step(
        state: dict[str, Any], batch: dict[str, jax.Array]
    ) -> tuple[dict[str, Any], jax.Array]:
        valid = batch["valid_mask"]

        def loss_of(params: Any) -> jax.Array:
            model = nnx.merge(graph, params)
            error = model(batch["x"])[:, 0] - batch["y"]
            return masked_mean(error**2, valid)

        loss, gradient = jax.value_and_grad(loss_of)(state["params"])
        updates, opt = optimizer.update(gradient, state["opt"])
        seen = state["seen"].at[jnp.where(valid, batch["id"], RECORDS)].add(1, mode="drop")
        return {
            "params": optax.apply_updates(state["params"], updates),
            "opt": opt,
            "seen": seen,
        }, loss

    state = jax.device_put(new_state(), everywhere)
    whole = sorted(path for path in folder.iterdir() if path.name.isdigit())
    if whole:
        like = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=everywhere), state
        )
        state = ocp.load_checkpointables(str(whole[-1]), {"state": like, "data": loader})["state"]
    say(f"{jax.process_count()} processes, from step {loader.get_state()['step']}")
    loss = jnp.nan
    for batch in loader:
        state, loss = step(state, batch)
        number = loader.get_state()["step"]
        if number % 5 == 0 or number == len(loader):
            ocp.save_checkpointables(
                str(folder / f"{number:06d}"), {"state": state, "data": loader}
            )
            say(f"step {number}, loss {float(loss):.5f}")
    seen = np.asarray(state["seen"])
    say(f"done: each record {seen.min()} to {seen.max()} times, loss {float(loss):.5f}")
    if jax.process_count() > 1:
        jax.distributed.shutdown()


def say(text: str) -> None:
    if jax.process_index() == 0:
        print(text, flush=True)


def launch(count: int, folder: Path, logs: Path) -> "subprocess.Popen[bytes]":
    here = Path(__file__).resolve()
    launcher = [sys.executable, "-m", "loader", "launch", "-n", str(count)]
    worker = [sys.executable, str(here), str(folder)]
    return subprocess.Popen([*launcher, "--devices", "2", "--logs", str(logs), "--", *worker])


def main() -> int:
    """Two processes, killed; then three, to the end."""
    folder = Path(tempfile.mkdtemp(prefix="multihost-"))
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    first = launch(2, checkpoints, folder / "first")
    while not (checkpoints / "000020").exists():
        if first.poll() is not None:
            print(f"the first run has ended too early: {folder / 'first'}")
            return 1
        time.sleep(0.05)
    victim = children_of(first.pid)[1]
    print(f"killing process {victim} of the first run", flush=True)
    os.killpg(victim, signal.SIGKILL)
    first.wait()
    second = launch(3, checkpoints, folder / "second")
    if second.wait() != 0:
        return 1
    log = (folder / "second" / "process-0.log").read_text()
    lines = [line for line in log.splitlines() if line.startswith(("3 processes", "done"))]
    print("\n".join(lines))
    return 0 if f"each record {EPOCHS} to {EPOCHS} times" in lines[-1] else 1


def children_of(process: int) -> list[int]:
    """The processes that this one has started, oldest first."""
    path = Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in path.read_text().split()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on two processes, killed, then on three.")
    parser.add_argument("folder", nargs="?", type=Path, help="of a worker: where checkpoints are")
    if (folder_of_worker := parser.parse_args().folder) is not None:
        train(folder_of_worker)
    else:
        raise SystemExit(main())
