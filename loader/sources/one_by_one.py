"""Records of a source that gives them as they are, not stacked: several at once, or one by one."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from loader.records.foreign import in_numpy, is_foreign
from loader.records.stacking import copied


def records_of(source: Any, numbers: list[int]) -> Sequence[Any]:
    """The records of these numbers, each in memory of its own."""
    several = hasattr(source, "__getitems__")
    records = source.__getitems__(numbers) if several else [source[number] for number in numbers]
    if not isinstance(records, Sequence) or len(records) != len(numbers):
        raise ValueError(
            f"{type(source).__name__}.__getitems__ was asked for {len(numbers)} records and gave a "
            f"{type(records).__name__}: it must give a list with a record for each index"
        )
    if _share_memory(dict(zip(numbers, records, strict=True)).values()):
        # A buffer that is filled anew for each record: now all of them hold the last one.
        one_by_one = (source.__getitems__([n])[0] if several else source[n] for n in numbers)
        records = [copied(record) for record in one_by_one]
    return records


def _share_memory(records: Iterable[Any]) -> bool:
    """Whether the same leaf of two records begins at the same address."""
    leaves = [
        (place, leaf)
        for record in records
        for place, part in enumerate(record.values() if type(record) is dict else [record])
        for leaf in ([part] if type(part) is np.ndarray else jax.tree.leaves(part))
        if isinstance(leaf, np.ndarray) or is_foreign(leaf)
    ]
    try:  # all at once: what is made of a tensor must not take the place of another
        arrays = [(place, in_numpy(leaf)) for place, leaf in leaves]
    except ValueError:
        return False  # stacking says which leaf cannot be read
    seen = [(place, leaf.__array_interface__["data"][0]) for place, leaf in arrays if leaf.size]
    return len(set(seen)) < len(seen)
