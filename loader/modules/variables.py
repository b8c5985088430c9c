"""Variables of modules that are written once a batch."""

from typing import Any

import numpy as np
from flax import nnx

from loader.records.jax_settings import raw_value, set_raw_value


class IterationCount(nnx.Variable[Any]):
    """A counter over an array, so that `nnx` treats it as data and transforms may change it.

    `nnx.StateAxes({IterationCount: None})` broadcasts counters, `nnx.Carry` carries them.
    """

    def add(self, amount: int) -> None:
        """Count on the host: no JAX operation, and 64 bits wide.

        A counter that passes through jit comes out as wide as JAX's integers are.
        """
        set_raw_value(self, np.array(raw_value(self).item() + amount, np.int64))


class Mirror(nnx.Variable[Any]):
    """A variable that repeats, for people to read, a number whose truth is kept elsewhere."""

    def set_value(self, value: Any, **kwargs: Any) -> None:
        if kwargs:
            super().set_value(value, **kwargs)
        else:
            set_raw_value(self, value)
