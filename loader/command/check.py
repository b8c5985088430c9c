"""What a configuration comes to: the flow, the steps, the memory, before a step is taken."""

import math
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loader.command.calls import MISSING, Reader
from loader.command.config import Config
from loader.command.train import first_loss
from loader.data_loader import DataLoader
from loader.records.spec import is_text, named_leaves


def check(config: Config) -> dict[str, Any]:
    """What there is to know without a training step. The first batch is made, and measured."""
    loader, settings = config.loader(), config.settings
    plan = loader.plan
    _try_first_batch(config, loader)
    per_device = _bytes_on_a_device(loader)
    facts = {
        "flow": flow(config, loader),
        "records": plan.num_records,
        "steps_per_epoch": loader.steps_per_epoch,
        "steps": plan.end,
        "leaves": {
            name: {"shape": list(leaf.shape), "dtype": str(leaf.dtype)}
            for name, leaf in named_leaves(loader.batch_spec())
        },
        "bytes_per_device_and_batch": per_device,
        # Those under way, the one in the loop and the one before it: see loader/prefetch.py.
        "bytes_per_device": per_device * (settings.prefetch + 2),
    }
    if (held_out := config.held_out()) is not None:
        facts["held_out_records"] = held_out.plan.num_records
    return facts


def _try_first_batch(config: Config, loader: DataLoader) -> None:
    if loader.plan.end == 0:
        return
    reader = Reader(config.document, config.kinds)
    batch = reader.attempt(("source",), lambda: first_batch(loader))
    if batch is not MISSING and config.train is not None:
        loss = reader.attempt(("train", "task"), lambda: first_loss(config, loader, batch))
        if loss is not MISSING and not math.isfinite(loss):
            reader.note(
                ("train", "task"),
                f"the loss of the first batch is {loss}: there are labels or tokens that the task "
                "does not know; see classes, vocabulary",
            )
    reader.refuse_problems()


def first_batch(loader: DataLoader) -> Any:
    """The batch of step 0, on its devices; on the host if it holds texts, which stay there."""
    texts = [leaf for _, leaf in named_leaves(loader.batch_spec()) if is_text(leaf.dtype)]
    return loader.host_batch_at(0) if texts else loader.batch_at(0)


def flow(config: Config, loader: DataLoader) -> dict[str, str]:
    """The stages in the order in which data moves, each in a few words."""
    settings, tree = config.settings, config.document.tree
    mesh = config.mesh
    devices = "the default device" if mesh is None else f"a mesh of {mesh.size} devices"
    axes = "" if mesh is None else f", {dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))}"
    stages = {
        "source": repr(config.source),
        "order": repr(config.order),
        "operators": " -> ".join(f"{o.label} ({o.on})" for o in loader.operators),
        "batcher": f"{type(loader.batcher).__name__}, {settings.batch_size} rows",
        "placed": f"on {devices}{axes}" + (", by rules" if "sharding" in tree else ""),
        "ahead": f"{settings.prefetch} batches, {_threads(settings.threads)} for host work",
    }
    return {name: words for name, words in stages.items() if words}


def show(facts: dict[str, Any], config: Config, console: Console) -> None:
    """The same for people."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for stage, words in facts["flow"].items():
        table.add_row(Text(stage, "bold"), Text(words))
    console.print(table)
    console.print()
    config.loader().explain()
    console.print()
    steps = facts["steps"]
    total = "without end" if steps is None else f"{steps:,} in all"
    console.print(f"steps      {facts['steps_per_epoch']:,} per epoch, {total}", highlight=False)
    console.print(
        f"memory     {_size(facts['bytes_per_device_and_batch'])} per device and batch, at most "
        f"{_size(facts['bytes_per_device'])} with those under way",
        highlight=False,
    )
    if "held_out_records" in facts:
        console.print(f"held out   {facts['held_out_records']:,} records", highlight=False)
    console.print("[green]no problem found[/green]")


def _bytes_on_a_device(loader: DataLoader) -> int:
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape) if leaf.sharding else leaf.shape)
        * np.dtype(leaf.dtype).itemsize
        for _, leaf in named_leaves(loader.batch_spec())
    )


def _threads(count: int) -> str:
    return {0: "no threads", 1: "1 thread"}.get(count, f"{count} threads")


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"
