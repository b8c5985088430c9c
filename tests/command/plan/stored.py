"""Sources for configurations: they say where they are stored, and cannot be read."""

from typing import Any

import jax
import numpy as np

from loader import Source


class Told(Source):
    """So many files of about so many records each."""

    def __init__(self, files: int, records: int, record_bytes: int = 4000) -> None:
        sizes = np.random.default_rng(0).integers(records // 2, records * 3 // 2, files)
        self._ends = np.cumsum(sizes)
        self._record_bytes = record_bytes

    def __len__(self) -> int:
        return int(self._ends[-1])

    def gather(self, indices: np.ndarray) -> Any:
        raise AssertionError("a record is read")

    def record_spec(self) -> Any:
        return {"x": jax.ShapeDtypeStruct((self._record_bytes,), np.dtype(np.uint8))}

    def fingerprint(self) -> Any:
        return {}

    def blocks(self) -> np.ndarray:
        return np.append(0, self._ends[:-1])
