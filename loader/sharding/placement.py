"""Host batches onto devices: which rows are needed here, in which dtypes, and where leaves go.

The rows a process needs follow from the shardings themselves, leaf by leaf, so they are right on
any mesh; arrays are assembled from them without a collective. JAX narrows 64-bit values without a
word: here a float does as JAX does, and an integer is narrowed only if its value survives.

A buffer that has been placed may be aliased by JAX. It is never written again, and no array serves
two batches.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from loader.records.integers import Int64s
from loader.records.jax_settings import default_device, transfers_are_guarded
from loader.records.narrowing import device_dtype, narrowed, on_host, survives, unplaceable
from loader.records.spec import Spec, named_leaves
from loader.sharding.leaf_placement import LeafPlacement


class Placement:
    """Where every leaf of a batch goes.

    `spec` is that of the whole batch as the host gives it; `shardings` mirrors it, or is None for
    the default device. Messages leave out `prefix` from the names of leaves.
    """

    def __init__(
        self,
        spec: Spec,
        batch_size: int,
        microbatches: int | None,
        shardings: Any = None,
        prefix: str = "",
    ) -> None:
        self._host_spec = spec
        parts = () if microbatches is None else (microbatches,)
        self._rows_shape = (*parts, batch_size // (microbatches or 1))
        self.shardings = shardings
        self.spec = narrowed(spec)
        if shardings is not None:
            self.spec = jax.tree.map(
                lambda s, at: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=at),
                self.spec,
                shardings,
            )
        self._names = [name.removeprefix(prefix) for name, _ in named_leaves(self.spec)]
        leaves, self._tree = jax.tree.flatten(self.spec)
        # The dtypes of leaves that can be placed as they are; None where no device holds such.
        self._as_they_are = [None if device_dtype(s.dtype) is None else s.dtype for s in leaves]
        self._columns = self._needed_columns()
        self._places = [LeafPlacement(leaf, self._part_here) for leaf in leaves]

    @property
    def rows(self) -> Int64s | None:
        """The rows of a batch that this process needs, ascending; None for all of them."""
        if self._columns is None:
            return None
        starts = np.arange(np.prod(self._rows_shape[:-1], dtype=int)) * self._rows_shape[-1]
        return (starts[:, None] + self._columns).ravel()

    def place(self, host_batch: Any, record_of: Callable[[int], str | None]) -> Any:
        """The rows of this process, as arrays of the whole batch.

        `record_of` names the record of a row, for an error.
        """
        device, guarded = default_device(), transfers_are_guarded()
        placed = []
        for number, leaf in enumerate(self._tree.flatten_up_to(host_batch)):
            if type(leaf) is not np.ndarray or leaf.dtype != self._as_they_are[number]:
                leaf = self._narrowed(number, leaf, record_of)
            place = self._places[number]
            placed.append(place.place_by_jax(leaf) if guarded else place.place(leaf, device))
        return self._tree.unflatten(placed)

    def _narrowed(
        self, number: int, leaf: Any, record_of: Callable[[int], str | None]
    ) -> np.ndarray | jax.Array:
        """The leaf in the dtype of the spec. `ValueError` for an integer that does not fit."""
        leaf = on_host(leaf)
        dtype = self._as_they_are[number]
        if dtype is None:
            raise unplaceable(self._names[number], leaf.dtype)
        small = leaf if leaf.dtype == dtype else leaf.astype(dtype)
        if small is not leaf and not survives(leaf, small):
            raise self._does_not_fit(self._names[number], leaf, small, record_of)
        return small

    def _does_not_fit(
        self, name: str, leaf: Any, small: Any, record_of: Callable[[int], str | None]
    ) -> ValueError:
        where = tuple(np.argwhere(small != leaf)[0].tolist())
        rows_shape = self._rows_shape
        if self._columns is not None:
            rows_shape = (*rows_shape[:-1], self._columns.size)
        record = None
        if leaf.shape[: len(rows_shape)] == rows_shape:
            row = int(np.ravel_multi_index(where[: len(rows_shape)], rows_shape))
            record = record_of(row if self.rows is None else int(self.rows[row]))
        return ValueError(
            f"leaf {name!r}{'' if record is None else f' of record {record}'} holds {leaf[where]}, "
            f"which does not fit {small.dtype}: use smaller values, cast the leaf to a float with "
            "an operator, or turn on jax_enable_x64"
        )

    def table(self) -> str:
        """A line per leaf: name, shape, dtype, spec, shape on a device, rows read, bytes a step."""
        header = ["leaf", "shape", "dtype", "spec", "on a device", "rows read here", "bytes a step"]
        lines = [header]
        for (name, host), placed in zip(
            named_leaves(self._host_spec), jax.tree.leaves(self.spec), strict=True
        ):
            sharding = placed.sharding
            narrowing = "" if host.dtype == placed.dtype else f"{host.dtype} -> "
            on_device = sharding.shard_shape(placed.shape) if sharding else placed.shape
            size = np.dtype(placed.dtype).itemsize if isinstance(placed.dtype, np.dtype) else 8
            lines.append(
                [
                    name,
                    str(placed.shape),
                    f"{narrowing}{placed.dtype}",
                    str(sharding.spec) if sharding else "default device",
                    str(on_device),
                    _ranges(self.rows, int(np.prod(self._rows_shape))),
                    f"{int(np.prod(placed.shape)) * size:,}",
                ]
            )
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        lines.insert(1, ["-" * width for width in widths])
        padded = [[c.ljust(w) for c, w in zip(line, widths, strict=True)] for line in lines]
        return "\n".join("  ".join(line).rstrip() for line in padded)

    def _needed_columns(self) -> Int64s | None:
        """Along the row axis: the union of what the devices of this process hold of any leaf."""
        if self.shardings is None:
            return None
        axis, count = len(self._rows_shape) - 1, self._rows_shape[-1]
        needed = np.zeros(count, bool)
        unaligned = []
        for name, leaf in named_leaves(self.spec):
            if leaf.shape[: axis + 1] != self._rows_shape:
                unaligned.append(name)
                continue
            for index in leaf.sharding.addressable_devices_indices_map(leaf.shape).values():
                needed[index[axis]] = True
        shardings = [leaf.sharding for leaf in jax.tree.leaves(self.spec)]
        if needed.all() or all(sharding.is_fully_addressable for sharding in shardings):
            return None
        if unaligned:
            raise ValueError(
                f"leaves {unaligned} have no row for each record, so they cannot be made from the "
                "rows of one process: compute them in the step, or replicate the batch with P()"
            )
        return np.flatnonzero(needed)

    def _part_here(self, index: Any) -> Any:
        """Of the part of a leaf that a device holds: which part it is of the rows read here."""
        if self._columns is None:
            return index
        # What a device holds is a run of rows, all of them read, so a run of ours too.
        axis = len(self._rows_shape) - 1
        start, stop, _ = index[axis].indices(self._rows_shape[-1])
        first = int(np.searchsorted(self._columns, start))
        return (*index[:axis], slice(first, first + stop - start), *index[axis + 1 :])


def _ranges(rows: Int64s | None, count: int) -> str:
    """Row numbers as people write them: `0-3, 8-11`."""
    if rows is None:
        return f"all {count}"
    runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    texts = [f"{run[0]}-{run[-1]}" if run.size > 1 else str(run[0]) for run in runs]
    return ", ".join(texts if len(texts) <= 4 else [*texts[:3], f"... ({rows.size} in all)"])
