"""The leaves of a batch that are read rather than looked at: texts, and tokens as text or numbers.

Tokens are integers in one sequence for each row. Beside them may be `segment_ids`, `positions` and
`loss_mask`, of the same shape, which say how a row is to be read and are not shown themselves. A
*run* is a stretch of places of a row that belong to one segment and either all count or all do not.
Nothing in a text is taken for markup, and every mark can be read where there are no colours.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from loader.records.spec import is_text
from loader.records.words import visible
from loader.sources.packing.packed_rows import POSITIONS, SEGMENT_IDS

LOSS_MASK = "loss_mask"
Decode = Callable[[Sequence[int]], str]
_BESIDE = (SEGMENT_IDS, POSITIONS, LOSS_MASK)
_CUT = "\ufffd"  # what a decoder puts where the bytes of a character are not all there
_PARTING, _UNSEEN = "┃", "·"
_COLOURS, _UNCOUNTED = ("cyan", "yellow"), "dim underline"  # colours of every other segment
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
    def shown(self) -> str:
        if not self.segment:
            return f"{_UNSEEN} padding x{self.places}"
        # Tokens may have no text, such as those that begin and end one.
        unseen = _UNSEEN if self.places == 1 else f"{_UNSEEN}x{self.places}"
        return visible(self.text) or (unseen if self.places else "")


@dataclasses.dataclass(frozen=True)
class TextLeaf:
    """The first rows of a leaf in runs (None: `valid_mask` is False), and what is `beside` it."""

    name: str
    shown_as: str
    rows: tuple[tuple[Run, ...] | None, ...]
    beside: tuple[str, ...] = ()

    def row_facts(self) -> Iterator[dict[str, Any]]:
        for number, row in enumerate(self.rows):
            runs, segments = row or (), dict[int, str]()
            for run in runs:
                segments[run.segment] = segments.get(run.segment, "") + run.text
            yield {
                "masked": row is None,
                "row": number,
                "segments": [text for segment, text in segments.items() if segment],
                "places": sum(run.places for run in runs),
                "padding": sum(run.places for run in runs if not run.segment),
                "uncounted": sum(run.places for run in runs if not run.counts),
            }

    def to_json(self) -> dict[str, Any]:
        return {"leaf": self.name, "shown_as": self.shown_as, "rows": list(self.row_facts())}


def texts_of(
    leaves: Mapping[str, Any], valid: np.ndarray, decode: Decode | None
) -> Iterator[TextLeaf]:
    """Every leaf that is text or tokens, in as many rows as `valid` speaks of."""
    for name, leaf in leaves.items():
        parent, slash, last = name.rpartition("/")
        others = {other: leaves.get(parent + slash + other) for other in _BESIDE}
        beside = {k: v for k, v in others.items() if v is not None and v.shape == leaf.shape}

        def rows(decode: Any, leaf: Any = leaf, beside: Any = beside) -> Any:
            numbers = [row if real else None for row, real in enumerate(valid)]
            return tuple(n if n is None else (*_runs(leaf, n, beside, decode),) for n in numbers)

        if not _are_tokens(leaf):
            if leaf.ndim and is_text(leaf.dtype):
                yield TextLeaf(name, "text", rows(None, beside={}))
        elif last not in _BESIDE:
            beside = tuple(beside) if leaf.ndim == 2 else ()
            try:
                shown_as = "numbers" if decode is None else "decoded text"
                yield TextLeaf(name, shown_as, rows(decode), beside)
            except Exception as error:  # of any kind: a tokenizer need not know these
                reason = f"numbers, since they do not decode ({type(error).__name__}: {error})"
                yield TextLeaf(name, reason, rows(None), beside)


def packings_of(leaves: Mapping[str, Any], valid: np.ndarray) -> Iterator[dict[str, Any]]:
    """How full packed rows are: which part of the places of real rows is padding, and segments."""
    for name, leaf in leaves.items():
        if name.rpartition("/")[2] == SEGMENT_IDS and leaf.ndim == 2 and _are_tokens(leaf):
            segments = [len(set(row[row > 0].tolist())) for row in leaf]
            padding = float((leaf[valid] == 0).mean()) if leaf[valid].size else None
            words = "" if padding is None else f"{padding:.1%} of all places are padding, "
            counts = sorted({count for count in segments if count}) or [0]
            words += f"{' to '.join(map(str, counts[:: max(1, len(counts) - 1)]))} segments a row"
            yield {"leaf": name, "padding": padding, "segments": segments, "words": words}


def _are_tokens(leaf: Any, axes: int = 2) -> bool:
    if isinstance(leaf, np.ndarray) and leaf.dtype == object and leaf.ndim == 1:  # lengths differ
        rows = [row for row in leaf if row is not None]
        return bool(rows) and all(_are_tokens(row, 1) for row in rows)
    return isinstance(leaf, np.ndarray) and leaf.ndim == axes and leaf.dtype.kind in "iu"


def _runs(
    leaf: Any, row: int, beside: Mapping[str, np.ndarray], decode: Decode | None
) -> Iterator[Run]:
    """The runs of a row of tokens, or of a text or whatever else a leaf of objects holds."""
    value = leaf[row]
    if not _are_tokens(value, 1):
        if isinstance(value, np.ndarray) and value.dtype != object:
            value = f"{value.dtype}{list(value.shape)}"
        value = value.tolist() if isinstance(value, np.ndarray) else value
        text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
        yield Run(text, len(text))
        return
    usual = {SEGMENT_IDS: 1, POSITIONS: 0, LOSS_MASK: 1}
    segments, positions, counts = (
        beside[k][row] if k in beside else np.full(len(value), v) for k, v in usual.items()
    )
    for start, stop in _stretches(segments):
        parts = _stretches(counts[start:stop] != 0) if segments[start] else [(0, stop - start)]
        ends = [end for _, end in parts]
        padding = not segments[start]
        texts = [""] if padding else _texts(value[start:stop].tolist(), ends, decode)
        for (first, end), text in zip(parts, texts, strict=True):
            begins = 0 if first or padding else int(positions[start])
            counted = padding or bool(counts[start + first])
            yield Run(text, end - first, int(segments[start]), counted, begins)


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


def print_text(console: Console, leaf: TextLeaf, of_rows: int) -> None:
    """The rows of a leaf that is read, each with a line that says what it is."""
    plain, segmented = console.color_system is None, SEGMENT_IDS in leaf.beside
    runs = [run for row in leaf.rows for run in row or ()]
    marks = "^ under" if plain else "underlined:"
    legend = {
        f"{len(leaf.rows)} of {of_rows} rows as {visible(leaf.shown_as)}": True,
        f"{_PARTING} between segments": segmented,
        "(from n) where a record goes on that was split": any(run.begins for run in runs),
        f"{_UNSEEN} for tokens without text": any(r.segment and not r.text for r in runs),
        f"{marks} places where {LOSS_MASK} is False": not all(run.counts for run in runs),
    }
    words = "; ".join(words for words, there in legend.items() if there)
    console.print("")
    console.print(Text.assemble((visible(leaf.name), "bold"), f": {words}"))
    width = max(_LEAST_WIDTH, console.width - len(_GUTTER))
    for row, facts in zip(leaf.rows, leaf.row_facts(), strict=True):
        long = f"{facts['places']:,} {'places' if segmented else 'long'}"
        said = [long if facts["places"] else "empty"]
        count = len(facts["segments"])
        said += [f"{count} segment{'s' * (count != 1)}"] if segmented else []
        said += [f"{facts[what]:,} {what}" for what in ("padding", "uncounted") if facts[what]]
        words = "padding, valid_mask is False" if row is None else " · ".join(said)
        console.print(Text(f"  row {facts['row']} · {words}", "dim"))
        for line in _lines(row or (), console, width, under=plain):
            whole = Text.assemble((_GUTTER, "dim"), line)
            console.print(whole, no_wrap=True, overflow="ignore", crop=False)


def _lines(runs: Sequence[Run], console: Console, width: int, *, under: bool) -> Iterator[Text]:
    """The row in a few lines of this width, and a last one that says how much is left out.

    With `under`, a line with places that do not count is followed by one with the marks.
    """
    text = Text()
    for before, run in zip([None, *runs], runs, strict=False):
        if before is not None and run.segment != before.segment:
            text.append(_PARTING, "bold magenta")
        text.append(f"(from {run.begins}) " if run.begins else "", "dim italic")
        counted = _COLOURS[run.segment % 2] if run.segment else "dim"
        text.append(run.shown, counted if run.counts else _UNCOUNTED)
    shown, lines = 0, text.wrap(console, width, overflow="fold") if text else []
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
