"""The reference loop: a task is learned from any configuration, checkpointed, and resumed.

A run is a folder: the configuration it was started with, checkpoints of model and loader in one
call of Orbax, `metrics.jsonl` with a line for every few steps, and `seen`, 16 bytes for each
position that was trained on: a digest of the row as the step saw it, augmentation and all. Two runs
have seen the same data in the same order if these files are equal, whatever their batch sizes and
meshes. What a killed run did after its last checkpoint is forgotten, done and recorded again. How
far `seen` goes is kept with the model, not taken from the loader: it is there to check it.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp

from loader.command.config import Config, task_spec
from loader.command.settings import TrainSettings
from loader.data_loader import DataLoader
from loader.records.spec import VALID_MASK, named_leaves
from loader.runtime.stats import Stats
from loader.state.document import read_document
from loader.state.orbax import DOCUMENT_NAME

DIGEST_BYTES = 16
LOG_EVERY = 5
_CHECKPOINTS = "checkpoints"
_DIGESTS_AT_ONCE = 2**16

#: Told of each logged line: to show progress.
Progress = Callable[[dict[str, Any]], None]


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of a run."""

    steps: int
    position: int
    first_step: int  # of this process: 0, or where it went on
    first_position: int
    rows: int  # trained on, over all processes: more than positions if any came twice
    digest: str  # of all rows seen, in the order of their positions
    figures: dict[str, float]  # over what was held out
    stats: Stats  # of this process

    def to_json(self) -> dict[str, Any]:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        figures = {k: v if math.isfinite(v) else None for k, v in self.figures.items()}
        return {**fields, "figures": figures, "stats": self.stats.scalars()}


def train(
    config: Config,
    folder: Path,
    progress: Progress,
    *,
    begun: Callable[[], None] = lambda: None,
    allow_changes: Iterable[str] = (),
) -> Result:
    """Train to the end, from the newest checkpoint in the folder if there is one.

    `begun` is called once all of that has been accepted and the first step is taken.
    """
    settings = config.train
    assert settings is not None
    with config.loader() as loader, _checkpoints(folder, settings) as checkpoints:
        graph, state = _fresh(config, loader)
        counts = np.zeros(3, np.int64)  # steps, positions and rows so far
        if checkpoints.latest is not None:
            _restore_loader(loader, folder, checkpoints.latest.step, allow_changes)
            state, counts = _restored(checkpoints, state, counts)
        step = _compiled(graph, state, settings, loader)
        with Journal(folder, loader, counts) as journal:
            for batch in loader:
                state, loss = step(state, batch)
                if journal.step == counts[0]:
                    begun()
                if (line := journal.note(batch, loss)) is not None:
                    progress(line)
                if journal.step % settings.checkpoint_every == 0:
                    _save(checkpoints, journal, state, loader)
            if checkpoints.latest is None or checkpoints.latest.step < journal.step:
                _save(checkpoints, journal, state, loader)
            stats, digest = loader.stats(), journal.digest()
        figures = _figures(graph, state, settings, config.held_out())
        return Result(
            steps=journal.step,
            position=journal.position,
            first_step=int(counts[0]),
            first_position=int(counts[1]),
            rows=journal.rows,
            digest=digest,
            figures=figures,
            stats=stats,
        )


def training_step(config: Config) -> Callable[[Any], Any]:
    """The step of training by itself, on one batch after the other: to be timed."""
    assert config.train is not None
    loader = config.loader()
    graph, state = _fresh(config, loader)
    step = _compiled(graph, state, config.train, loader)

    def take(batch: Any) -> Any:
        nonlocal state
        state, loss = step(state, batch)
        return loss

    return take


def first_loss(config: Config, loader: DataLoader, batch: Any) -> float:
    """The loss of a model of zeros on a batch: not finite if it does not know the labels."""
    settings = config.train
    assert settings is not None
    abstract = nnx.eval_shape(lambda: settings.task.model(task_spec(loader), nnx.Rngs(0)))
    graph, params = nnx.split(abstract)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), nnx.to_pure_dict(params))
    sums = _measure(graph, settings)(zeros, batch)
    return float(sums["loss"] / sums["weights"])


