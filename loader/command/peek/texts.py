"""The leaves of a batch that are read rather than looked at: texts, and tokens as text or numbers.

Tokens are integers in one sequence for each row. Beside them may be `segment_ids`, `positions` and
`loss_mask`, of the same shape, which say how a row is to be read and are not shown themselves.
Nothing in a text is taken for markup.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from loader.records.spec import is_text
from loader.records.words import visible
from loader.sources.packing.packed_rows import POSITIONS, SEGMENT_IDS

Decode = Callable[[Sequence[int]], str]
_LOSS_MASK = "loss_mask"
_BESIDE = (SEGMENT_IDS, POSITIONS, _LOSS_MASK)
_MOST_CHARACTERS, _INDENT = 800, 4


def texts_of(
    leaves: Mapping[str, Any], valid: np.ndarray, decode: Decode | None
) -> Iterator[dict[str, Any]]:
    """Every leaf that is text or tokens, in as many rows as `valid` speaks of."""

    def rows(make: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
        return [make(row) if real else _row(row) for row, real in enumerate(valid)]

    for name, leaf in leaves.items():
        parent, slash, last = name.rpartition("/")
        if not are_tokens(leaf):
            if leaf.ndim and is_text(leaf.dtype):
                made = rows(functools.partial(_text_row, leaf))
                yield {"leaf": name, "shown_as": "text", "rows": made}
        elif last not in _BESIDE:
            beside = {}
            for other in _BESIDE if leaf.ndim == 2 else ():
                found = leaves.get(f"{parent}{slash}{other}")
                if found is not None and found.shape == leaf.shape:
                    beside[other] = found
            shown_as = "numbers" if decode is None else "decoded text"
            try:
                made = rows(functools.partial(_token_row, leaf, beside, decode))
            except Exception as error:  # of any kind: a tokenizer need not know these
                shown_as = f"numbers, since they do not decode ({type(error).__name__}: {error})"
                made = rows(functools.partial(_token_row, leaf, beside, None))
            yield {"leaf": name, "shown_as": shown_as, "rows": made}


def are_tokens(leaf: Any, axes: int = 2) -> bool:
    """Whether a leaf, or with one axis a row of it, is integers in a sequence."""
    if isinstance(leaf, np.ndarray) and leaf.dtype == object and leaf.ndim == 1:  # lengths differ
        rows = [row for row in leaf if row is not None]
        return bool(rows) and all(are_tokens(row, 1) for row in rows)
    return isinstance(leaf, np.ndarray) and leaf.ndim == axes and leaf.dtype.kind in "iu"


def _row(row: int, segments: list[str] | None = None, **counts: int) -> dict[str, Any]:
    """What there is to say of a row; without segments it is one that is padding."""
    counts = {"places": 0, "padding": 0, "uncounted": 0, **counts}
    return {"row": row, "masked": segments is None, "segments": segments or [], **counts}


def _text_row(leaf: Any, row: int) -> dict[str, Any]:
    value = leaf[row]
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return _row(row, [text], places=len(text))


def _token_row(
    leaf: Any, beside: Mapping[str, np.ndarray], decode: Decode | None, row: int
) -> dict[str, Any]:
    tokens = leaf[row]
    ones = np.ones(len(tokens), int)
    segments = beside[SEGMENT_IDS][row] if SEGMENT_IDS in beside else ones
    counted = beside[_LOSS_MASK][row] if _LOSS_MASK in beside else ones
    texts = []
    for segment in np.unique(segments[segments > 0]):
        numbers = tokens[segments == segment].tolist()
        texts.append(" ".join(map(str, numbers)) if decode is None else decode(numbers))
    padding = int((segments == 0).sum())
    uncounted = int(((counted == 0) & (segments != 0)).sum())
    return _row(row, texts, places=len(tokens), padding=padding, uncounted=uncounted)


def print_text(console: Console, text: Mapping[str, Any], of_rows: int) -> None:
    """The rows of a leaf that is read, each with a line that says what it is."""
    rows, segmented = text["rows"], any(len(row["segments"]) > 1 for row in text["rows"])
    words = f": {len(rows)} of {of_rows} rows as {visible(text['shown_as'])}"
    words += "; ┃ between segments" if segmented else ""
    console.print("\n", Text.assemble((visible(text["leaf"]), "bold"), words), sep="")
    parting = Text.assemble(("┃", "bold magenta"))
    for row in rows:
        said = [f"{row['places']:,} long"]
        said += [f"{len(row['segments'])} segments"] if segmented else []
        said += [f"{row['padding']:,} padding"] if row["padding"] else []
        said += [f"{row['uncounted']:,} where loss_mask is False"] if row["uncounted"] else []
        words = "padding, valid_mask is False" if row["masked"] else " · ".join(said)
        console.print(Text(f"  row {row['row']} · {words}", "dim"))
        whole = parting.join(Text(visible(segment)) for segment in row["segments"])
        line = whole[:_MOST_CHARACTERS]
        if len(whole) > len(line):
            line.append(f" … {len(whole) - len(line):,} more characters", "dim")
        if line:
            console.print(Padding(line, (0, 0, 0, _INDENT)), soft_wrap=False)
