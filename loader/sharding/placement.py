"""Host batches onto devices: which rows are needed here, in which dtypes, and where leaves go.

The rows a process needs follow from the shardings themselves, leaf by leaf, so they are right on
any mesh; arrays are assembled from them without a collective. JAX narrows 64-bit values without a
word: here a float does as JAX does, and an integer is narrowed only if its value survives.

A buffer that has been placed may be aliased by JAX. It is never written again, and no array serves
two batches.
"""

from typing import Any, Protocol

import jax
import numpy as np

from loader.records.errors import RowError
from loader.records.integers import Int64s
from loader.records.jax_settings import default_device, transfers_are_guarded
from loader.records.narrowing import device_dtype, narrowed, on_host, survives, unplaceable
from loader.records.spec import Spec, named_leaves
from loader.sharding.explain import table_of
from loader.sharding.leaf_placement import LeafPlacement


class Placement(Protocol):
    """What the runtime asks of whatever brings batches onto devices."""

    @property
    def rows(self) -> Int64s | None:
        """The rows of a batch that this process needs, ascending; None for all of them."""
        ...

    @property
    def spec(self) -> Spec:
        """The spec of a batch as the loop sees it, shardings included."""
        ...

    def place(self, host_batch: Any, start: int) -> Any:
        """The rows of this process on its devices; `start` is the batch's first position.

        `RowError` names the leaf and the row of a value that no device can hold.
        """
        ...

    def finish(self, placed: Any) -> Any:
        """The batch as the loop sees it, from what was placed. Called by the consumer."""
        ...

    def table(self) -> str:
        """Where each leaf goes, for people to read."""
        ...


def rows_shape(batch_size: int, microbatches: int | None) -> tuple[int, ...]:
    """The leading axes of a batch: its rows, or its microbatches and their rows."""
    return (batch_size,) if microbatches is None else (microbatches, batch_size // microbatches)


class BatchPlacement:
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
        self._rows_shape = rows_shape(batch_size, microbatches)
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
        if self._columns is None:
            return None
        starts = np.arange(np.prod(self._rows_shape[:-1], dtype=int)) * self._rows_shape[-1]
        return (starts[:, None] + self._columns).ravel()

    def place(self, host_batch: Any, start: int = 0) -> Any:
        device, guarded = default_device(), transfers_are_guarded()
        placed = []
        for number, leaf in enumerate(self._tree.flatten_up_to(host_batch)):
            if type(leaf) is not np.ndarray or leaf.dtype != self._as_they_are[number]:
                leaf = self._narrowed(number, leaf)
            place = self._places[number]
            placed.append(place.place_by_jax(leaf) if guarded else place.place(leaf, device))
        return self._tree.unflatten(placed)

    def finish(self, placed: Any) -> Any:
        return placed

    def _narrowed(self, number: int, leaf: Any) -> np.ndarray | jax.Array:
        """The leaf in the dtype of the spec. `ValueError` for an integer that does not fit."""
        if type(leaf) is not np.ndarray:
            leaf = on_host(leaf)
        dtype = self._as_they_are[number]
        if dtype is None:
            raise unplaceable(self._names[number], leaf.dtype, leaf)
        small = leaf if leaf.dtype == dtype else leaf.astype(dtype)
        if small is not leaf and not survives(leaf, small):
            raise self._does_not_fit(self._names[number], leaf, small)
        return small

    def _does_not_fit(self, name: str, leaf: Any, small: Any) -> ValueError:
        where = tuple(np.argwhere(small != leaf)[0].tolist())
        message = (
            f"leaf {name!r} holds {leaf[where]}, which does not fit {small.dtype}: use smaller "
            "values, cast the leaf to a float with an operator, or turn on jax_enable_x64"
        )
        here = self._rows_shape
        if self._columns is not None:
            here = (*here[:-1], self._columns.size)
        if leaf.shape[: len(here)] != here:
            return ValueError(message)
        row = int(np.ravel_multi_index(where[: len(here)], here))
        return RowError(row if self.rows is None else int(self.rows[row]), message)

    def table(self) -> str:
        return table_of(self._host_spec, self.spec, self.rows, int(np.prod(self._rows_shape)))

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