def _fresh(config: Config, loader: DataLoader) -> tuple[Any, dict[str, Any]]:
    """The structure of the model, and the state that is trained: as the seed says."""
    settings, spec = config.train, task_spec(loader)
    assert settings is not None

    def model() -> Any:
        return settings.task.model(spec, nnx.Rngs(settings.seed))

    def new() -> dict[str, Any]:
        params = nnx.to_pure_dict(nnx.split(model())[1])
        return {"params": params, "optimizer": _optimizer(settings).init(params)}

    everywhere = NamedSharding(config.mesh, PartitionSpec()) if config.mesh else jax.devices()[0]
    graph, _ = nnx.split(nnx.eval_shape(model))
    return graph, jax.device_put(jax.jit(new)(), everywhere)


def _compiled(graph: Any, state: Any, settings: TrainSettings, loader: DataLoader) -> Any:
    """The step, compiled before anything is read."""
    step = jax.jit(_step(graph, settings), donate_argnums=0)
    return step.lower(state, loader.batch_spec()).compile()


def _optimizer(settings: TrainSettings) -> optax.GradientTransformation:
    return optax.adam(settings.learning_rate)


def _step(graph: Any, settings: TrainSettings) -> Callable[[Any, Any], tuple[Any, jax.Array]]:
    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        def loss_of(params: Any) -> jax.Array:
            sums = _sums(settings.task, nnx.merge(graph, params), batch)
            return sums["loss"] / jnp.maximum(sums["weights"], 1)

        loss, gradient = jax.value_and_grad(loss_of)(state["params"])
        updates, optimizer = _optimizer(settings).update(gradient, state["optimizer"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "optimizer": optimizer}, loss

    return step


def _sums(task: Any, model: Any, batch: Any) -> dict[str, jax.Array]:
    """The figures of a task, weighted and added up over a batch, microbatch by microbatch."""

    def of_rows(rows: Any) -> dict[str, jax.Array]:
        measured = task.measure(model, rows)
        weights = measured.pop("weights")
        return {"weights": weights.sum(), **{k: (v * weights).sum() for k, v in measured.items()}}

    if batch[VALID_MASK].ndim == 1:
        return of_rows(batch)
    return jax.tree.map(lambda leaf: leaf.sum(0), jax.lax.map(of_rows, batch))


def _measure(graph: Any, settings: TrainSettings) -> Callable[[Any, Any], dict[str, jax.Array]]:
    return jax.jit(lambda params, batch: _sums(settings.task, nnx.merge(graph, params), batch))


def _figures(graph: Any, state: Any, settings: TrainSettings, held_out: Any) -> dict[str, float]:
    if held_out is None:
        return {}
    measure = _measure(graph, settings)
    totals: dict[str, float] = {}
    with held_out:
        for batch in held_out:
            for name, value in measure(state["params"], batch).items():
                totals[name] = totals.get(name, 0.0) + float(value)
    weights = totals.pop("weights")
    if not weights:
        raise ValueError("nothing can be measured: no row of [held_out] counts, all are masked")
    return {name: value / weights for name, value in totals.items()}


# Checkpoints


@contextlib.contextmanager
def _checkpoints(folder: Path, settings: TrainSettings) -> Iterator[ocp.training.Checkpointer]:
    newest: Any = ocp.training.preservation_policies.LatestN(settings.keep)
    checkpoints = ocp.training.Checkpointer(
        str((folder / _CHECKPOINTS).absolute()),
        preservation_policy=newest,
        cleanup_tmp_directories=True,
    )
    with checkpoints:
        yield checkpoints


def _save(checkpoints: Any, journal: "Journal", state: Any, loader: DataLoader) -> None:
    parts = {"state": state, "counts": {"counts": journal.counts()}, "data": loader}
    checkpoints.save_checkpointables_async(journal.step, parts, force=True)


def _restore_loader(loader: DataLoader, folder: Path, step: int, allow: Iterable[str]) -> None:
    """Move the loader to where it was. First of all, because it says why it refuses."""
    document = read_document(folder / _CHECKPOINTS / str(step) / "data" / DOCUMENT_NAME)
    loader.set_state(document, allow_changes=allow)


def _restored(checkpoints: Any, state: Any, counts: np.ndarray) -> tuple[Any, np.ndarray]:
    """The newest state, placed like the fresh one, and how far it has come."""
    saved = dict(named_leaves(checkpoints.metadata(None).metadata))
    for name, leaf in named_leaves(state):
        shape = getattr(saved.get(name), "shape", None)
        if shape != leaf.shape:
            raise ValueError(
                f"the checkpoint is of another model: {name} is {shape} there and {leaf.shape} "
                "here; set what was changed in [train] back, or begin a new run"
            )
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state
    )
    parts = {"state": like, "counts": {"counts": counts}}
    loaded = checkpoints.load_checkpointables(None, parts)
    return loaded["state"], loaded["counts"]["counts"]


