"""The leaves of a batch that are read rather than looked at: texts, and tokens as text or numbers.

Tokens are integers in one sequence for each row. Beside them may be `segment_ids`, `positions` and
`loss_mask`, of the same shape, which say how a row is to be read and are not shown themselves. A
*run* is a stretch of places of a row that belong to one segment and either all count or all do not.

What is shown is safe whatever the data: control characters, line ends and all that is not seen
become visible signs, and nothing in a text is taken for markup. Every mark is a character, so that
it can also be read where there are no colours.
"""

import dataclasses
import itertools
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from loader.records.spec import is_text
from loader.sources.packing.packed_rows import POSITIONS, SEGMENT_IDS

LOSS_MASK = "loss_mask"
Decode = Callable[[Sequence[int]], str]
_BESIDE = (SEGMENT_IDS, POSITIONS, LOSS_MASK)
_CUT = "\ufffd"  # what a decoder puts where the bytes of a character are not all there
_PARTING, _UNSEEN = "┃", "·"
_COLOURS = ("cyan", "yellow")  # of every other segment
_UNCOUNTED = "dim underline"
_SIGNS = {"\n": "⏎", "\r": "␍", "\t": "→", "\x7f": "␡", "\u2028": "⏎", "\u2029": "⏎"}
_LINES_OF_A_ROW, _LEAST_WIDTH = 12, 20
_GUTTER = "    ┊ "  # texts may begin with spaces


@dataclasses.dataclass(frozen=True)
class Run:
    """Places of one segment that all count or all do not. Segment 0 is padding, never marked."""

    text: str
    places: int
    segment: int = 1
    counts: bool = True
    begins: int = 0  # of the first run of a segment: where in its record that begins

    @property
    def text_is_missing(self) -> bool:
        """Whether its tokens have no text, such as those that begin and end one."""
        return self.places > 0 and self.segment > 0 and not self.text


@dataclasses.dataclass(frozen=True)
class TextLeaf:
    """The first rows of a leaf in runs, what is `beside` it, and how it is shown.

    A row is None if it is padding (`valid_mask` is False).
    """

    name: str
    shown_as: str
    rows: tuple[tuple[Run, ...] | None, ...]
    beside: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        rows = [_row_facts(number, runs) for number, runs in enumerate(self.rows)]
        return {"leaf": self.name, "shown_as": self.shown_as, "rows": rows}


def _row_facts(number: int, runs: Sequence[Run] | None) -> dict[str, Any]:
    segments: dict[int, str] = {}
    for run in runs or ():
        if run.segment:
            segments[run.segment] = segments.get(run.segment, "") + run.text
    return {
        "masked": runs is None,
        "row": number,
        "segments": list(segments.values()),
        "places": sum(run.places for run in runs or ()),
        "padding": sum(run.places for run in runs or () if not run.segment),
        "uncounted": sum(run.places for run in runs or () if not run.counts),
    }


# From leaves to runs


def texts_of(
    leaves: Mapping[str, Any], valid: np.ndarray, decode: Decode | None
) -> Iterator[TextLeaf]:
    """Every leaf that is text or tokens, in as many rows as `valid` speaks of."""
    for name, leaf in leaves.items():
        if _are_tokens(leaf):
            if _last(name) not in _BESIDE:
                yield _token_leaf(name, leaves, valid, decode)
        elif leaf.ndim and is_text(leaf.dtype):
            rows = [(_text_run(leaf[row]),) if real else None for row, real in enumerate(valid)]
            yield TextLeaf(name, "text", tuple(rows))


