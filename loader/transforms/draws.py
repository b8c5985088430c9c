"""Random numbers that belong to a row: a function of (key, position), drawn in bulk.

A row draws the same numbers whatever the batch it is in, the process that handles it, or what
was drawn before. They are float32 in [0, 1), made on the host, and handed to host and device alike.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from loader.order.permutation import mix
from loader.records.integers import Int64s
from loader.transforms.numpy_or_jax import is_jax

Uniforms = npt.NDArray[np.float32]  # (rows, draws)

_ODD = np.uint32(0x9E3779B9)
_FACTORS = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_HALF, _MORE = np.uint32(15), np.uint32(16)  # bits to shift by


def draw(key: str, positions: Int64s, count: int) -> Uniforms:
    """`count` numbers for the row at each position."""
    columns = np.arange(count, dtype=np.uint64)
    counters = positions.astype(np.uint64)[:, None] * np.uint64(count) + columns
    bits = mix(0, key, counters)
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


def below(uniforms: Any, limits: Any) -> Any:
    """Integers in [0, limit) for each number, on the host or in jit: both round alike."""
    limits = limits if is_jax(limits) else np.asarray(limits)
    product = uniforms * limits.astype(np.float32)  # which may be rounded up to the limit itself
    return product.astype(np.int32).clip(max=limits - 1)


def words_at(uniforms: Any, places: Any, purpose: int) -> Any:
    """32 random bits for each place of a row, on the host or in jit: both give the same.

    For operators that need a number for each item of a row, however many it has. Two draws of the
    row say which: `uniforms[..., 0]` and `uniforms[..., 1]`, which are broadcast against `places`
    (uint32). What is drawn for one purpose tells nothing of another.
    """
    one, two = ((uniforms[..., n] * np.float32(2**24)).astype(np.uint32) for n in (0, 1))
    begin = _stirred(one + np.full(1, purpose, np.uint32) * _ODD)
    then = _stirred(begin ^ two)
    bits = places * _ODD + begin
    bits = (bits ^ (bits >> _MORE)) * _FACTORS[0]
    bits = ((bits ^ (bits >> _HALF)) + then) * _FACTORS[1]
    return bits ^ (bits >> _MORE)


def uniform(words: Any) -> Any:
    """Words of 32 bits as float32 in [0, 1), as `draw` gives them."""
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)


def _stirred(bits: Any) -> Any:
    bits = (bits ^ (bits >> _MORE)) * _FACTORS[0]
    bits = (bits ^ (bits >> _HALF)) * _FACTORS[1]
    return bits ^ (bits >> _MORE)


def generator(uniforms: npt.NDArray[np.float32]) -> np.random.Generator:
    """A numpy generator seeded by the numbers of one row (two of them: 48 bits)."""
    return np.random.default_rng([int(number * 2**24) for number in uniforms])
