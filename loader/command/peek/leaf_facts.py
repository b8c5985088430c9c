"""What can be said of a leaf in numbers: shape, dtype, sharding, range, mean, what is not finite.

Numbers are those of real rows: padding would pull every range to zero. Least, most and mean are of
finite values; NaN and infinities are counted beside them.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from loader.records.spec import is_text


@dataclasses.dataclass(frozen=True)
class LeafFacts:
    """Of texts and of arrays that differ in length, `least`, `most` and `mean` are of lengths.

    They are None where there is nothing to count, as of keys of random numbers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    sharding: str | None
    least: float | int | None = None
    most: float | int | None = None
    mean: float | None = None
    nan: int = 0
    inf: int = 0
    of_lengths: bool = False

    def to_json(self) -> dict[str, Any]:
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        least, most = named.pop("least"), named.pop("most")
        return {**named, "shape": list(self.shape), "min": least, "max": most}


def facts_of(name: str, leaf: Any, real: np.ndarray | jax.Array) -> LeafFacts:
    """Of a leaf as it is in the batch, `real` being those of its rows that are no padding."""
    sharding = getattr(leaf, "sharding", None)
    spec = str(sharding.spec) if isinstance(sharding, NamedSharding) else None
    facts = LeafFacts(name, tuple(np.shape(leaf)), str(real.dtype), spec)
    if is_text(real.dtype):
        sizes = [len(value) for value in real.ravel() if hasattr(value, "__len__")]
        return dataclasses.replace(_counted(facts, np.array(sizes, int)), of_lengths=True)
    values = _countable(real)
    return facts if values is None else _counted(facts, values)


def _countable(values: Any) -> np.ndarray | None:
    """The values as numpy can count them: those of bfloat16 and its like as plain floats."""
    dtype = values.dtype
    if dtype == np.bool_:
        return values.astype(np.uint8)
    if jnp.issubdtype(dtype, np.integer):
        return values if dtype.kind in "iu" else values.astype(np.int32)
    if jnp.issubdtype(dtype, np.floating):
        return values if dtype.kind == "f" else values.astype(np.float32)
    return None


def _counted(facts: LeafFacts, values: np.ndarray) -> LeafFacts:
    finite = np.isfinite(values)
    kept = values if finite.all() else values[finite]
    nan = int(np.isnan(values).sum())
    inf = values.size - kept.size - nan
    if not kept.size:
        return dataclasses.replace(facts, nan=nan, inf=inf)
    with np.errstate(over="ignore"):
        mean = float(kept.mean(dtype=np.float64))
    as_python = float if kept.dtype.kind == "f" else int
    least, most = as_python(kept.min()), as_python(kept.max())
    return dataclasses.replace(facts, least=least, most=most, mean=mean, nan=nan, inf=inf)
