"""Keyed permutations of [0, length), for millions of indices at once.

An alternating Feistel network permutes the smallest power of two that holds the length; an index
that lands outside is sent through again until it lands inside, which keeps the map one to one.
Round keys are a hash of (seed, purpose, counter): neighbouring seeds share nothing.
"""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from loader.records.integers import Int64s

Keys = npt.NDArray[np.uint32]  # (rounds, 1): one key for all; (rounds, n): a key for each index

_ROUNDS = 8
_FACTORS = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_HALF = np.uint32(15)
_FEW_RUNS = 16
_POWERS = 2 ** np.arange(62)  # as many are at most n as n has bits
_CHUNK = 32768  # indices sent through at once: their temporaries stay in the cache


def mix(seed: int, purpose: str, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """64 well-mixed bits for each counter; seeds and purposes are hashed, so none are near."""
    name = hashlib.sha256(f"{purpose}/{seed}".encode()).digest()
    bits = counters * np.uint64(0x9E3779B97F4A7C15) + np.uint64(int.from_bytes(name[:8], "little"))
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def round_keys(seed: int, purpose: str, counters: Int64s) -> Keys:
    """Round keys for each counter; a single column where all counters are the same."""
    starts = np.flatnonzero(np.diff(counters)) + 1  # of runs of equal counters, but the first
    ends = np.append(starts, counters.size)
    rounds = np.arange(1, _ROUNDS + 1, dtype=np.uint64)[:, None]
    own = counters[ends - 1].astype(np.uint64) if counters.size else np.zeros(1, np.uint64)
    keys = mix(seed, purpose, own * np.uint64(_ROUNDS) + rounds)
    keys = (keys >> np.uint64(32)).astype(np.uint32)
    return np.repeat(keys, np.diff(ends, prepend=0), axis=1) if starts.size else keys


def hashed(seed: int, purpose: str, counters: Int64s, below: int) -> Int64s:
    bits = mix(seed, purpose, counters.astype(np.uint64) + np.uint64(1))
    return (bits % np.uint64(below)).astype(np.int64)


def epochs_and_offsets(positions: Int64s, num_records: int) -> tuple[Int64s, Int64s]:
    """The epoch of each position, or one for all of them if that is so, and its place in there."""
    positions = np.asarray(positions, np.int64)
    if positions.size:
        first, last = int(positions.min()) // num_records, int(positions.max()) // num_records
        if first == last:  # the usual case, and a division less per position
            return np.array([first]), positions - first * num_records
    return np.divmod(positions, num_records)


def permute(index: Int64s, length: int, keys: Keys) -> Int64s:
    """Where each index of [0, length) goes under the permutation that its keys choose."""
    if length == 1:
        return np.zeros(index.size, np.int64)
    bits = max(2, (length - 1).bit_length())
    return _permuted(index, bits, np.array(length - 1), keys)


def permute_by_length(index: Int64s, lengths: Int64s, keys: Keys) -> Int64s:
    """`permute`, each index within a length of its own, all of them below 2**62."""
    changes = np.flatnonzero(np.diff(lengths)) + 1
    out = np.empty_like(index)
    if changes.size <= _FEW_RUNS:  # views, where masks would copy all keys
        ends = [*changes.tolist(), lengths.size]
        for start, end in zip([0, *ends], ends, strict=False):
            if start < end:
                own = keys if keys.shape[1] == 1 else keys[:, start:end]
                out[start:end] = permute(index[start:end], int(lengths[start]), own)
        return out
    bits = np.maximum(2, np.searchsorted(_POWERS, lengths - 1, side="right"))
    for width in np.unique(bits).tolist():
        some = np.flatnonzero(bits == width)
        own = keys if keys.shape[1] == 1 else keys[:, some]
        out[some] = _permuted(index[some], width, lengths[some] - 1, own)
    return out


def _permuted(index: Int64s, bits: int, last: Int64s, keys: Keys) -> Int64s:
    """Each index sent through until it is at most `last`: one for all, or one for each of them."""
    word = np.uint32 if bits <= 32 else np.uint64  # half the memory, and most of the time
    one_key = keys.shape[1] == 1
    network = None
    if one_key and index.size >= last.max() + 1:  # the whole network at once, to look up in
        network = _feistel(np.arange(1 << bits, dtype=word), bits, keys)

    def send(x: npt.NDArray[Any], which: Any) -> npt.NDArray[Any]:
        if network is not None:
            return network[x]
        return _feistel(x, bits, keys if one_key else keys[:, which])

    out = np.empty(index.size, word)
    for start in range(0, index.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        out[part] = send(index[part].astype(word), part)
    most = np.broadcast_to(last.astype(word), out.shape)
    outside = np.flatnonzero(out > most)
    while outside.size:  # more than half of the network's range is inside, so few rounds
        again = send(out[outside], outside)
        out[outside] = again
        outside = outside[again > most[outside]]
    return out.astype(np.int64)


def _feistel(x: npt.NDArray[Any], bits: int, keys: Keys) -> npt.NDArray[Any]:
    """A bijection on `bits` bits: two halves, each in turn mixed into the other."""
    word, low_bits = x.dtype.type, bits // 2
    high = (x >> word(low_bits)).astype(np.uint32, copy=False)
    low = (x & word((1 << low_bits) - 1)).astype(np.uint32, copy=False)
    mixed, shifted = np.empty_like(high), np.empty_like(high)
    for number, key in enumerate(keys):
        source, target, width = (
            (high, low, low_bits) if number % 2 else (low, high, bits - low_bits)
        )
        np.add(source, key, out=mixed)
        np.multiply(mixed, _FACTORS[0], out=mixed)
        np.right_shift(mixed, _HALF, out=shifted)
        np.bitwise_xor(mixed, shifted, out=mixed)
        np.multiply(mixed, _FACTORS[1], out=mixed)
        np.right_shift(mixed, np.uint32(32 - width), out=mixed)  # the best mixed bits, `width` wide
        np.bitwise_xor(target, mixed, out=target)
    whole = high.astype(word, copy=False)
    np.left_shift(whole, word(low_bits), out=whole)
    return np.bitwise_or(whole, low, out=whole)
