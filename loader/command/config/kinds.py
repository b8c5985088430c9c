"""What the tables of a configuration can name, besides operators and tasks.

Mostly the classes themselves. Where a file cannot say an argument as the class takes it (specs,
arrays, the lengths of records), a function stands in for the class.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np

import loader.sources as sources
from loader.batchers import DefaultBatcher, PadBatcher
from loader.order.block_shuffle import BlockShuffle
from loader.order.orders import Sequential, Shuffle
from loader.records.work import Workers
from loader.runtime.bad_records import Mask
from loader.runtime.workers.processes.kind import Processes
from loader.runtime.workers.ray.kind import Ray
from loader.runtime.workers.threads import Threads
from loader.sources import ArraySource, Filtered, Mixture, Packed, RawArrays, index_lengths
from loader.sources.mapped import Mapped
from loader.sources.packing.packed_rows import leaf_names
from loader.sources.storage.cache.disk_cache import DiskCache

Kinds = Mapping[str, Callable[..., Any]]


def _raw_arrays(spec: dict[str, Any]) -> RawArrays:
    """Leaves as texts: `{ image = "uint8[8, 8]", label = "int32" }`."""

    def leaf(text: Any) -> jax.ShapeDtypeStruct:
        if not isinstance(text, str):
            raise ValueError(f"spec has leaves such as 'uint8[8, 8]', got {text!r}")
        dtype, _, shape = text.partition("[")
        sizes = tuple(int(size) for size in shape.rstrip("] ").split(",") if size.strip())
        return jax.ShapeDtypeStruct(sizes, np.dtype(dtype.strip()))

    return RawArrays(jax.tree.map(leaf, spec))


def _arrays(arrays: dict[str, Any]) -> ArraySource:
    """Files of numpy, mapped into memory: `{ image = "images.npy", label = "labels.npy" }`."""
    return ArraySource(jax.tree.map(lambda path: np.load(path, mmap_mode="r"), arrays))


def _packed(
    source: Any,
    row_length: int,
    seed: int = 0,
    leaf: str | list[str] = "tokens",
    mode: Literal["fit", "concat"] = "fit",
    fit: Literal["best", "first"] = "best",
    long: Literal["refuse", "split"] = "refuse",
    most_segments: int | None = None,
    positions: Literal["row", "record"] = "row",
    pad_value: int = 0,
    lengths_cache: str | None = None,
    tokens: str | None = None,
    cache: Any = None,
    cache_bytes: int = 2**28,
    workers: Any = None,
) -> Packed:
    """The lengths are counted here; `tokens`, a file, is written if it is not there yet.

    Several leaves, `leaf = ["tokens", "loss_mask"]`, are as long as the first in each record.
    """
    if tokens is not None and lengths_cache is not None:
        raise ValueError(
            "lengths_cache has no effect beside tokens, which keeps them: leave it out"
        )
    _refuse_suffix("tokens", tokens, ".bin")
    _refuse_suffix("lengths_cache", lengths_cache, ".npy")
    first = leaf_names(leaf)[0]
    lengths = index_lengths(source, first, cache=lengths_cache, tokens=tokens, workers=workers)
    how: dict[str, Any] = {"leaf": leaf, "mode": mode, "fit": fit, "long": long}
    how |= {"most_segments": most_segments, "positions": positions, "pad_value": pad_value}
    how |= {"tokens": tokens, "cache": cache, "cache_bytes": cache_bytes}
    return Packed(source, lengths, row_length, seed, **how)


def _refuse_suffix(key: str, path: str | None, suffix: str) -> None:
    """A configuration writes no file that could be taken for code."""
    if path is not None and not path.endswith(suffix):
        raise ValueError(f"{key} is a file that is written: give a name that ends in {suffix}")


def _filtered(
    source: Any, keep: Callable[..., Any], index: str | None = None, workers: Any = None
) -> Filtered:
    """`keep = { ref = "my_module:is_long" }`; `index`, a file, is written if it is not there."""
    _refuse_suffix("index", index, ".npy")
    return Filtered(source, keep, index, workers=workers)


def _mixture(components: dict[str, Any], seed: int = 0, length: int | None = None) -> Mixture:
    """Components as tables: `{ web = { weight = 3, source = { kind = ... } } }`."""
    if not isinstance(components, dict):
        raise ValueError(f"components are tables by name, got {components!r}")
    for name, component in components.items():
        if not isinstance(component, dict) or set(component) != {"weight", "source"}:
            raise ValueError(f"components need a weight and a source each, see {name!r}")
    pairs = {name: (part["source"], part["weight"]) for name, part in components.items()}
    return Mixture(pairs, seed, length=length)


def _mask(most: int = 100, log: str | None = "bad_records.jsonl") -> Mask:
    """As the class, but a configuration writes no file that could be taken for code."""
    if log is not None and not log.endswith(".jsonl"):
        raise ValueError("log is a file that is written: give a name that ends in .jsonl")
    return Mask(most, log)


def _on(**settings: Any) -> Any:
    """A file cannot make an executor."""
    raise ValueError(
        "an executor is made by Python code: write a function that gives On(executor), and name "
        'it, as in workers = { kind = "my_module:workers" }'
    )


def _ray(
    count: int | None = None,
    options: dict[str, Any] | None = None,
    ahead: int | None = None,
    timeout_s: float = 60.0,
    restarts: int = 3,
    share: str | None = None,
) -> Ray:
    """As the class, but a configuration brings in no code: neither a cluster's nor packages."""
    if "runtime_env" in (options or {}):
        raise ValueError(
            "runtime_env brings in code: write a function that gives Ray(...), and name it, as in "
            'workers = { kind = "my_module:workers" }'
        )
    return Ray(count, None, options, ahead, timeout_s, restarts, share)


_AS_THEY_ARE = (
    *("ArrayRecordSource", "FilesSource", "Msgpack", "TensorStoreSource", "TextLinesSource"),
    *("HuggingFaceSource", "ImageFolderSource", "JSONLinesSource", "ParquetSource"),
    *("TFExample", "TFRecordSource", "TarSource", "TokenWindows"),
)
_CLASSES = (
    *(Mapped, Sequential, Shuffle, BlockShuffle, DefaultBatcher, PadBatcher),
    *(Threads, Processes, DiskCache),
)
KINDS: Kinds = {
    "ArraySource": _arrays,
    "Filtered": _filtered,
    "Mask": _mask,
    "Mixture": _mixture,
    "On": _on,
    "Packed": _packed,
    "RawArrays": _raw_arrays,
    "Ray": _ray,
    **{name: getattr(sources, name) for name in _AS_THEY_ARE},
    **{kind.__name__: kind for kind in _CLASSES},
}

_LONG_WORK = ("Packed", "Filtered")  # kinds that read all records, once


def at_work(kinds: Kinds, workers: Workers | None) -> Kinds:
    """The kinds, with these workers for the long work of those that have some."""
    if workers is None:
        return kinds
    given = {name: functools.partial(kinds[name], workers=workers) for name in _LONG_WORK}
    return {**kinds, **given}
