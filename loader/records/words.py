"""Numbers as people write them, and how many cores there are."""

import os
from collections.abc import Iterable


def bytes_in_words(count: float) -> str:
    """So many bytes: `512 B`, `3.2 kB`, `4.0 MB`, `1.5 GB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:.0f} B"


def ranges_in_words(numbers: Iterable[int]) -> str:
    """Ascending numbers: `3, 6 to 8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join(" to ".join(map(str, run)) for run in runs)


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
