"""A row of tokens or text in runs.

A *run* is a stretch of places of a row that belong to one segment and either all count or all do
not. Runs hold the text as it is in the data, whatever characters are in it.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from loader.sources.packing.packed_rows import POSITIONS, SEGMENT_IDS

LOSS_MASK = "loss_mask"
Decode = Callable[[Sequence[int]], str]
_CUT = "\ufffd"  # what a decoder puts where the bytes of a character are not all there


@dataclasses.dataclass(frozen=True)
class Run:
    """Places of one segment that all count or all do not. Segment 0 is padding, never marked."""

    text: str
    places: int
    segment: int = 1
    counts: bool = True
    begins: int = 0  # of the first run of a segment: where in its record that begins

    @property
    def is_padding(self) -> bool:
        return self.segment == 0

    @property
    def text_is_missing(self) -> bool:
        """Whether its tokens have no text, such as those that begin and end one."""
        return self.places > 0 and not (self.text or self.is_padding)


def text_run(value: Any) -> Run:
    """A text, or whatever else a leaf of objects holds."""
    if isinstance(value, bytes):
        text = value.decode(errors="backslashreplace")
    elif isinstance(value, np.ndarray) and value.dtype != object:
        text = f"{value.dtype}{list(value.shape)}"
    else:
        text = str(value.tolist() if isinstance(value, np.ndarray) else value)
    return Run(text, len(text))


def token_runs(
    tokens: np.ndarray, beside: Mapping[str, np.ndarray], decode: Decode | None
) -> Iterator[Run]:
    """The runs of a row of tokens, with what stands beside them by name."""
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
    return list(zip([0, *cuts], [*cuts, len(values)], strict=True)) if len(values) else []


def _texts(tokens: list[int], ends: Sequence[int], decode: Decode | None) -> list[str]:
    """The text of the tokens in parts, by where in the tokens these end."""
    starts = [0, *ends[:-1]]
    if decode is None:
        numbers = [f"{token} " for token in tokens[:-1]] + [str(token) for token in tokens[-1:]]
        return ["".join(numbers[start:end]) for start, end in zip(starts, ends, strict=True)]
    # Decoded whole and then cut, since a character may be of several tokens. It is in the part in
    # which it ends: in what comes before, it is cut.
    whole = decode(tokens)
    stops = [len(decode(tokens[:end]).rstrip(_CUT)) for end in ends[:-1]]
    cuts = np.maximum.accumulate([0, *stops, len(whole)]).clip(max=len(whole)).tolist()
    return [whole[start:stop] for start, stop in itertools.pairwise(cuts)]
