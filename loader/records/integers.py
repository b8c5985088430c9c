"""Integers: arrays of them, and checks."""

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
