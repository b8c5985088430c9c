"""Where spans are cut out of rows: how many, how long, and where, all rows at once."""

import numpy as np

from loader.records.integers import Int64s
from loader.transforms.draws import Uniforms, words_at

_KEPT, _CUT = 0, 1  # what is drawn: how the tokens that stay are divided, and those that do not


def span_counts(lengths: Int64s, noise_density: float, mean_span: float) -> tuple[Int64s, Int64s]:
    """How many tokens are cut out of so many, and in how many spans."""
    noise = np.rint(lengths * noise_density).clip(1, lengths - 1).astype(np.int64)
    spans = np.rint(noise / mean_span).clip(1).astype(np.int64)
    return noise, np.minimum(spans, lengths - noise)


def random_spans(
    lengths: Int64s, noise: Int64s, spans: Int64s, draws: Uniforms
) -> tuple[Int64s, Int64s]:
    """Where each span of a row starts and stops; of rows with fewer spans, the last mean nothing.

    Between spans, and before the first, there is at least one token.
    """
    kept, cut = (
        _ends_of_parts(count, spans, draws, purpose)
        for count, purpose in ((lengths - noise, _KEPT), (noise, _CUT))
    )
    before = np.zeros_like(cut)
    before[:, 1:] = cut[:, :-1]
    return kept + before, kept + cut


def _ends_of_parts(items: Int64s, parts: Int64s, draws: Uniforms, purpose: int) -> Int64s:
    """Where the parts end if so many items are divided into so many, none empty, all ways alike.

    A division is a choice of places after which a part ends; the last item ends the last part.
    """
    ends = np.zeros((len(items), parts.max()), np.int64)
    places = np.arange(items.max() - 1, dtype=np.uint32)
    if len(places):
        # Random keys, all different. The places with the smallest are chosen.
        words = words_at(draws[:, None], places, purpose).astype(np.uint64)
        keys = words << np.uint64(32) | places
        keys[places >= (items - 1)[:, None]] = np.iinfo(np.uint64).max
        ranked = np.sort(keys, axis=1)
        last = ranked[np.arange(len(items)), (parts - 2).clip(0)]
        chosen = (keys <= last[:, None]) & (parts > 1)[:, None]
        rows, where = np.nonzero(chosen)
        first = np.cumsum(parts - 1) - (parts - 1)
        ends[rows, np.arange(len(rows)) - first[rows]] = where + 1
    ends[np.arange(len(items)), parts - 1] = items
    return ends
