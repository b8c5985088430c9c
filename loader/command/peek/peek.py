"""A batch as a person would look at it: images on a sheet, texts to read, shapes and ranges.

What is shown is the batch that the training step gets, with the device operators applied. Only a
batch with leaves that no device can hold, such as texts, is shown as the host has it, and says so.
Ranges are those of real rows: padding would pull every range to zero. Least, most and mean are of
finite values; NaN and infinities are counted beside them.
"""

import dataclasses
from collections.abc import Callable, Sequence
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
from loader.command.peek.texts import TextLeaf, packings_of, print_text, texts_of, visible
from loader.data_loader import DataLoader
from loader.records.narrowing import device_dtype
from loader.records.spec import VALID_MASK, is_text, named_leaves, spec_of
from loader.records.words import ranges_in_words


@dataclasses.dataclass(frozen=True)
class LeafFacts:
    """Of texts and of arrays that differ in length, `least`, `most` and `mean` are of lengths.

    They are None where there is nothing to count, as of keys of random numbers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    sharding: str | None
    least: float | int | None = None
    most: float | int | None = None
    mean: float | None = None
    nan: int = 0
    inf: int = 0
    of_lengths: bool = False

    def to_json(self) -> dict[str, Any]:
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        least, most = named.pop("least"), named.pop("most")
        return {**named, "shape": list(self.shape), "min": least, "max": most}


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
    packings: tuple[dict[str, Any], ...]
    texts: tuple[TextLeaf, ...]

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON data. `texts` hold as many rows as were asked for."""
        return {
            "step": self.step,
            "epoch": self.epochs[0],
            "positions": list(self.positions),
            "rows": self.rows,
            "masked_rows": list(self.masked),
            "note": self.note,
            "leaves": [leaf.to_json() for leaf in self.leaves],
            "picture": None if self.sheet is None else self.sheet.to_json(),
            "packing": list(self.packings),
            "texts": [text.to_json() for text in self.texts],
        }

    def show(self, console: Console) -> None:
        """Print it for people. Marks are characters, so nothing is lost without colours."""
        console.print(self._head())
        if self.note:
            console.print(Text(visible(self.note), "yellow"))
        console.print(leaf_table(self.leaves))
        for packing in self.packings:
            console.print(packing_line(packing))
        if self.sheet is not None:
            console.print(sheet_lines(self.sheet), soft_wrap=True)
        for text in self.texts:
            print_text(console, text, self.rows)

    def _head(self) -> Text:
        first, last = self.epochs
        epoch = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        which = f"row{'s' * (len(self.masked) > 1)} {ranges_in_words(self.masked)}"
        masked = f", {len(self.masked)} of them padding ({which})"
        rows = f"{self.rows} row{'s' * (self.rows > 1)}{masked if self.masked else ''}"
        positions = f"positions {self.positions[0]} to {self.positions[1]}"
        return Text.assemble((f"step {self.step}", "bold"), f" · {epoch} · {positions} · {rows}")


def peek(
    loader: DataLoader,
    step: int,
    *,
    picture: Path,
    decode: Callable[[Sequence[int]], str] | None = None,
    rows: int = 8,
) -> Peek:
    """Look at the batch of a step; the loader does not move.

    The images, if there are any, are drawn to the file `picture`. `decode` turns token numbers into
    text; without it they are shown as numbers. Of texts and tokens, the first `rows` rows are kept.
    """
    if type(rows) is not int or rows < 0:
        raise ValueError(f"rows must be an int of at least 0, got {rows!r}")
    batch, note = _batch(loader, step)
    by_rows = _by_rows(batch, loader)
    valid = np.asarray(by_rows.get(VALID_MASK, np.ones(loader.plan.batch_size)), bool)
    real = {n: leaf if n == VALID_MASK else leaf[valid] for n, leaf in by_rows.items()}
    facts = [
        facts_of(name, leaf, real[name] if name in real else _on_host(leaf))
        for name, leaf in batch.items()
    ]
    start, stop = loader.plan.span(step)
    epochs = (start // loader.plan.num_records, (stop - 1) // loader.plan.num_records)
    shown = {name: leaf for name, leaf in by_rows.items() if name != VALID_MASK}
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
        packings=tuple(packings_of(shown, valid)),
        texts=tuple(texts_of(read, valid[:rows], decode)),
    )


def _batch(loader: DataLoader, step: int) -> tuple[dict[str, Any], str]:
    """The leaves of the batch by name, and what is to be said of where they come from."""
    batch = jax.tree.map(_joined, loader.host_batch_at(step), is_leaf=_are_texts)
    specs = named_leaves(spec_of(batch))
    staying = [name for name, spec in specs if device_dtype(spec.dtype) is None]
    if not staying:
        return dict(named_leaves(loader.batch_at(step))), ""
    return dict(named_leaves(batch)), (
        "as the host has it, before any device operator, since no device can hold these leaves: "
        f"{', '.join(staying)}"
    )


