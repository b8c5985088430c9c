"""A batch as a person would look at it: images on a sheet, texts to read, shapes and ranges.

What is shown is the batch that the training step gets, with the device operators applied. Only a
batch with leaves that no device can hold, such as texts, is shown as the host has it, and says so.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.text import Text

from loader.command.peek.leaf_facts import LeafFacts, facts_of
from loader.command.peek.marked_text import visible
from loader.command.peek.pictures import Sheet, draw_sheet
from loader.command.peek.printed import leaf_table, packing_line, print_text, ranges, sheet_lines
from loader.command.peek.texts import Packing, TextLeaf, packings_of, texts_of
from loader.data_loader import DataLoader
from loader.records.narrowing import device_dtype
from loader.records.spec import VALID_MASK, named_leaves, spec_of


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
    packings: tuple[Packing, ...]
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
            "packing": [packing.to_json() for packing in self.packings],
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
        which = f"row{'s' * (len(self.masked) > 1)} {ranges(self.masked)}"
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
