"""The reference loop: what [train] of a configuration asks for is learned, checkpointed, resumed.

    python scripts/train.py configs/digits.toml           train, into runs/digits
    python scripts/train.py --resume runs/digits          go on, perhaps with other --set values

A run is a folder: the configuration and `run.json` (how it was started), checkpoints of model and
loader in one call of Orbax, `metrics.jsonl` with a line for every few steps, `result.json` at the
end, and `seen`, 16 bytes for each position that was trained on: a digest of the row as the step saw
it, augmentation and all. Two runs have seen the same data in the same order if these files are
equal, whatever their batch sizes and meshes. What a killed run did after its last checkpoint is
forgotten, done and recorded again. How far `seen` goes is kept with the model, not taken from the
loader: it is there to check it.
"""

import argparse
import contextlib
import fcntl
import json
import math
import os
import shutil
import sys
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
from rich.markup import escape
from train_journal import Journal
from train_models import measure, model_of

from loader import DataLoader
from loader.command.config.config import Config, read_config
from loader.command.config.problems import ConfigError, Problem, one_line
from loader.command.main import ALL_KINDS, Parser, Shown, add_common, run
from loader.records.spec import VALID_MASK, named_leaves
from loader.records.whole_file import write_whole
from loader.state.document import read_document
from loader.state.fingerprint import FingerprintMismatch
from loader.state.orbax import DOCUMENT_NAME

SHOW_PARTS = 10  # of the steps of a run: a line is shown for each


#: Told of each line of the metrics.
Progress = Callable[[dict[str, Any]], None]


def train(
    config: Config,
    folder: Path,
    progress: Progress,
    *,
    begun: Callable[[], None] = lambda: None,
    allow_changes: Iterable[str] = (),
) -> dict[str, Any]:
    """Train to the end, from the newest checkpoint if any; `begun` is called after a step."""
    refuse_unfit_task(config)
    settings = config.train
    assert settings is not None
    with config.loader as loader, _checkpoints(folder, settings.keep) as checkpoints:
        graph, state = _fresh(config)
        counts = np.zeros(3, np.int64)  # steps, positions and rows so far
        if checkpoints.latest is not None:
            # The loader first of all, because it says why it refuses.
            saved = folder / "checkpoints" / str(checkpoints.latest.step) / "data" / DOCUMENT_NAME
            try:
                loader.set_state(read_document(saved), allow_changes=allow_changes)
            except FingerprintMismatch as error:
                options = [f"--allow {field}" for field in error.fields]
                raise ValueError(error.with_remedy(f"give {' '.join(options)}")) from error
            state, counts = _restored(checkpoints, state, counts)
        step = jax.jit(_step(graph, settings), donate_argnums=0)
        step = step.lower(state, loader.batch_spec()).compile()  # before anything is read
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
    figures = _figures(graph, state, settings, config.held_out)
    return {
        "steps": journal.step,
        "position": journal.position,
        "first_step": int(counts[0]),  # of this process: 0, or where it went on
        "first_position": int(counts[1]),
        "rows": journal.rows,  # trained on, over all processes: more if any position came twice
        "digest": digest,  # of all rows seen, in the order of their positions
        "figures": {k: v if math.isfinite(v) else None for k, v in figures.items()},
        "stats": stats.scalars(),
    }


def refuse_unfit_task(config: Config) -> None:
    """Raise `ConfigError` if the task cannot use the batches; nothing is computed."""
    settings, document = config.train, config.document
    if settings is None:
        message = "there is no section [train]: what is to be learned?"
        raise ConfigError(document.name, [Problem(None, message)])
    loaders = {("train", "task"): config.loader, ("held_out",): config.held_out}
    for at, loader in loaders.items():
        try:
            if loader is not None:
                nnx.eval_shape(
                    lambda batch: measure(settings.task, _model(config), batch), _task_spec(loader)
                )
        except Exception as error:
            message = f"the task does not fit the batches: {one_line(error)}"
            raise ConfigError(document.name, [Problem(document.line(at), message)]) from error


def _task_spec(loader: DataLoader) -> Any:
    """What a task is given at a time: a batch, or a microbatch."""
    spec = loader.batch_spec()
    if loader.pipeline.microbatches is None:
        return spec
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), spec)


def _model(config: Config) -> Any:
    assert config.train is not None
    return model_of(config.train.task, _task_spec(config.loader), nnx.Rngs(config.train.seed))


def _fresh(config: Config) -> tuple[Any, dict[str, Any]]:
    """The structure of the model, and the state that is trained: as the seed says."""

    def new() -> dict[str, Any]:
        params = nnx.to_pure_dict(nnx.split(_model(config))[1])
        return {"params": params, "optimizer": _optimizer(config.train).init(params)}

    everywhere = NamedSharding(config.mesh, PartitionSpec()) if config.mesh else jax.devices()[0]
    graph, _ = nnx.split(nnx.eval_shape(lambda: _model(config)))
    return graph, jax.device_put(jax.jit(new)(), everywhere)


def _optimizer(settings: Any) -> optax.GradientTransformation:
    return optax.adam(settings.learning_rate)


def _step(graph: Any, settings: Any) -> Callable[[Any, Any], tuple[Any, jax.Array]]:
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
        measured = measure(task, model, rows)
        weights = measured.pop("weights")
        return {"weights": weights.sum(), **{k: (v * weights).sum() for k, v in measured.items()}}

    if batch[VALID_MASK].ndim == 1:
        return of_rows(batch)
    return jax.tree.map(lambda leaf: leaf.sum(0), jax.lax.map(of_rows, batch))