def _are_texts(node: Any) -> bool:
    return isinstance(node, list) and bool(node) and all(isinstance(n, str | bytes) for n in node)


def _joined(node: Any) -> Any:
    """A leaf as it is, a list of texts as one leaf."""
    return np.array(node, object) if isinstance(node, list) else node


def _by_rows(batch: dict[str, Any], loader: DataLoader) -> dict[str, Any]:
    """The leaves that have rows, on the host, with one axis of rows also of microbatches."""
    size, parts = loader.plan.batch_size, loader.microbatches
    rows = (size,) if parts is None else (parts, size // parts)
    found = {name: leaf for name, leaf in batch.items() if np.shape(leaf)[: len(rows)] == rows}
    return {
        name: _on_host(leaf).reshape(size, *leaf.shape[len(rows) :]) for name, leaf in found.items()
    }


def _on_host(leaf: Any) -> Any:
    """The leaf as a numpy array; keys of random numbers, which have no numbers to show, as is."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return np.asarray(leaf)


def facts_of(name: str, leaf: Any, real: np.ndarray | jax.Array) -> LeafFacts:
    """Of a leaf as it is in the batch, `real` being those of its rows that are no padding."""
    sharding = getattr(leaf, "sharding", None)
    spec = str(sharding.spec) if isinstance(sharding, NamedSharding) else None
    facts = LeafFacts(name, tuple(np.shape(leaf)), str(real.dtype), spec)
    if is_text(real.dtype):
        sizes = [len(value) for value in real.ravel() if hasattr(value, "__len__")]
        return dataclasses.replace(_counted(facts, np.array(sizes, int)), of_lengths=True)
    values = _countable(real)
    return facts if values is None else _counted(facts, values)


def _countable(values: Any) -> np.ndarray | None:
    """The values as numpy can count them: those of bfloat16 and its like as plain floats."""
    dtype = values.dtype
    if dtype == np.bool_:
        return values.astype(np.uint8)
    if jnp.issubdtype(dtype, np.integer):
        return values if dtype.kind in "iu" else values.astype(np.int32)
    if jnp.issubdtype(dtype, np.floating):
        return values if dtype.kind == "f" else values.astype(np.float32)
    return None


def _counted(facts: LeafFacts, values: np.ndarray) -> LeafFacts:
    finite = np.isfinite(values)
    kept = values if finite.all() else values[finite]
    nan = int(np.isnan(values).sum())
    inf = values.size - kept.size - nan
    if not kept.size:
        return dataclasses.replace(facts, nan=nan, inf=inf)
    with np.errstate(over="ignore"):
        mean = float(kept.mean(dtype=np.float64))
    as_python = float if kept.dtype.kind == "f" else int
    least, most = as_python(kept.min()), as_python(kept.max())
    return dataclasses.replace(facts, least=least, most=most, mean=mean, nan=nan, inf=inf)


def leaf_table(leaves: Sequence[LeafFacts]) -> Table:
    """A line for each leaf. Columns that would be empty are left out."""
    columns = {
        "leaf": [visible(leaf.name) for leaf in leaves],
        "shape": [str(leaf.shape) for leaf in leaves],
        "dtype": [leaf.dtype for leaf in leaves],
        "sharding": [leaf.sharding or "" for leaf in leaves],
        "min": [_number(leaf.least) for leaf in leaves],
        "max": [_number(leaf.most) for leaf in leaves],
        "mean": [_number(leaf.mean) for leaf in leaves],
        "": [_remark(leaf) for leaf in leaves],
    }
    table = Table(box=None, pad_edge=False, header_style="bold")
    filled = {head: cells for head, cells in columns.items() if any(cells)}
    for head in filled:
        table.add_column(
            head,
            justify="right" if head in ("min", "max", "mean") else "left",
            overflow="fold",
        )
    for cells in zip(*filled.values(), strict=True):
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return table


def _number(value: float | int | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _remark(leaf: LeafFacts) -> Text:
    counts = {"NaN": leaf.nan, "infinite": leaf.inf}
    odd = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    return Text(odd, "bold red") if odd else Text("lengths" if leaf.of_lengths else "", "dim")


def sheet_lines(sheet: Sheet) -> Text:
    """Where the picture is, and how it was drawn."""
    notes = [f"\n  {visible(name)}: {note}" for name, note in sheet.notes.items()]
    drawn = f"{sheet.path}, {sheet.which}"
    return Text.assemble(("picture ", "bold"), drawn, *notes)


def packing_line(packing: dict[str, Any]) -> Text:
    """How full the packed rows are, and how many segments they have."""
    padding = packing["padding"]
    full = "" if padding is None else f"{padding:.1%} of all places are padding, "
    counts = [count for count in packing["segments"] if count] or [0]
    least, most = min(counts), max(counts)
    segments = f"{least} to {most} segments a row" if least < most else f"{most} segments a row"
    return Text.assemble((f"{visible(packing['leaf'])} ", "bold"), full + segments)