# What happened


class Journal:
    """What a run writes down as it goes."""

    def __init__(self, folder: Path, loader: DataLoader, counts: np.ndarray) -> None:
        self.step, self.position, self.rows = counts.tolist()
        self._loader = loader
        self._losses: list[jax.Array] = []
        self._stats = loader.stats()
        seen, size = folder / "seen", self.position * DIGEST_BYTES
        if self.step and (not seen.exists() or seen.stat().st_size < size):
            raise ValueError(f"{seen}, a part of the run, is missing or cut off")
        self._seen = seen.open("r+b" if self.step else "w+b", buffering=0)
        self._seen.truncate(size)
        self._metrics = (folder / "metrics.jsonl").open("a")

    def note(self, batch: Any, step_loss: jax.Array) -> dict[str, Any] | None:
        """Note a step; every few of them a line of what happened since the last."""
        first, last = self._loader.current.get_value()
        digests = row_digests(batch)[: last + 1 - first]
        self.rows += len(digests) - digests.count(bytes(DIGEST_BYTES))
        os.pwrite(self._seen.fileno(), b"".join(digests), first * DIGEST_BYTES)
        self.step, self.position = self.step + 1, last + 1
        self._losses.append(step_loss)
        if self.step % LOG_EVERY and not self._at_end():
            return None
        stats = self._loader.stats()
        since = stats - self._stats
        loss = float(np.mean(self._losses))
        if not math.isfinite(loss):
            raise ValueError(
                f"the loss is {loss} at step {self.step}: are there labels or tokens that the task "
                "does not know (classes, vocabulary)? is learning_rate too large?"
            )
        line = {
            "step": self.step,
            "end": self._loader.plan.end,
            "position": self.position,
            "epoch": first / self._loader.plan.num_records,
            "loss": loss,
            "rows_per_s": since.rows_per_s,
            "waiting_share": since.waiting_share,
            "waiting_ms": 1e3 * since.waiting_s / since.batches,
            "batch_size": self._loader.plan.batch_size,
            "devices": len(jax.tree.leaves(batch)[0].sharding.device_set),
            "time": time.time(),
        }
        self._losses, self._stats = [], stats
        self._metrics.write(json.dumps(line) + "\n")
        self._metrics.flush()
        return line

    def _at_end(self) -> bool:
        return self.step == self._loader.plan.end

    def counts(self) -> np.ndarray:
        """What is kept with the model."""
        return np.array([self.step, self.position, self.rows])

    def digest(self) -> str:
        """One digest of everything seen up to here."""
        digest = hashlib.sha256()
        self._seen.seek(0)
        while some := self._seen.read(_DIGESTS_AT_ONCE * DIGEST_BYTES):
            digest.update(some)
        return digest.hexdigest()[:32]

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._seen.close()
        self._metrics.close()


def row_digests(batch: Any) -> list[bytes]:
    """A digest of each row over all of its leaves; zeros for padding."""
    valid = np.asarray(batch[VALID_MASK]).ravel()
    columns = []
    for leaf in jax.tree.leaves(batch):
        array = np.ascontiguousarray(leaf)
        columns.append(array.reshape(valid.size, -1).view(np.uint8))
    rows = np.concatenate(columns, axis=1)
    return [
        hashlib.blake2b(row, digest_size=DIGEST_BYTES).digest() if there else bytes(DIGEST_BYTES)
        for row, there in zip(rows, valid.tolist(), strict=True)
    ]
