"""What a configuration comes to: the flow, the steps, the memory, before a step is taken."""

import math
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loader.command.advice import advice_on
from loader.command.config.calls import Reader
from loader.command.config.config import Config
from loader.command.config.problems import ConfigError
from loader.data_loader import DataLoader
from loader.records.spec import is_text, named_leaves
from loader.records.words import bytes_in_words
from loader.runtime.paper.much import reads_much
from loader.runtime.workers.auto import Auto


def check(config: Config) -> dict[str, Any]:
    """What there is to know without a training step. The first batch is made."""
    loader, plan, spec = config.loader, config.loader.plan, config.loader.batch_spec()
    leaves = dict(named_leaves(spec))
    if plan.end != 0:
        reader = Reader(config.document, {})
        texts = any(is_text(leaf.dtype) for leaf in leaves.values())  # they stay on the host
        reader.attempt(("source",), lambda: (loader.host_batch_at if texts else loader.batch_at)(0))
        if reader.problems:
            raise ConfigError(config.document.name, reader.problems)
    per_device = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape) if leaf.sharding else leaf.shape)
        * np.dtype(leaf.dtype).itemsize
        for leaf in leaves.values()
    )
    shapes = {n: {"shape": list(s.shape), "dtype": str(s.dtype)} for n, s in leaves.items()}
    facts = {
        "flow": _flow(config),
        "records": plan.num_records,
        "steps_per_epoch": loader.steps_per_epoch,
        "steps": plan.end,
        "leaves": shapes,
        "bytes_per_device_and_batch": per_device,
        # Those under way, the one in the loop and the one before it.
        "bytes_per_device": per_device * (config.settings.prefetch + 2),
    }
    advice = advice_on(loader) if plan.end != 0 else []
    much = reads_much(loader.pipeline, plan.batch_size)
    if advice or much:
        facts["advice"] = [*advice, *filter(None, [much])]
    if config.held_out is not None:
        facts["held_out_records"] = config.held_out.plan.num_records
    return facts


def _flow(config: Config) -> dict[str, str]:
    """The stages in the order in which data moves, each in a few words."""
    loader, settings, mesh = config.loader, config.settings, config.mesh
    placed = "on the default device"
    if mesh is not None:
        placed = f"on a mesh of {mesh.size} devices, {dict(mesh.shape)}"
    ahead = f"{settings.prefetch} batches, by {_workers(loader)}"
    stages = {
        "source": repr(loader.pipeline.source),
        "order": repr(loader.pipeline.order),
        "operators": " -> ".join(f"{o.label} ({o.on})" for o in loader.operators),
        "batcher": f"{type(loader.batcher).__name__}, {settings.batch_size} rows",
        "placed": placed + (", by rules" if "sharding" in config.document.tree else ""),
        "ahead": ahead if settings.prefetch else "nothing: the loop makes each batch itself",
    }
    return {name: words for name, words in stages.items() if words}


def _workers(loader: DataLoader) -> str:
    if not isinstance(loader.workers, Auto):
        return f"{type(loader.workers).__name__}({getattr(loader.workers, 'count', '...')})"
    alone = loader.pipeline.in_one_thread()
    if alone is None:
        return "threads, as many as gain something"
    return f"one thread: {alone} does not say thread_safe"


def show(facts: dict[str, Any], config: Config, console: Console) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    for stage, words in facts["flow"].items():
        table.add_row(Text(stage, "bold"), Text(words))
    console.print(table, "")
    table = config.loader.explain()
    total = "without end" if facts["steps"] is None else f"{facts['steps']:,} in all"
    batch = bytes_in_words(facts["bytes_per_device_and_batch"])
    whole = bytes_in_words(facts["bytes_per_device"])
    lines = [
        f"steps      {facts['steps_per_epoch']:,} per epoch, {total}",
        f"memory     {batch} per device and batch, at most {whole} with those under way",
    ]
    if "held_out_records" in facts:
        lines.append(f"held out   {facts['held_out_records']:,} records")
    lines += [
        f"advice     {escape(words)}" for words in facts.get("advice", []) if words not in table
    ]
    console.print("", *lines, "[green]no problem found[/green]", sep="\n", highlight=False)
