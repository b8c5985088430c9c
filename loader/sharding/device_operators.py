"""All device operators of a loader as one jitted function.

It is dispatched by the consumer, never by a helper thread, and compiled once: batches have one
shape. What it takes is placed first, split by rows only; what it gives is sharded as the rules say.
Rows that are padding are zeros again afterwards.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from loader.records.jax_settings import traced
from loader.records.narrowing import device_dtype, narrowed, unplaceable
from loader.records.spec import (
    VALID_MASK,
    Spec,
    named_leaves,
    refuse_mask_key,
    spec_of,
    without_rows,
)
from loader.sharding.mesh_sharder import placement_on_default_device
from loader.sharding.placement import BatchPlacement, Placement, rows_shape
from loader.sharding.sharder_module import SharderModule
from loader.transforms.bound_transform import BoundTransform
from loader.transforms.transform import SpecUnknown, checked_rows, draws_of, spec_after

_INPUT, _DRAWS = "batch", "draws"


class OperatedPlacement:
    """Places host batches, with the draws of their rows, and runs the device operators on them.

    `place_output` says where the leaves of a batch of some spec go. Leaves `apart` pass unseen by
    the operators, as the mask does.
    """

    def __init__(
        self,
        transforms: Sequence[BoundTransform],
        spec: Spec,
        batch_size: int,
        microbatches: int | None,
        place_output: Callable[[Spec], BatchPlacement],
        apart: Sequence[str] = (),
    ) -> None:
        for name, leaf in named_leaves(spec):
            if device_dtype(leaf.dtype) is None:
                raise unplaceable(name, leaf.dtype)
        self._spec = spec
        self._transforms = tuple(transforms)
        self._apart = (VALID_MASK, *apart)
        count = sum(draws_of(bound.transform) for bound in transforms)
        self._rows_shape = rows_shape(batch_size, microbatches)
        taken = {_INPUT: spec}
        if count:
            draws_shape = (*self._rows_shape, count)
            taken[_DRAWS] = jax.ShapeDtypeStruct(draws_shape, np.dtype(np.float32))
        self._all_rows = np.arange(batch_size)
        function = self._on_rows if microbatches is None else jax.vmap(self._on_rows)
        self._output = place_output(jax.eval_shape(function, narrowed(taken)))
        shardings = self._output.shardings
        if shardings is not None:
            # Axes that JAX would have us reason about are left to the compiler.
            function = jax.sharding.auto_axes(function, out_sharding=shardings)
            shardings = _input_shardings(taken, self._output, len(self._rows_shape))
        self._input = BatchPlacement(taken, batch_size, microbatches, shardings, f"{_INPUT}/")
        self._function = jax.jit(function, out_shardings=self._output.shardings)
        self.spec = self._output.spec
        self.rows = self._input.rows

    def table(self) -> str:
        """As that of a `Placement`, of what comes out; and what was narrowed on the way in."""
        narrowed_leaves = [
            f"{name}: {host.dtype} -> {placed.dtype}, before the device operators"
            for (name, host), placed in zip(
                named_leaves(self._spec), jax.tree.leaves(narrowed(self._spec)), strict=True
            )
            if host.dtype != placed.dtype
        ]
        return "\n".join([self._output.table(), *narrowed_leaves])

    def place(self, host_batch: Any, start: int) -> Any:
        taken = {_INPUT: host_batch}
        positions = start + (self._all_rows if self.rows is None else self.rows)
        drawn = [bound.draw(positions) for bound in self._transforms]
        if any(draws is not None for draws in drawn):
            draws = np.concatenate([draws for draws in drawn if draws is not None], axis=1)
            taken[_DRAWS] = draws.reshape(*self._rows_shape[:-1], -1, draws.shape[-1])
        return self._input.place(taken)

    def finish(self, placed: Any) -> Any:
        with traced("dispatch"):
            return self._function(placed)  # dispatches, and does not wait

    def _on_rows(self, taken: dict[str, Any]) -> Any:
        batch, draws = taken[_INPUT], taken.get(_DRAWS)
        count = self._rows_shape[-1]
        rows, apart = _rows_and_others(batch, count, self._apart)
        valid = apart.get(VALID_MASK, jnp.ones(count, bool))
        first = 0
        for bound in self._transforms:
            last = first + draws_of(bound.transform)
            own = None if draws is None else draws[:, first:last]
            record_spec = without_rows(spec_of(rows))
            with contextlib.suppress(SpecUnknown):  # says best what does not fit
                spec_after(bound.transform, bound.name, record_spec, try_zeros=False)
            rows = checked_rows(bound.name, bound.call(rows, own, valid), count)
            first = last
            if apart and not isinstance(rows, dict):
                raise ValueError(
                    f"operator {bound.name} returned a {type(rows).__name__}: a batch with a mask "
                    "is a dict, and must stay one"
                )
            refuse_mask_key(rows)
            if isinstance(rows, dict) and (twins := sorted(set(rows) & set(self._apart))):
                raise ValueError(
                    f"operator {bound.name} made the leaf {twins[0]!r}, the name under which a "
                    "batch says which records it holds: give with_index another name"
                )
        if VALID_MASK in apart:
            rows = jax.tree.map(lambda leaf: _zeroed(leaf, valid), rows)
        return {**rows, **apart} if apart else rows


def _rows_and_others(batch: Any, count: int, others: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """The leaves that have rows, and the rest: the mask and others by name, what has no rows."""
    if not isinstance(batch, dict):
        return batch, {}
    apart = {
        key: leaves
        for key, leaves in batch.items()
        if key in others or any(leaf.shape[:1] != (count,) for leaf in jax.tree.leaves(leaves))
    }
    return {key: leaves for key, leaves in batch.items() if key not in apart}, apart


def _zeroed(leaf: Any, valid: Any) -> Any:
    return jnp.where(valid.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, jnp.zeros((), leaf.dtype))


def _input_shardings(taken: Spec, output: BatchPlacement, row_axes: int) -> Any:
    """Where inputs go: as in the output if they pass unchanged, else split by rows."""
    made = dict(jax.tree_util.tree_flatten_with_path(output.spec)[0])
    by_rows = _by_rows(output, row_axes)

    def sharding(path: Any, spec: jax.ShapeDtypeStruct) -> Any:
        same = made.get(path[1:])
        unchanged = same is not None and (same.shape, same.dtype) == (spec.shape, spec.dtype)
        return same.sharding if same is not None and unchanged else by_rows

    return jax.tree_util.tree_map_with_path(sharding, narrowed(taken))


def _by_rows(output: BatchPlacement, row_axes: int) -> NamedSharding:
    """How the mask of a batch is sharded, or the rows of its first leaf."""
    mask = output.spec.get(VALID_MASK) if isinstance(output.spec, dict) else None
    like = mask if mask is not None else jax.tree.leaves(output.spec)[0]
    return NamedSharding(like.sharding.mesh, PartitionSpec(*like.sharding.spec[:row_axes]))


def placement_of_batches(
    sharder: SharderModule | None,
    spec: Spec,
    transforms: Sequence[BoundTransform],
    batch_size: int,
    microbatches: int | None,
    like_the_mask: Sequence[str] = (),
) -> Placement:
    """Where host batches of this spec go, by the sharder or to the default device.

    `transforms` are the device operators. Leaves that are `like_the_mask` go where it goes, or
    where the rows of a leaf go if there is no mask; rules and operators do not see them.
    """

    def place(spec: Spec) -> BatchPlacement:
        if sharder is None:
            return placement_on_default_device(spec, batch_size, microbatches)
        if not like_the_mask:
            return sharder.placement(spec, batch_size, microbatches)
        others = {name: leaf for name, leaf in spec.items() if name not in like_the_mask}
        placed = sharder.placement(others, batch_size, microbatches)
        if placed.shardings is None:
            return BatchPlacement(spec, batch_size, microbatches)
        by_rows = _by_rows(placed, len(rows_shape(batch_size, microbatches)))
        shardings = {**placed.shardings, **dict.fromkeys(like_the_mask, by_rows)}
        return BatchPlacement(spec, batch_size, microbatches, shardings)

    if not transforms:
        return place(spec)
    return OperatedPlacement(transforms, spec, batch_size, microbatches, place, like_the_mask)
