"""A bar on stderr for what takes long, such as reading all records of a source."""

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar(what: str, total: int, progress: bool | None) -> Iterator[Callable[[int], None]]:
    """What is to be told how many of `total` are done; the bar is there always, never, or on a
    terminal only."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda done: None
        return
    from rich.console import Console  # only here: most runs show no bar
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as shown:
        task = shown.add_task(what, total=total)
        yield lambda done: shown.update(task, completed=done)
