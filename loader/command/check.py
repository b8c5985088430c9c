"""What a configuration comes to: the flow, the steps, the memory, before a step is taken."""

import math
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loader.command.config.calls import Reader
from loader.command.config.config import Config
from loader.data_loader import DataLoader
from loader.records.spec import is_text, named_leaves
from loader.records.words import bytes_in_words


def check(config: Config) -> dict[str, Any]:
    """What there is to know without a training step. The first batch is made."""
    loader, plan = config.loader, config.loader.plan
    if plan.end != 0:
        reader = Reader(config.document, {})
        reader.attempt(("source",), lambda: _first_batch(loader))
        reader.refuse_problems()
    per_device = _bytes_on_a_device(loader)
    facts = {
        "flow": flow(config),
        "records": plan.num_records,
        "steps_per_epoch": loader.steps_per_epoch,
        "steps": plan.end,
        "leaves": {
            name: {"shape": list(leaf.shape), "dtype": str(leaf.dtype)}
            for name, leaf in named_leaves(loader.batch_spec())
        },
        "bytes_per_device_and_batch": per_device,
        # Those under way, the one in the loop and the one before it.
        "bytes_per_device": per_device * (config.settings.prefetch + 2),
    }
    if config.held_out is not None:
        facts["held_out_records"] = config.held_out.plan.num_records
    return facts


def _first_batch(loader: DataLoader) -> Any:
    """The batch of step 0, on its devices; on the host if it holds texts, which stay there."""
    texts = [leaf for _, leaf in named_leaves(loader.batch_spec()) if is_text(leaf.dtype)]
    return loader.host_batch_at(0) if texts else loader.batch_at(0)


def flow(config: Config) -> dict[str, str]:
    """The stages in the order in which data moves, each in a few words."""
    loader, settings, mesh = config.loader, config.settings, config.mesh
    devices = "the default device" if mesh is None else f"a mesh of {mesh.size} devices"
    axes = "" if mesh is None else f", {dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))}"
    by_rules = ", by rules" if "sharding" in config.document.tree else ""
    threads = max(1, settings.threads)
    ahead = f"{settings.prefetch} batches, {threads} helper thread{'s' * (threads > 1)}"
    stages = {
        "source": repr(loader.pipeline.source),
        "order": repr(loader.pipeline.order),
        "operators": " -> ".join(f"{o.label} ({o.on})" for o in loader.operators),
        "batcher": f"{type(loader.batcher).__name__}, {settings.batch_size} rows",
        "placed": f"on {devices}{axes}{by_rules}",
        "ahead": ahead if settings.prefetch else "nothing: the loop makes each batch itself",
    }
    return {name: words for name, words in stages.items() if words}


def show(facts: dict[str, Any], config: Config, console: Console) -> None:
    """The same for people."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for stage, words in facts["flow"].items():
        table.add_row(Text(stage, "bold"), Text(words))
    console.print(table)
    console.print()
    config.loader.explain()
    console.print()
    total = "without end" if facts["steps"] is None else f"{facts['steps']:,} in all"
    batch, all_ = facts["bytes_per_device_and_batch"], facts["bytes_per_device"]
    lines = [
        f"steps      {facts['steps_per_epoch']:,} per epoch, {total}",
        f"memory     {bytes_in_words(batch)} per device and batch, at most {bytes_in_words(all_)} "
        "with those under way",
    ]
    if "held_out_records" in facts:
        lines.append(f"held out   {facts['held_out_records']:,} records")
    for line in lines:
        console.print(line, highlight=False)
    console.print("[green]no problem found[/green]")


def _bytes_on_a_device(loader: DataLoader) -> int:
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape) if leaf.sharding else leaf.shape)
        * np.dtype(leaf.dtype).itemsize
        for _, leaf in named_leaves(loader.batch_spec())
    )
