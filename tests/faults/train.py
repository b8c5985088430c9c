"""A small training run that saves at every step, to be killed: train.py KIND FOLDER [WAY].

It says on its standard output what it is doing. With WAY it leaves by itself, in the middle of its
third save or of its first restore.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp0
from orbax.checkpoint import v1 as ocp

from loader import DataLoader, Shuffle
from loader.state.orbax import LoaderRestore, LoaderSave

RECORDS = 53
Model = dict[str, Any]


def make_loader() -> DataLoader:
    data = {"id": np.arange(RECORDS), "x": np.sqrt(np.arange(RECORDS)).astype(np.float32)}
    return DataLoader(data, batch_size=8, order=Shuffle(7), epochs=3)


def new_model() -> Model:
    return {"w": jnp.zeros(()), "seen": jnp.zeros(RECORDS, jnp.int32)}


@jax.jit
def train_step(model: Model, batch: Any) -> Model:
    ids = jnp.where(batch["valid_mask"], batch["id"], RECORDS)
    seen = model["seen"].at[ids].add(1, mode="drop")
    return {"w": model["w"] * 0.9 + (batch["x"] * batch["valid_mask"]).sum(), "seen": seen}


class Plain:
    """The loader's own files, and the model beside them, written first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, model: Model, loader: DataLoader) -> None:
        path = self.folder / f"model-{step}.npz"
        with (self.folder / "partial").open("wb") as file:
            np.savez(file, w=model["w"], seen=model["seen"])
        (self.folder / "partial").replace(path)
        loader.save(self.folder / "data")

    def restore(self, loader: DataLoader) -> Model | None:
        if not (self.folder / "data").is_dir() or not list((self.folder / "data").glob("0*.json")):
            return None
        loader.restore(self.folder / "data")
        with np.load(self.folder / f"model-{loader.get_state()['step']}.npz") as arrays:
            return {key: jnp.asarray(arrays[key]) for key in arrays}


class OrbaxV0:
    def __init__(self, folder: Path) -> None:
        options = ocp0.CheckpointManagerOptions(max_to_keep=2)
        self.manager = ocp0.CheckpointManager(folder / "v0", options=options)

    def save(self, step: int, model: Model, loader: DataLoader) -> None:
        args = ocp0.args.Composite(state=ocp0.args.StandardSave(model), data=LoaderSave(loader))
        self.manager.save(step, args=args)
        self.manager.wait_until_finished()

    def restore(self, loader: DataLoader) -> Model | None:
        step = self.manager.latest_step()
        if step is None:
            return None
        state, data = ocp0.args.StandardRestore(new_model()), LoaderRestore(loader)
        result: Any = self.manager.restore(step, args=ocp0.args.Composite(state=state, data=data))
        return result.state


class OrbaxV1:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "v1"
        self.folder.mkdir(exist_ok=True)

    def save(self, step: int, model: Model, loader: DataLoader) -> None:
        ocp.save_checkpointables(str(self.folder / f"{step:04d}"), {"state": model, "data": loader})

    def restore(self, loader: DataLoader) -> Model | None:
        whole = sorted(path for path in self.folder.iterdir() if path.name.isdigit())
        if not whole:
            return None
        parts = {"state": new_model(), "data": loader}
        return ocp.load_checkpointables(str(whole[-1]), parts)["state"]


KINDS = {"plain": Plain, "v0": OrbaxV0, "v1": OrbaxV1}


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def leave(way: str) -> None:
    if way == "exit":
        sys.exit(7)
    if way == "exception":
        raise ValueError("as planned")
    os.kill(os.getpid(), signal.SIGINT)


def leave_soon(way: str) -> None:
    """In a thousandth of a second, wherever the main thread is then."""
    signal.signal(signal.SIGALRM, lambda *_: leave(way))
    signal.setitimer(signal.ITIMER_REAL, 0.001)


def main() -> None:
    kind, folder, *way = sys.argv[1:]
    store = KINDS[kind](Path(folder))
    loader = make_loader()
    say("restoring")
    if way and way[0] == "restore":
        leave_soon(way[1])
    loader.start()  # as one does, to overlap the restoring
    model = store.restore(loader) or new_model()
    delivered = {}
    say("running")
    for batch in loader:
        step = loader.get_state()["step"]
        model = train_step(model, batch)
        delivered[step] = np.asarray(batch["id"])[np.asarray(batch["valid_mask"])].tolist()
        say(f"save {step}")
        if way and way[0] == "save" and step == 3:
            leave_soon(way[1])
        store.save(step, model, loader)
        say(f"saved {step}")
    result = {"seen": model["seen"].tolist(), "w": float(model["w"]), "delivered": delivered}
    (Path(folder) / "result.json").write_text(json.dumps(result))
    say("done")


if __name__ == "__main__":
    main()
