"""The leaves of a batch that are read rather than looked at: texts, and tokens as text or numbers.

Tokens are integers in one sequence for each row. Beside them may be `segment_ids`, `positions` and
`loss_mask`, of the same shape, which say how a row is to be read and are not shown themselves.
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

Decode = Callable[[Sequence[int]], str]
_USUAL = {SEGMENT_IDS: 1, POSITIONS: 0, "loss_mask": 1}  # where they are not beside the tokens
_CUT = "\ufffd"  # what a decoder puts where the bytes of a character are not all there
_PARTING, _UNSEEN = "┃", "·"
_COLOURS, _UNCOUNTED, _BEGINS = ("cyan", "yellow"), "dim underline", "dim italic"
_LINES_OF_A_ROW, _LEAST_WIDTH = 12, 20
_GUTTER = "    ┊ "  # texts may begin with spaces


@dataclasses.dataclass(frozen=True)
class TextLeaf:
    """The first rows of a leaf: what there is to say of each, and how it is shown on one line."""

    name: str
    shown_as: str
    rows: tuple[tuple[dict[str, Any], Text], ...]
    segmented: bool

    def to_json(self) -> dict[str, Any]:
        rows = [{"row": number, **facts} for number, (facts, _) in enumerate(self.rows)]
        return {"leaf": self.name, "shown_as": self.shown_as, "rows": rows}


def texts_of(
    leaves: Mapping[str, Any], valid: np.ndarray, decode: Decode | None
) -> Iterator[TextLeaf]:
    """Every leaf that is text or tokens, in as many rows as `valid` speaks of."""
    for name, leaf in leaves.items():
        parent, slash, last = name.rpartition("/")
        others = {other: leaves.get(parent + slash + other) for other in _USUAL}
        beside = {k: v for k, v in others.items() if getattr(v, "shape", 0) == leaf.shape}
        tokens = are_tokens(leaf)
        beside = beside if tokens and leaf.ndim == 2 else {}
        if last in _USUAL if tokens else not (leaf.ndim and is_text(leaf.dtype)):
            continue

        def made(shown_as: str, decode: Any, name: Any = name, beside: Any = beside) -> TextLeaf:
            rows = [
                _row(leaves[name][row] if real else None, beside, row, decode)
                for row, real in enumerate(valid)
            ]
            return TextLeaf(name, shown_as, tuple(rows), SEGMENT_IDS in beside)

        try:
            how = "numbers" if decode is None else "decoded text"
            yield made(how if tokens else "text", decode)
        except Exception as error:  # of any kind: a tokenizer need not know what to do with these
            reason = f"numbers, since they do not decode ({type(error).__name__}: {error})"
            yield made(reason, None)


def packings_of(leaves: Mapping[str, Any], valid: np.ndarray) -> Iterator[dict[str, Any]]:
    """How full packed rows are: which part of the places of real rows is padding, and segments."""
    for name, leaf in leaves.items():
        if name.rpartition("/")[2] == SEGMENT_IDS and leaf.ndim == 2 and are_tokens(leaf):
            segments = [len(set(row[row > 0].tolist())) for row in leaf]
            padding = float((leaf[valid] == 0).mean()) if leaf[valid].size else None
            words = "" if padding is None else f"{padding:.1%} of all places are padding, "
            counts = sorted({count for count in segments if count}) or [0]
            words += f"{' to '.join(map(str, counts[:: max(1, len(counts) - 1)]))} segments a row"
            yield {"leaf": name, "padding": padding, "segments": segments, "words": words}


def are_tokens(leaf: Any, axes: int = 2) -> bool:
    """Whether a leaf, or with one axis a row of it, is integers in a sequence."""
    if isinstance(leaf, np.ndarray) and leaf.dtype == object and leaf.ndim == 1:  # lengths differ
        rows = [row for row in leaf if row is not None]
        return bool(rows) and all(are_tokens(row, 1) for row in rows)
    return isinstance(leaf, np.ndarray) and leaf.ndim == axes and leaf.dtype.kind in "iu"


def _row(
    value: Any, others: Mapping[str, np.ndarray], row: int, decode: Decode | None
) -> tuple[dict[str, Any], Text]:
    """What there is to say of a row, and how it is shown; None is one that is padding."""
    line, texts, counts = Text(), list[str](), {"places": 0, "padding": 0, "uncounted": 0}
    if value is not None and not are_tokens(value, 1):
        texts = [_as_text(value)]
        line.append(visible(texts[0]), _COLOURS[1])
        counts["places"] = len(texts[0])
    elif value is not None:
        beside = [others[k][row] if k in others else np.full(len(value), _USUAL[k]) for k in _USUAL]
        segments, positions, counted = beside
        for start, stop in _stretches(segments):
            line.append(_PARTING if line else "", "bold magenta")
            if not segments[start]:
                line.append(f"{_UNSEEN} padding x{stop - start}", "dim")
                continue
            line.append(f"(from {positions[start]}) " if positions[start] else "", _BEGINS)
            parts = _stretches(counted[start:stop] != 0)
            cut = _texts(value[start:stop].tolist(), [end for _, end in parts], decode)
            for (first, end), text in zip(parts, cut, strict=True):
                unseen = _UNSEEN if end - first == 1 else f"{_UNSEEN}x{end - first}"
                colour = _COLOURS[segments[start] % 2] if counted[start + first] else _UNCOUNTED
                line.append(visible(text) or unseen, colour)  # some tokens have no text
            texts.append("".join(cut))
        uncounted = int(((counted == 0) & (segments != 0)).sum())
        padding = int((segments == 0).sum())
        counts = {"places": len(value), "padding": padding, "uncounted": uncounted}
    return {"masked": value is None, "segments": texts, **counts}, line


def _as_text(value: Any) -> str:
    """A text, or whatever else a leaf of objects holds."""
    if isinstance(value, np.ndarray):
        return str(value.tolist() if value.dtype == object else f"{value.dtype}{[*value.shape]}")
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


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
    plain, styles = console.color_system is None, {s.style for _, t in leaf.rows for s in t.spans}
    legend = {
        f"{len(leaf.rows)} of {of_rows} rows as {visible(leaf.shown_as)}": True,
        f"{_PARTING} between segments": leaf.segmented,
        "(from n) where a record goes on that was split": _BEGINS in styles,
        f"{'^ under' if plain else 'underlined:'} places where loss_mask is False": (
            _UNCOUNTED in styles
        ),
    }
    words = "; ".join(words for words, there in legend.items() if there)
    console.print("\n", Text.assemble((visible(leaf.name), "bold"), f": {words}"), sep="")
    width = max(_LEAST_WIDTH, console.width - len(_GUTTER))
    for number, (facts, text) in enumerate(leaf.rows):
        long = "places" if leaf.segmented else "long"
        said = [f"{facts['places']:,} {long}" if facts["places"] else "empty"]
        count = len(facts["segments"])
        said += [f"{count} segment{'s' * (count != 1)}"] if leaf.segmented else []
        said += [f"{facts[what]:,} {what}" for what in ("padding", "uncounted") if facts[what]]
        words = "padding, valid_mask is False" if facts["masked"] else " · ".join(said)
        console.print(Text(f"  row {number} · {words}", "dim"))
        for line in _lines(text, console, width, under=plain):
            whole = Text.assemble((_GUTTER, "dim"), line)
            console.print(whole, no_wrap=True, overflow="ignore", crop=False)


def _lines(text: Text, console: Console, width: int, *, under: bool) -> Iterator[Text]:
    """A row in a few lines, with `under` each followed by marks; then how much is left out."""
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
