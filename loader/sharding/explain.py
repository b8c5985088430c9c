"""The table that `loader.explain()` prints."""

from typing import Any

import jax
import numpy as np

from loader.records.integers import Int64s
from loader.records.spec import Spec, named_leaves

_HEADER = ["leaf", "shape", "dtype", "spec", "on a device", "rows read here", "bytes a step"]


def table_of(host_spec: Spec, spec: Spec, rows: Int64s | None, batch_size: int) -> str:
    """A line for each leaf, under a header."""
    pairs = zip(named_leaves(host_spec), jax.tree.leaves(spec), strict=True)
    read = _ranges(rows, batch_size)
    lines = [_HEADER, *(_line(name, host, placed, read) for (name, host), placed in pairs)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADER))]
    lines.insert(1, ["-" * width for width in widths])
    padded = [[c.ljust(w) for c, w in zip(line, widths, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def _line(name: str, host: Any, placed: Any, read: str) -> list[str]:
    sharding = placed.sharding
    narrowing = "" if host.dtype == placed.dtype else f"{host.dtype} -> "
    on_device = sharding.shard_shape(placed.shape) if sharding else placed.shape
    size = np.dtype(placed.dtype).itemsize if isinstance(placed.dtype, np.dtype) else 8
    return [
        name,
        str(placed.shape),
        f"{narrowing}{placed.dtype}",
        str(sharding.spec) if sharding else "default device",
        str(on_device),
        read,
        f"{int(np.prod(placed.shape)) * size:,}",
    ]


def _ranges(rows: Int64s | None, count: int) -> str:
    """Row numbers as people write them: `0-3, 8-11`."""
    if rows is None:
        return f"all {count}"
    runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    texts = [f"{run[0]}-{run[-1]}" if run.size > 1 else str(run[0]) for run in runs]
    return ", ".join(texts if len(texts) <= 4 else [*texts[:3], f"... ({rows.size} in all)"])
