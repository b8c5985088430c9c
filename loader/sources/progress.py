"""A bar on stderr for what takes long, such as reading all records of a source."""

import sys
from collections.abc import Iterator


def shown(starts: range, end: int, what: str, progress: bool | None) -> Iterator[int]:
    """The starts, with a bar that moves as they are taken: always, never, or on a terminal only."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield from starts
        return
    from rich.console import Console  # only here: most runs show no bar
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=end - starts.start)
        for start in starts:
            yield start
            bar.update(task, completed=min(start + starts.step, end) - starts.start)