def packings_of(leaves: Mapping[str, Any], valid: np.ndarray) -> Iterator[dict[str, Any]]:
    """How full packed rows are: the part of their places that is padding, and segments by row.

    The places of masked rows, which have no segments, are not counted.
    """
    for name, leaf in leaves.items():
        if _last(name) == SEGMENT_IDS and leaf.ndim == 2 and _are_tokens(leaf):
            segments = [len(set(row[row > 0].tolist())) for row in leaf]
            padding = float((leaf[valid] == 0).mean()) if leaf[valid].size else None
            words = "" if padding is None else f"{padding:.1%} of all places are padding, "
            counts = sorted({count for count in segments if count}) or [0]
            words += f"{' to '.join(map(str, counts[:: max(1, len(counts) - 1)]))} segments a row"
            yield {"leaf": name, "padding": padding, "segments": segments, "words": words}


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _are_tokens(leaf: Any, axes: int = 2) -> bool:
    if leaf is not None and leaf.dtype == object and leaf.ndim == 1:  # lengths differ
        rows = [row for row in leaf if row is not None]
        return bool(rows) and all(isinstance(r, np.ndarray) and _are_tokens(r, 1) for r in rows)
    return isinstance(leaf, np.ndarray) and leaf.ndim == axes and leaf.dtype.kind in "iu"


def _token_leaf(
    name: str, leaves: Mapping[str, Any], valid: np.ndarray, decode: Decode | None
) -> TextLeaf:
    leaf, parent = leaves[name], name[: len(name) - len(_last(name))]
    others = {other: leaves.get(parent + other) for other in _BESIDE}
    beside = {
        k: v for k, v in others.items() if v is not None and v.shape == leaf.shape and v.ndim == 2
    }

    def rows(decode: Decode | None) -> tuple[tuple[Run, ...] | None, ...]:
        return tuple(
            tuple(_token_runs(leaf[row], {k: v[row] for k, v in beside.items()}, decode))
            if real
            else None
            for row, real in enumerate(valid)
        )

    if decode is None:
        return TextLeaf(name, "numbers", rows(None), tuple(beside))
    try:
        return TextLeaf(name, "decoded text", rows(decode), tuple(beside))
    except Exception as error:  # of any kind: a tokenizer need not know what to do with these
        reason = f"numbers, since they do not decode ({type(error).__name__}: {error})"
        return TextLeaf(name, reason, rows(None), tuple(beside))


def _text_run(value: Any) -> Run:
    """A text, or whatever else a leaf of objects holds."""
    if isinstance(value, bytes):
        text = value.decode(errors="backslashreplace")
    elif isinstance(value, np.ndarray) and value.dtype != object:
        text = f"{value.dtype}{list(value.shape)}"
    else:
        text = str(value.tolist() if isinstance(value, np.ndarray) else value)
    return Run(text, len(text))


def _token_runs(
    tokens: np.ndarray, beside: Mapping[str, np.ndarray], decode: Decode | None
) -> Iterator[Run]:
    """The runs of a row of tokens, with what is beside them by name."""
    count = len(tokens)
    segments = beside.get(SEGMENT_IDS, np.ones(count, int))
    positions = beside.get(POSITIONS, np.zeros(count, int))
    counts = beside.get(LOSS_MASK, np.ones(count, bool)) != 0
    for start, stop in _stretches(segments):
        segment = int(segments[start])
        if segment == 0:
            yield Run("", stop - start, 0)
            continue
        parts = _stretches(counts[start:stop])
        texts = _texts(tokens[start:stop].tolist(), [end for _, end in parts], decode)
        for (first, end), text in zip(parts, texts, strict=True):
            begins = 0 if first else int(positions[start])
            yield Run(text, end - first, segment, bool(counts[start + first]), begins)


