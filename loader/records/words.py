"""Numbers and texts as people can read them, and how many cores there are."""

import os
import unicodedata
from collections.abc import Iterable

_SIGNS = {"\n": "⏎", "\r": "␍", "\t": "→", "\x7f": "␡", "\u2028": "⏎", "\u2029": "⏎"}


def bytes_in_words(count: float) -> str:
    """So many bytes: `512 B`, `3.2 kB`, `4.0 MB`, `1.5 GB`, `2.0 TB`."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
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


def visible(text: str) -> str:
    """The text with a sign for each character that would not be seen, or do harm on a terminal."""

    def sign(char: str) -> str:
        if char.isprintable() or unicodedata.category(char) == "Zs":  # a space of another kind
            return char
        # Control pictures, such as ␛ for escape; else formats, surrogates and the like by number.
        picture = chr(0x2400 + ord(char)) if char < " " else ascii(char)[1:-1]
        return _SIGNS.get(char, picture)

    return "".join(map(sign, text))
