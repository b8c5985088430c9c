"""What operators on tokens share: the names of leaves beside the tokens, and what a sequence is."""

from typing import Any

import numpy as np

from loader.records.errors import RowError
from loader.records.spec import LeafSpec, Spec
from loader.records.stacking import is_ragged
from loader.sources.packing.packed_rows import POSITIONS, SEGMENT_IDS
from operators.leaves import get

LOSS_MASK = "loss_mask"
PER_TOKEN = (SEGMENT_IDS, POSITIONS)  # the leaves that packed rows have beside the tokens


def sequence_spec(spec: Spec, name: str) -> LeafSpec:
    leaf = get(spec, name)
    if not leaf.shape or leaf.dtype == object:
        raise ValueError(
            f"leaf {name!r} is {leaf.dtype}{list(leaf.shape)} where a sequence is needed: "
            "tokenise texts first"
        )
    return leaf


def lengths_of(leaf: Any) -> np.ndarray:
    """How many items each row has, ragged or not."""
    if is_ragged(leaf):
        return np.fromiter(map(len, leaf), np.int64, len(leaf))
    return np.full(len(leaf), leaf.shape[1], np.int64)


def same_lengths(counts: np.ndarray, others: np.ndarray, name: str, other: str) -> None:
    """Raise `RowError` where a row does not have as many items in one leaf as in the other."""
    if (counts != others).any():
        row = int((counts != others).argmax())
        raise RowError(
            row,
            f"leaf {other!r} has {others[row]} items and leaf {name!r} has {counts[row]}: treat "
            f"both alike before, such as TruncateTokens([{name!r}, {other!r}], ...)",
        )
