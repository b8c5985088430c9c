"""How far a run is: a bar on a terminal, now and then a line elsewhere."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_PARTS = 10
_SECONDS = 5


@contextlib.contextmanager
def shown(console: Console) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Gives a function that is to be told of each line of the metrics."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("training", total=None, figures="")
        yield lambda line: bar.update(
            task, completed=line["step"], total=line["end"], figures=_figures(line)
        )


class _Lines:
    """A line at the start and for every tenth of the steps, or now and then if there is no end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._part: int | None = None

    def __call__(self, line: dict[str, Any]) -> None:
        end = line["end"]
        part = int(time.monotonic() / _SECONDS) if end is None else line["step"] * _PARTS // end
        if part != self._part:
            self._part = part
            self._console.print(f"step {line['step']}  {_figures(line)}", highlight=False)


def _figures(line: dict[str, Any]) -> str:
    return (
        f"loss {line['loss']:.4f}  {line['rows_per_s']:,.0f} rows/s  "
        f"waiting {line['waiting_share']:.1%}"
    )
