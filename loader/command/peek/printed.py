"""How the parts of a peek are printed for people. Data is never taken for markup."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loader.command.peek.leaf_facts import LeafFacts
from loader.command.peek.marked_text import PARTING, UNSEEN, lines_of, visible
from loader.command.peek.pictures import Sheet, rows_drawn
from loader.command.peek.runs import LOSS_MASK
from loader.command.peek.texts import Packing, TextLeaf, TextRow
from loader.sources.packing.packed_rows import SEGMENT_IDS

_LINES_OF_A_ROW = 12
_GUTTER = "    ┊ "  # texts may begin with spaces
_LEAST_WIDTH = 20


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as people write them: `3, 6 to 8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join(" to ".join(map(str, run)) for run in runs)


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
    drawn = f"{sheet.path}, {rows_drawn(sheet.rows, sheet.of_rows)}"
    return Text.assemble(("picture ", "bold"), drawn, *notes)


def packing_line(packing: Packing) -> Text:
    """How full the packed rows are, and how many segments they have."""
    full = "" if packing.padding is None else f"{packing.padding:.1%} of all places are padding, "
    counts = [count for count in packing.segments if count] or [0]
    least, most = min(counts), max(counts)
    segments = f"{least} to {most} segments a row" if least < most else f"{most} segments a row"
    return Text.assemble((f"{visible(packing.name)} ", "bold"), full + segments)


def print_text(console: Console, text: TextLeaf, of_rows: int) -> None:
    """The rows of a leaf that is read, each with a line that says what it is."""
    plain = console.color_system is None
    console.print()
    console.print(Text.assemble((visible(text.name), "bold"), f": {_legend(text, of_rows, plain)}"))
    width = max(_LEAST_WIDTH, console.width - len(_GUTTER))
    for row in text.rows:
        console.print(_row_line(row, SEGMENT_IDS in text.beside))
        for line in lines_of(row.runs or (), width, _LINES_OF_A_ROW, under=plain):
            console.print(
                Text.assemble((_GUTTER, "dim"), line), no_wrap=True, overflow="ignore", crop=False
            )


def _legend(text: TextLeaf, of_rows: int, plain: bool) -> str:
    """How many rows are shown, and what the marks in them mean."""
    runs = [run for row in text.rows for run in row.runs or ()]
    parts = [f"{len(text.rows)} of {of_rows} rows as {visible(text.shown_as)}"]
    if SEGMENT_IDS in text.beside:
        parts.append(f"{PARTING} between segments")
    if any(run.begins for run in runs):
        parts.append("(from n) where a record goes on that was split")
    if any(run.text_is_missing for run in runs):
        parts.append(f"{UNSEEN} for tokens without text")
    if any(row.uncounted for row in text.rows):
        parts.append(f"{'^ under' if plain else 'underlined:'} places where {LOSS_MASK} is False")
    return "; ".join(parts)


def _row_line(row: TextRow, segmented: bool) -> Text:
    return Text(f"  row {row.row} · {' · '.join(_said_of(row, segmented))}", "dim")


def _said_of(row: TextRow, segmented: bool) -> Iterator[str]:
    if row.runs is None:
        yield "padding, valid_mask is False"
        return
    if not row.places:
        yield "empty"
    else:
        yield f"{row.places:,} places" if segmented else f"{row.places:,} long"
    if segmented:
        count = len(row.segments)
        yield f"{count} segment{'' if count == 1 else 's'}"
    if row.padding:
        yield f"{row.padding:,} padding"
    if row.uncounted:
        yield f"{row.uncounted:,} uncounted"
