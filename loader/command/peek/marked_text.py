"""Rows of text as a person reads them, with segments, padding and uncounted places marked.

What is shown is safe whatever the data: control characters, line ends and all that is not seen
become visible signs, and nothing in a text is taken for markup. Every mark is a character, so that
it can also be read where there are no colours.
"""

import unicodedata
from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from loader.command.peek.runs import Run

PARTING = "┃"
UNSEEN = "·"
_COLOURS = ("cyan", "yellow")  # of every other segment
_SIGNS = {"\n": "⏎", "\r": "␍", "\t": "→", "\x7f": "␡", "\u2028": "⏎", "\u2029": "⏎"}


def visible(text: str) -> str:
    """The text with a sign for each character that would not be seen, or do harm on a terminal."""
    return "".join(char if char.isprintable() else _sign(char) for char in text)


def _sign(char: str) -> str:
    if char in _SIGNS:
        return _SIGNS[char]
    if char < " ":
        return chr(0x2400 + ord(char))  # its control picture: ␛ for escape
    if unicodedata.category(char) == "Zs":
        return char  # a space of another kind
    return ascii(char)[1:-1]  # controls, formats such as a change of direction, surrogates


def marked(runs: Sequence[Run]) -> tuple[Text, str]:
    """The row on one long line, and as long a line with ^ under each place that does not count."""
    text, under = Text(), ""
    last = None
    for run in runs:
        if last is not None and run.segment != last:
            text.append(PARTING, "bold magenta")
            under += " "
        if run.begins:
            text.append(f"(from {run.begins}) ", "dim italic")
        last = run.segment
        if run.is_padding:
            text.append(f"{UNSEEN} padding x{run.places}", "dim")
        else:
            style = _COLOURS[run.segment % 2] if run.counts else "dim underline"
            text.append(_unseen(run) if run.text_is_missing else visible(run.text), style)
        under += (" " if run.counts else "^") * (len(text) - len(under))
    return text, under


def _unseen(run: Run) -> str:
    return UNSEEN if run.places == 1 else f"{UNSEEN}x{run.places}"


def lines_of(runs: Sequence[Run], width: int, most: int, *, under: bool) -> list[Text]:
    """The row in at most so many lines of this width, and a last one that says what is left out.

    With `under`, a line with places that do not count is followed by one with the marks.
    """
    text, marks = marked(runs)
    if not text:
        return []
    starts = [0, *_breaks(text.plain, width)]
    lines: list[Text] = []
    for line, start in list(zip(text.divide(starts[1:]), starts, strict=True))[:most]:
        lines.append(line)
        below = _spread(line.plain, marks[start : start + len(line)]).rstrip()
        if under and below:
            lines.append(Text(below))
    if len(starts) > most:
        lines.append(Text(f"… {len(text) - starts[most]:,} more characters", "dim"))
    return lines


def _breaks(text: str, width: int) -> list[int]:
    """Where lines of this width begin, but for the first: behind a space, if one is near."""
    breaks, begin, used = [], 0, 0
    for place, char in enumerate(text):
        used += cell_len(char)
        if used > width and place > begin:
            near = text.rfind(" ", begin + (place - begin) * 2 // 3, place)
            begin = place if near < 0 else near + 1
            breaks.append(begin)
            used = cell_len(text[begin : place + 1])
    return breaks


def _spread(line: str, marks: str) -> str:
    """The marks as wide as what stands above them."""
    return "".join(mark * cell_len(char) for char, mark in zip(line, marks, strict=True))
