"""Grain's own shuffle, bit for bit, for whole arrays of indices.

Grain permutes one index a call with a four-round Simon-like cipher. Its block is one bit short at
lengths 2**16 + 1, 2**18 + 1, ...: those would lose a record and are refused here.
"""

import math

import numpy as np
import numpy.typing as npt

from loader.records.integers import Int64s


def grain_shuffle(epochs: Int64s, offsets: Int64s, num_records: int, seed: int) -> Int64s:
    """Grain's `index_shuffle`, in bulk: a four-round Simon-like cipher, walked into range."""
    if num_records == 1:
        return np.zeros_like(offsets)
    last = num_records - 1
    bits = math.ceil(math.log2(float(last)))
    bits = max(bits + bits % 2, 16)
    if last >> bits:
        raise ValueError(
            f"Grain's shuffle of {num_records} records loses one record and repeats another (its "
            f"cipher has {bits} bits, one too few), so match_grain=True refuses this length: use "
            "Shuffle(seed), or a source with one record more or fewer"
        )
    out = np.empty_like(offsets)
    for epoch in np.unique(epochs).tolist():
        chosen = slice(None) if epochs.size == 1 else epochs == epoch
        keys = _seed_sequence((seed + epoch) % 2**32)
        index = offsets[chosen].astype(np.uint32 if bits <= 32 else np.uint64)
        if num_records < 2**13:
            out[chosen] = _grain_table(num_records, keys)[index]
        else:
            walked = _simon(index, bits, keys)
            outside = np.flatnonzero(walked > last)
            while outside.size:
                again = _simon(walked[outside], bits, keys)
                walked[outside] = again
                outside = outside[again > last]
            out[chosen] = walked
    return out


def _grain_table(num_records: int, keys: list[int]) -> npt.NDArray[np.uint32]:
    """The whole permutation of a short source, where walking would take up to 2**15 rounds.

    Jumps double: after k passes an entry is the first image in range, or the image 2**k steps on.
    """
    jump = _simon(np.arange(2**16, dtype=np.uint32), 16, keys)
    while (jump[:num_records] >= num_records).any():
        jump = np.where(jump < num_records, jump, jump[jump])
    return jump[:num_records]


def _simon(x: np.ndarray, bits: int, keys: list[int]) -> np.ndarray:
    word = bits // 2
    mask = x.dtype.type((1 << word) - 1)

    def rotate(value: np.ndarray, by: int) -> np.ndarray:
        return ((value << x.dtype.type(by)) | (value >> x.dtype.type(word - by))) & mask

    def mixed(value: np.ndarray) -> np.ndarray:
        return (rotate(value, 1) & rotate(value, 8)) ^ rotate(value, 2)

    left, right = x >> x.dtype.type(word), x & mask
    for first, second in (keys[0:2], keys[2:4]):
        left = left ^ mixed(right) ^ (x.dtype.type(first) & mask)
        right = right ^ mixed(left) ^ (x.dtype.type(second) & mask)
    return (left << x.dtype.type(word)) | right


def _seed_sequence(seed: int) -> list[int]:
    """The four words that C++ defines `std::seed_seq{seed}` to generate."""
    words, count, middle, spread = [0x8B8B8B8B] * 4, 4, 1, 2
    for k in range(2 * count):
        here, near, far = k % count, (k + middle) % count, (k + spread) % count
        if k < count:
            seen = words[here] ^ words[near] ^ words[k - 1]
            step = 1664525 * (seen ^ (seen >> 27)) % 2**32
            added = (step + (1 if k == 0 else here + (seed if k == 1 else 0))) % 2**32
            words[near] = (words[near] + step) % 2**32
            words[far] = (words[far] + added) % 2**32
        else:
            seen = (words[here] + words[near] + words[(k - 1) % count]) % 2**32
            step = 1566083941 * (seen ^ (seen >> 27)) % 2**32
            added = (step - here) % 2**32
            words[near] ^= step
            words[far] ^= added
        words[here] = added
    return words
