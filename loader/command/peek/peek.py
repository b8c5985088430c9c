"""A batch as a person would look at it: images on a sheet, texts to read, shapes and ranges.

What is shown is the batch that the training step gets, with the device operators applied. Only a
batch with leaves that no device can hold, such as texts, is shown as the host has it, and says so.
Ranges are those of finite values in real rows: padding would pull every range to zero.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loader.command.peek.pictures import Sheet, draw_sheet
from loader.command.peek.texts import Decode, print_text, texts_of
from loader.data_loader import DataLoader
from loader.records.integers import checked_int
from loader.records.narrowing import device_dtype, on_host
from loader.records.spec import VALID_MASK, is_text, named_leaves, spec_of
from loader.records.words import ranges_in_words, visible
from loader.sharding.placement import rows_shape


@dataclasses.dataclass(frozen=True)
class LeafFacts:
    """`least`, `most`, `mean`: of lengths where these differ; None where nothing can be counted."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    sharding: str | None
    of_lengths: bool = False
    least: float | int | None = None
    most: float | int | None = None
    mean: float | None = None
    nan: int = 0
    inf: int = 0


@dataclasses.dataclass(frozen=True)
class Peek:
    """What the batch of a step looks like."""

    step: int
    epochs: tuple[int, int]  # of its first and its last position
    positions: tuple[int, int]  # first, last
    rows: int
    masked: tuple[int, ...]  # rows that are padding
    note: str
    leaves: tuple[LeafFacts, ...]
    sheet: Sheet | None
    texts: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON data. `texts` hold as many rows as were asked for."""
        leaves = [dataclasses.asdict(leaf) for leaf in self.leaves]
        return {
            **{name: getattr(self, name) for name in ("step", "rows", "note")},
            "epoch": self.epochs[0],
            "positions": list(self.positions),
            "masked_rows": list(self.masked),
            "leaves": [{**f, "min": f.pop("least"), "max": f.pop("most")} for f in leaves],
            "picture": None if self.sheet is None else self.sheet.to_json(),
            "texts": list(self.texts),
        }

    def show(self, console: Console) -> None:
        """Print it for people. Marks are characters, so nothing is lost without colours."""
        first, last = self.epochs
        epoch = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        rows = f"{self.rows} row{'s' * (self.rows > 1)}"
        if self.masked:
            which = f"row{'s' * (len(self.masked) > 1)} {ranges_in_words(self.masked)}"
            rows += f", {len(self.masked)} of them padding ({which})"
        where = f" · {epoch} · positions {self.positions[0]} to {self.positions[1]} · {rows}"
        console.print(Text.assemble((f"step {self.step}", "bold"), where))
        if self.note:
            console.print(Text(visible(self.note), "yellow"))
        console.print(_leaf_table(self.leaves))
        if self.sheet is not None:
            notes = [f"\n  {visible(name)}: {note}" for name, note in self.sheet.notes.items()]
            drawn = f"{self.sheet.path}, {self.sheet.rows} of {self.sheet.of_rows} rows"
            console.print(Text.assemble(("picture ", "bold"), drawn, *notes), soft_wrap=True)
        for text in self.texts:
            print_text(console, text, self.rows)


def peek(
    loader: DataLoader, step: int, *, picture: Path, decode: Decode | None = None, rows: int = 8
) -> Peek:
    """Look at the batch of a step; the loader does not move.

    The images, if there are any, are drawn to the file `picture`. `decode` turns token numbers into
    text; without it they are shown as numbers. Of texts and tokens, the first `rows` rows are kept.
    """
    rows = checked_int("rows", rows, 0)
    plan, (batch, note) = loader.plan, _batch(loader, step)
    by_rows = _by_rows(batch, loader)
    valid = np.asarray(by_rows.get(VALID_MASK, np.ones(plan.batch_size)), bool)
    shown = {name: leaf for name, leaf in by_rows.items() if name != VALID_MASK}
    real = {**by_rows, **{name: leaf[valid] for name, leaf in shown.items()}}
    facts = [_facts(n, leaf, real.get(n, on_host(leaf))) for n, leaf in batch.items()]
    start, stop = plan.span(step)
    epochs = (start // plan.num_records, (stop - 1) // plan.num_records)
    sheet = draw_sheet(shown, valid, Path(picture), f"step {step} · epoch {epochs[0]}")
    read = {n: leaf for n, leaf in shown.items() if sheet is None or n not in sheet.notes}
    return Peek(
        step=int(step),
        epochs=epochs,
        positions=(start, stop - 1),
        rows=len(valid),
        masked=tuple(np.flatnonzero(~valid).tolist()),
        note=note,
        leaves=tuple(facts),
        sheet=sheet,
        texts=tuple(texts_of(read, valid[:rows], decode)),
    )


def _batch(loader: DataLoader, step: int) -> tuple[dict[str, Any], str]:
    """The leaves of the batch by name, and what is to be said of where they come from."""

    def are_texts(node: Any) -> bool:  # a list of texts is one leaf
        return isinstance(node, list) and bool(node) and isinstance(node[0], str | bytes)

    def joined(node: Any) -> Any:
        return np.array(node, object) if are_texts(node) else node

    batch = jax.tree.map(joined, loader.host_batch_at(step), is_leaf=are_texts)
    specs = named_leaves(spec_of(batch))
    staying = [name for name, spec in specs if device_dtype(spec.dtype) is None]
    if not staying:
        return dict(named_leaves(loader.batch_at(step))), ""
    why = f"since no device can hold these leaves: {', '.join(staying)}"
    return dict(named_leaves(batch)), f"as the host has it, before any device operator, {why}"


def _by_rows(batch: dict[str, Any], loader: DataLoader) -> dict[str, Any]:
    """The leaves that have rows, on the host, with one axis of rows also of microbatches."""
    size = loader.plan.batch_size
    rows = rows_shape(size, loader.pipeline.microbatches)
    found = {name: leaf for name, leaf in batch.items() if np.shape(leaf)[: len(rows)] == rows}
    return {n: on_host(leaf).reshape(size, *leaf.shape[len(rows) :]) for n, leaf in found.items()}


def _facts(name: str, leaf: Any, real: Any) -> LeafFacts:
    """Of a leaf as it is in the batch, `real` being those of its rows that are not padding."""
    sharding = getattr(leaf, "sharding", None)
    spec = str(sharding.spec) if isinstance(sharding, NamedSharding) else None
    facts = LeafFacts(name, tuple(np.shape(leaf)), str(real.dtype), spec, is_text(real.dtype))
    values = _numbers(real)
    if values is None:
        return facts
    kept, nan = values[np.isfinite(values)], int(np.isnan(values).sum())
    facts = dataclasses.replace(facts, nan=nan, inf=values.size - kept.size - nan)
    if not kept.size:
        return facts
    with np.errstate(over="ignore"):
        mean = float(kept.mean(dtype=np.float64))
    return dataclasses.replace(facts, least=kept.min().item(), most=kept.max().item(), mean=mean)


def _numbers(leaf: Any) -> np.ndarray | None:
    """The numbers of a leaf, or the lengths of its texts; None where nothing can be counted."""
    if is_text(leaf.dtype):
        return np.array([len(value) for value in leaf.ravel() if hasattr(value, "__len__")], int)
    for kind, plain in ((np.bool_, np.int32), (np.integer, np.int32), (np.floating, np.float32)):
        if jnp.issubdtype(leaf.dtype, kind):  # int4, bfloat16 and their like as well
            return leaf if leaf.dtype.kind in "iuf" else leaf.astype(plain)
    return None


def _leaf_table(leaves: Sequence[LeafFacts]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("leaf", "shape", "dtype", "sharding", "min", "max", "mean", ""):
        justify = "right" if head in ("min", "max", "mean") else "left"
        table.add_column(head, justify=justify, overflow="fold")
    for leaf in leaves:
        counts = {"NaN": leaf.nan, "infinite": leaf.inf}
        odd = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        numbers = [leaf.least, leaf.most, leaf.mean]
        words = ["" if n is None else f"{n:.4g}" if isinstance(n, float) else n for n in numbers]
        remark = Text(odd, "bold red") if odd else Text("lengths" * leaf.of_lengths, "dim")
        cells = (visible(leaf.name), leaf.shape, leaf.dtype, leaf.sharding or "", *words)
        table.add_row(*(Text(str(cell)) for cell in cells), remark)
    return table
