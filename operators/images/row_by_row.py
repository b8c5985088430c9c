"""Images of bytes, or of float32 in [0, 1], that are changed one by one on the host.

Stacked images go straight into the memory of the new leaf; ragged ones get an array each.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from loader.records.errors import RowError
from loader.records.memory import empty_rows
from loader.records.spec import LeafSpec, Spec
from loader.records.stacking import is_ragged
from operators.images.image_spec import image_spec
from operators.images.sampling import refuse_empty

Change = Callable[[int, np.ndarray, np.ndarray], None]  # of a row: the image, and where it goes

_WORDS = {"uint8": "uint8", "float32": "float32 in [0, 1]"}


@dataclasses.dataclass(frozen=True)
class Pixels:
    """What images must be: of one of these dtypes, with so many channels; None for any."""

    channels: tuple[int, ...] | None = None
    dtypes: tuple[str, ...] | None = ("uint8", "float32")

    def spec(self, spec: Spec, name: str) -> LeafSpec:
        """The spec of a leaf of such images. `ValueError` if it is another."""
        leaf = image_spec(spec, name)
        if fault := self._fault(leaf.dtype, leaf.shape[2]):
            raise ValueError(f"leaf {name!r} {fault}")
        return leaf

    def refuse_unfit(self, row: int, name: str, image: np.ndarray) -> None:
        """Raise `RowError` for a row that is another, or has no pixels."""
        if fault := self._fault(image.dtype, image.shape[2]):
            raise RowError(row, f"leaf {name!r} {fault}")
        refuse_empty(row, name, image)

    def _fault(self, dtype: Any, count: int | None) -> str | None:
        if self.dtypes is not None and str(dtype) not in self.dtypes:
            kinds = " or ".join(_WORDS[known] for known in self.dtypes)
            return (
                f"is {dtype} where images of {kinds} are needed: put this operator before "
                "Normalize and Cast"
            )
        if self.channels is not None and count is not None and count not in self.channels:
            wanted = " or ".join(map(str, self.channels))
            return (
                f"has {count} channels where {wanted} are needed: give "
                f"DecodeImage(channels={self.channels[-1]}), or leave this operator out"
            )
        return None


def changed(
    name: str,
    leaf: np.ndarray,
    pixels: Pixels,
    change: Change,
    chosen: Any,
    channels: int | None = None,
) -> np.ndarray:
    """The leaf with the `chosen` rows changed, and the others as they are.

    `channels` if the result has another number of them: then all rows must be chosen.
    """
    ragged = is_ragged(leaf)
    made = (
        leaf.copy()
        if ragged
        else empty_rows((*leaf.shape[:3], channels or leaf.shape[3]), leaf.dtype)
    )
    for row, image in enumerate(leaf):
        if chosen[row]:
            pixels.refuse_unfit(row, name, image)
            if ragged:
                made[row] = np.empty((*image.shape[:2], channels or image.shape[2]), image.dtype)
            change(row, image, made[row])
        elif not ragged:
            made[row] = image
    return made
