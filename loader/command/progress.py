"""How far a run is: a bar on a terminal, now and then a line elsewhere."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_LINES = 10


@contextlib.contextmanager
def shown(console: Console, total: int | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Gives a function that is to be told of each line of the metrics."""
    if not console.is_terminal:
        every = 1 if total is None else max(total // _LINES, 1)
        shown_parts: set[int] = set()

        def tell(line: dict[str, Any]) -> None:
            if line["step"] // every not in shown_parts:
                shown_parts.add(line["step"] // every)
                console.print(f"step {line['step']}  {_figures(line)}", highlight=False)

        yield tell
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("training", total=total, figures="")
        yield lambda line: bar.update(task, completed=line["step"], figures=_figures(line))


def _figures(line: dict[str, Any]) -> str:
    return (
        f"loss {line['loss']:.4f}  {line['rows_per_s']:,.0f} rows/s  "
        f"waiting {line['waiting_share']:.1%}"
    )
