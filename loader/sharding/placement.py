"""Host batches onto devices: which rows are needed here, in which dtypes, and how leaves are sent.

The rows a process needs follow from the shardings themselves, leaf by leaf, so they are right on
any mesh; arrays are assembled from them without a collective. JAX narrows 64-bit values without a
word: here a float does as JAX does, and an integer is narrowed only if its value survives.

A buffer that has been placed may be aliased by JAX. It is never written again, and no array serves
two batches.

`jax.device_put` and `jax.make_array_from_callback` find out for every array anew what it is and
where it goes: some 80 and 30 µs on one device, and then both call one function of jaxlib that takes
10. An array that they have placed shows all that this function must be told. So the first leaf is
placed by JAX, and those of later batches are sent the same way. Beside a step of 1 ms of Python, a
batch of 256 images takes 1.25 ms that way and 1.47 ms without it. That function is not part of
JAX's public interface. Where it is missing, or a trial shows that it does something else, JAX goes
on placing every leaf.

It takes one array a call, and so many small leaves are placed one by one: 31 columns of 4096 floats
take 0.16 ms on one device and 0.7 ms on a mesh of eight. `jax.device_put` of the whole tree takes
0.44 and 1.3 ms; one array of all columns, split in jit, 0.18 and 1.2 ms.
"""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from loader.records.errors import RowError
from loader.records.integers import Int64s
from loader.records.jax_settings import batched_device_put, default_device, transfers_are_guarded
from loader.records.narrowing import device_dtype, narrowed, on_host, survives, unplaceable
from loader.records.spec import Spec, named_leaves

Send = Callable[[np.ndarray], jax.Array]

_LARGE = 2**24  # bytes: moving them takes far longer, and a trial would need them twice
# Of the table that `loader.explain()` prints.
_HEADER = ["leaf", "shape", "dtype", "spec", "on a device", "rows read here", "bytes a step"]


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


class LeafPlacement:
    """Where one leaf goes: as the sharding of its spec says, or to the default device.

    `part_of` says, of the part that a device holds, which part it is of the rows read here.
    """

    def __init__(self, spec: jax.ShapeDtypeStruct, part_of: Callable[[Any], Any]) -> None:
        self._shape = spec.shape
        self._sharding = spec.sharding
        self._part_of = part_of
        # By the default device, where it goes there: for leaves of which shape, and how.
        self._routes: dict[Any, tuple[tuple[int, ...], Send] | None] = {}

    def place(self, leaf: Any, device: Any) -> jax.Array:
        """The leaf as an array of the whole batch. `device` is what `default_device()` gives."""
        key = device if self._sharding is None else None
        route = self._routes.get(key)
        if route is not None and leaf.shape == route[0]:
            return route[1](leaf)
        placed = self.place_by_jax(leaf)
        if key not in self._routes and isinstance(leaf, np.ndarray):
            self._routes[key] = self._route(leaf, placed)
        return placed

    def place_by_jax(self, leaf: Any) -> jax.Array:
        """The same, never the short way."""
        if isinstance(leaf, np.ndarray) and self._sharding is not None:
            return jax.make_array_from_callback(
                self._shape, self._sharding, lambda index: leaf[self._part_of(index)]
            )
        if self._sharding is not None and not self._sharding.is_fully_addressable:
            raise ValueError(
                "PRNG keys cannot be placed on several processes: give "
                "jax.random.key_data(keys) and wrap it again in the step"
            )
        return jax.device_put(leaf, self._sharding)

    def _route(self, leaf: np.ndarray, placed: jax.Array) -> tuple[tuple[int, ...], Send] | None:
        """The way this leaf went, if a trial of it ends in the same array."""
        put = batched_device_put()
        if put is None or leaf.nbytes > _LARGE:
            return None
        held = placed.sharding.addressable_devices_indices_map(placed.shape)
        parts, devices = [self._part_of(index) for index in held.values()], list(held)
        kind, sharding, committed = jax.typeof(placed), placed.sharding, placed.committed

        def send(leaf: np.ndarray) -> jax.Array:
            """The leaf, in a piece for each device here, as one array."""
            return put(kind, sharding, [leaf[part] for part in parts], devices, committed)

        try:
            return (leaf.shape, send) if _same(send(leaf), placed) else None
        except Exception:  # whatever another jaxlib makes of it
            return None


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
        pairs = zip(named_leaves(self._host_spec), jax.tree.leaves(self.spec), strict=True)
        read = _ranges(self.rows, int(np.prod(self._rows_shape)))
        lines = [_HEADER, *(_line(name, host, placed, read) for (name, host), placed in pairs)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADER))]
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


def _same(sent: jax.Array, placed: jax.Array) -> bool:
    """Whether two arrays agree in all that can be seen of them here."""
    shards = zip(sent.addressable_shards, placed.addressable_shards, strict=True)
    return (
        jax.typeof(sent) == jax.typeof(placed)
        and sent.sharding == placed.sharding
        and sent.committed == placed.committed
        and all(
            (a.device, a.index) == (b.device, b.index)
            and np.asarray(a.data).tobytes() == np.asarray(b.data).tobytes()
            for a, b in shards
        )
    )


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