def _figures(graph: Any, state: Any, settings: Any, held_out: Any) -> dict[str, float]:
    """What the model gives on what is held out."""
    if held_out is None:
        return {}
    sums = jax.jit(lambda params, batch: _sums(settings.task, nnx.merge(graph, params), batch))
    totals: dict[str, float] = {}
    with held_out:  # its workers end with it
        for batch in held_out.from_start():
            for name, value in sums(state["params"], batch).items():
                totals[name] = totals.get(name, 0.0) + float(value)
    weights = totals.pop("weights")
    if not weights:
        raise ValueError("nothing can be measured: no row of [held_out] counts, all are masked")
    return {name: value / weights for name, value in totals.items()}


# Checkpoints


@contextlib.contextmanager
def _checkpoints(folder: Path, keep: int) -> Iterator[ocp.training.Checkpointer]:
    newest: Any = ocp.training.preservation_policies.LatestN(keep)
    with ocp.training.Checkpointer(
        str((folder / "checkpoints").absolute()),
        preservation_policy=newest,
        cleanup_tmp_directories=True,
    ) as checkpoints:
        yield checkpoints


def _save(checkpoints: Any, journal: Journal, state: Any, loader: DataLoader) -> None:
    counts = np.array([journal.step, journal.position, journal.rows])
    parts = {"state": state, "counts": {"counts": counts}, "data": loader}
    checkpoints.save_checkpointables_async(journal.step, parts, force=True)


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


# The command


def _train(options: argparse.Namespace) -> Shown:
    """Begin a run, or go on with the one in a folder."""
    steps = [] if options.steps is None else [f"loader.steps={options.steps}"]
    changes = [*options.set, *steps]
    if options.resume is None:
        folder, place = options.into or Path("runs") / options.config.stem, Path.cwd()
        if (folder / "run.json").exists():
            raise ValueError(
                f"there is a run in {folder} already: go on with --resume {folder}, or name "
                "another folder with --into"
            )
        config = read_config(options.config, ALL_KINDS, changes, options.trust)
        refuse_unfit_task(config)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # of one that took no step
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(options.config, folder / "config.toml")
        return _run(options, config, folder, {"folder": str(place), "changes": changes})
    folder = options.resume.absolute()
    started = _started(folder)
    started["changes"] += changes
    place = os.path.realpath(started["folder"])
    if place not in (os.getcwd(), *map(os.path.realpath, options.trust)):
        raise ValueError(
            f"the run was started in {place}, and its paths and modules are found there: go on "
            f"from that folder; or, if you trust what is in it, give --trust {place}"
        )
    with contextlib.chdir(place):  # paths in the configuration are as they were
        config = read_config(folder / "config.toml", ALL_KINDS, started["changes"], options.trust)
        return _run(options, config, folder, started)


def _started(folder: Path) -> dict[str, Any]:
    """How the run in this folder was started."""
    file = folder / "run.json"
    try:
        saved = json.loads(file.read_text())
        return {"folder": str(saved["folder"]), "changes": list(map(str, saved["changes"]))}
    except FileNotFoundError as error:
        raise ValueError(f"there is no run in {folder}: begin with train.py CONFIG") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged: {error}") from error


def _run(
    options: argparse.Namespace, config: Config, folder: Path, started: dict[str, Any]
) -> Shown:
    def begun() -> None:  # from now on the run can go on
        write_whole(folder / "run.json", json.dumps(started, indent=2).encode())

    shown = -1

    def tell(line: dict[str, Any]) -> None:
        nonlocal shown
        part = line["step"] * SHOW_PARTS // (line["end"] or sys.maxsize)
        if part != shown or line["end"] is None:
            figures = f"{line['rows_per_s']:,.0f} rows/s  waiting {line['waiting_share']:.1%}"
            out = sys.stderr if options.json else sys.stdout
            print(f"step {line['step']}  loss {line['loss']:.4f}  {figures}", file=out, flush=True)
        shown = part

    with alone(folder):
        (folder / "result.json").unlink(missing_ok=True)
        try:
            result = train(config, folder, tell, begun=begun, allow_changes=options.allow)
        except KeyboardInterrupt:
            print(f"go on with: train.py --resume {folder}", file=sys.stderr)
            raise
    write_whole(folder / "result.json", json.dumps(result, indent=2).encode())
    return result, lambda console: console.print(_in_words(result, folder), highlight=False)


def _in_words(result: dict[str, Any], folder: Path) -> str:
    went_on = f", from step {result['first_step']} on" if result["first_step"] else ""
    lines = [f"steps     {result['steps']:,}{went_on}; {result['position']:,} records"]
    for name, value in result["figures"].items():
        lines.append(f"held out  {name} {math.nan if value is None else value:.4f}")
    return "\n".join([*lines, f"seen      {result['digest']}", f"folder    {escape(str(folder))}"])


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """While this lasts, no other process runs in the folder."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"another process is running in {folder}: wait for it") from error
        yield


def main(arguments: list[str] | None = None) -> int:
    """Run the script; gives its exit status."""
    words = "Train what [train] of a configuration says, with checkpoints."
    parser = Parser(prog="train.py", description=words)
    add_common(parser, changes=True)
    parser.add_argument("config", type=Path, nargs="?", metavar="CONFIG")
    parser.add_argument("--into", type=Path, metavar="DIR", help="folder of the run (runs/NAME)")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run in DIR")
    parser.add_argument("--steps", type=int, help="end after so many: --set loader.steps=...")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="FIELD",
        help="a field of the fingerprint that may differ, such as order.seed, with --resume",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if (options.config is None) == (options.resume is None):
        parser.error("give a CONFIG to begin with, or --resume DIR to go on")
    if options.into is not None and options.resume is not None:
        parser.error("--into has no effect with --resume")
    options.run = _train
    return run(options, "train.py")


if __name__ == "__main__":
    raise SystemExit(main())