def _stretches(values: np.ndarray) -> list[tuple[int, int]]:
    """From where to where the values stay the same."""
    cuts = (np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()
    return list(itertools.pairwise([0, *cuts, len(values)])) if len(values) else []


def _texts(tokens: list[int], ends: Sequence[int], decode: Decode | None) -> list[str]:
    """The text of the tokens in parts, by where in the tokens these end."""
    if decode is None:
        pairs = itertools.pairwise([0, *ends])
        texts = [" ".join(map(str, tokens[start:end])) for start, end in pairs]
        return [f"{text} " for text in texts[:-1]] + texts[-1:]
    # Decoded whole and then cut, since a character may be of several tokens. It is in the part in
    # which it ends: in what comes before, it is cut.
    whole = decode(tokens)
    stops = [len(decode(tokens[:end]).rstrip(_CUT)) for end in ends[:-1]]
    cuts = np.maximum.accumulate([0, *stops, len(whole)]).clip(max=len(whole)).tolist()
    return [whole[start:stop] for start, stop in itertools.pairwise(cuts)]


# From runs to what is printed


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


def print_text(console: Console, leaf: TextLeaf, of_rows: int) -> None:
    """The rows of a leaf that is read, each with a line that says what it is."""
    plain = console.color_system is None
    console.print()
    console.print(Text.assemble((visible(leaf.name), "bold"), f": {_legend(leaf, of_rows, plain)}"))
    width = max(_LEAST_WIDTH, console.width - len(_GUTTER))
    for number, runs in enumerate(leaf.rows):
        said = " · ".join(_said_of(_row_facts(number, runs), SEGMENT_IDS in leaf.beside))
        console.print(Text(f"  row {number} · {said}", "dim"))
        for line in _lines(_marked(runs or ()), console, width, under=plain):
            whole = Text.assemble((_GUTTER, "dim"), line)
            console.print(whole, no_wrap=True, overflow="ignore", crop=False)


def _legend(leaf: TextLeaf, of_rows: int, plain: bool) -> str:
    """How many rows are shown, and what the marks in them mean."""
    runs = [run for row in leaf.rows for run in row or ()]
    parts = [f"{len(leaf.rows)} of {of_rows} rows as {visible(leaf.shown_as)}"]
    if SEGMENT_IDS in leaf.beside:
        parts.append(f"{_PARTING} between segments")
    if any(run.begins for run in runs):
        parts.append("(from n) where a record goes on that was split")
    if any(run.text_is_missing for run in runs):
        parts.append(f"{_UNSEEN} for tokens without text")
    if not all(run.counts for run in runs):
        parts.append(f"{'^ under' if plain else 'underlined:'} places where {LOSS_MASK} is False")
    return "; ".join(parts)


def _said_of(row: Mapping[str, Any], segmented: bool) -> Iterator[str]:
    if row["masked"]:
        yield "padding, valid_mask is False"
        return
    yield f"{row['places']:,} {'places' if segmented else 'long'}" if row["places"] else "empty"
    if segmented:
        yield f"{len(row['segments'])} segment{'s' * (len(row['segments']) != 1)}"
    yield from (f"{row[what]:,} {what}" for what in ("padding", "uncounted") if row[what])


def _marked(runs: Sequence[Run]) -> Text:
    """The row on one long line."""
    text, last = Text(), None
    for run in runs:
        if last is not None and run.segment != last:
            text.append(_PARTING, "bold magenta")
        if run.begins:
            text.append(f"(from {run.begins}) ", "dim italic")
        last = run.segment
        words = visible(run.text)
        if not run.segment:
            words = f"{_UNSEEN} padding x{run.places}"
        elif run.text_is_missing:
            words = _UNSEEN if run.places == 1 else f"{_UNSEEN}x{run.places}"
        counted = _COLOURS[run.segment % 2] if run.segment else "dim"
        text.append(words, counted if run.counts else _UNCOUNTED)
    return text


def _lines(text: Text, console: Console, width: int, *, under: bool) -> Iterator[Text]:
    """The row in a few lines of this width, and a last one that says how much is left out.

    With `under`, a line with places that do not count is followed by one with the marks.
    """
    if not text:
        return
    lines = text.wrap(console, width, overflow="fold")
    shown = 0
    for line in lines[:_LINES_OF_A_ROW]:
        yield line
        words = line.plain.rstrip()
        shown = text.plain.index(words, shown) + len(words)
        marks = [" "] * len(line)
        for span in line.spans:
            if span.style == _UNCOUNTED:
                marks[span.start : span.end] = "^" * (span.end - span.start)
        below = "".join(m * cell_len(char) for char, m in zip(line.plain, marks, strict=True))
        if under and below.rstrip():
            yield Text(below.rstrip())
    if len(lines) > _LINES_OF_A_ROW:
        yield Text(f"… {len(text) - shown:,} more characters", "dim")
