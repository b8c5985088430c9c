"""Which records are in a batch: leaves with their numbers, added after operators and batcher.

So no operator can lose or change them. They have a row for each row of the batch, -1 where it is
padding or was filtered out.
"""

from typing import Any

import jax
import numpy as np

from loader.records.integers import Int64s
from loader.records.spec import VALID_MASK
from loader.sources.reading import record_numbers

_NO_RECORD = -1


class RecordIndex:
    """The leaves that say which records are in a batch: none, if there is no name for them.

    `name` is the number of each record in the source. Of a mixture it is the number in the
    component, and `name + "_component"` is the number of the component.
    """

    def __init__(self, source: Any, name: str | None) -> None:
        self._source = source
        self._name = name
        self.leaves: dict[str, np.dtype[Any]] = {}
        if name is None:
            return
        if not isinstance(name, str) or not name or "/" in name or name == VALID_MASK:
            raise ValueError(
                "with_index is the name of a leaf for the numbers of records, such as 'record', "
                f"got {name!r}"
            )
        nothing = record_numbers(source, np.zeros(0, np.int64))  # refuses where there are none
        self.leaves = {name + end: numbers.dtype for end, numbers in nothing.items()}

    def of(self, indices: Int64s, valid: np.ndarray) -> dict[str, np.ndarray]:
        """The leaves of rows of which some are valid; `indices` are the records of those."""
        leaves = {}
        for end, numbers in record_numbers(self._source, indices).items():
            leaf = np.full(len(valid), _NO_RECORD, numbers.dtype)
            leaf[valid] = numbers
            leaves[f"{self._name}{end}"] = leaf
        return leaves

    def added(self, batch: Any, leaves: dict[str, np.ndarray], valid: np.ndarray) -> Any:
        """The batch with these leaves; rows that have become invalid since have no number."""
        for leaf in leaves.values():
            leaf[~valid] = _NO_RECORD
        return {**batch, **leaves}

    def added_to_spec(self, spec: Any, rows: int) -> Any:
        """The spec of a batch of so many rows with these leaves. `ValueError` if it has them."""
        if not self.leaves:
            return spec
        if not isinstance(spec, dict):
            raise ValueError(
                "with_index adds a leaf, and the batches here are not dicts: use PadBatcher(), or "
                "records that are dicts"
            )
        if twins := sorted(set(spec) & set(self.leaves)):
            raise ValueError(
                f"the batches have a leaf {twins[0]!r} already: give with_index another name, such "
                "as 'number'"
            )
        own = {name: jax.ShapeDtypeStruct((rows,), dtype) for name, dtype in self.leaves.items()}
        return {**spec, **own}
