"""Applying a `PartitionAxis` to arrays, and finding the one in force."""

import dataclasses
import hashlib
import threading
from collections.abc import Sequence
from typing import Any, Self

import jax
from jax.sharding import PartitionSpec

from loader.partition.applying import apply_spec
from loader.partition.axes import MODE_DECODE, MODE_TRAIN, NOT_GIVEN, DynamicShardingAxes
from loader.partition.correction import corrected_spec, refuse_misfit
from loader.partition.mesh import get_incontext_mesh
from loader.partition.partition_axis import PartitionAxis as PartitionAxis
from loader.partition.partition_axis import hash_fn as hash_fn

# JAX makes its user contexts part of the key under which jit caches, so that a function compiled
# under one manager is not reused under another. They belong to a thread.
_current = jax.make_user_context(None)
_entered = threading.local()  # .contexts: the user contexts this thread has entered, innermost last
_last_created: "PartitionManager | None" = None


@jax.tree_util.register_static
@dataclasses.dataclass(repr=False)
class PartitionManager:
    """Shards arrays by semantic axes; as a context, for all code inside it.

    It may be entered again while entered, and from several threads at once.
    """

    paxis: PartitionAxis

    def __post_init__(self) -> None:
        global _last_created
        if not isinstance(self.paxis, PartitionAxis):
            raise TypeError(f"Expected PartitionAxis, got {type(self.paxis)}")
        _last_created = self

    __hash__ = hash_fn

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "paxis" and "paxis" in vars(self):  # jit caches what was compiled for it
            raise AttributeError(
                "the paxis of a manager stays as it is: make another PartitionManager(paxis)"
            )
        super().__setattr__(name, value)

    def __enter__(self) -> Self:
        context = _current(self)
        context.__enter__()
        _entered.contexts = [*getattr(_entered, "contexts", []), context]
        return self

    def __exit__(self, *exc_info: Any) -> None:
        *outer, context = _entered.contexts
        _entered.contexts = outer
        context.__exit__(*exc_info)

    def shard(
        self,
        x: jax.Array,
        axes: Any = NOT_GIVEN,
        mode: str | int = NOT_GIVEN,
        dynamic_axes: Any = NOT_GIVEN,
        auto_correct: bool = True,
    ) -> jax.Array:
        """The array, sharded by its semantic axes on the mesh in force.

        With `auto_correct` what does not fit is left out; without it, that is a `ValueError`.
        """
        spec = self.resolve(axes, mode, dynamic_axes, x.shape)
        mesh = get_incontext_mesh()
        if auto_correct:
            return apply_spec(x, mesh, corrected_spec(x.shape, spec, mesh))
        refuse_misfit(x.shape, spec, mesh)
        return apply_spec(x, mesh, PartitionSpec(*spec[: len(x.shape)]))

    def resolve(
        self,
        axes: Any = NOT_GIVEN,
        mode: str | int = NOT_GIVEN,
        dynamic_axes: Any = NOT_GIVEN,
        shape: Sequence[int] = NOT_GIVEN,
    ) -> PartitionSpec:
        """The spec for semantic axes in a mode. `dynamic_axes`, if given, brings both.

        An integer mode names a dimension of `shape`: of size 1 it means decoding, else training.
        """
        if dynamic_axes is NOT_GIVEN or dynamic_axes is None:
            dynamic_axes = axes if _is_dynamic(axes) else None
        if dynamic_axes is not None:
            axes, mode = dynamic_axes.axes, dynamic_axes.mode
        if axes is NOT_GIVEN or mode is NOT_GIVEN:
            raise ValueError("give axes and mode, or dynamic_axes, which holds both")
        if isinstance(mode, int):
            if shape is NOT_GIVEN:
                raise ValueError(
                    f"mode={mode} names a dimension: shape should be provided too, as shape=x.shape"
                )
            mode = MODE_DECODE if shape[mode] == 1 else MODE_TRAIN
        return self.paxis.resolve_spec(axes, mode)

    def __repr__(self) -> str:
        return "PartitionManager(...)"


def get_current_partition_manager() -> PartitionManager | None:
    """The manager whose `with` block this thread is in, if any."""
    return _current.value


def get_partition_manager() -> PartitionManager | None:
    """The manager constructed last, in any thread."""
    return _last_created


def apply_logical_sharding(
    x: jax.Array,
    partition_manager: PartitionManager | None = NOT_GIVEN,
    axes: Any = NOT_GIVEN,
    mode: str | int = NOT_GIVEN,
    dynamic_axes: Any = NOT_GIVEN,
    auto_correct: bool = True,
) -> jax.Array:
    """`shard` by the manager given, else the one entered, else the one constructed last."""
    manager = partition_manager
    if manager is NOT_GIVEN or manager is None:
        manager = get_current_partition_manager() or get_partition_manager()
    if manager is None:
        raise ValueError(
            "No PartitionManager is available. Provide `partition_manager` or use "
            "`with PartitionManager(...)`."
        )
    return manager.shard(
        x=x, axes=axes, mode=mode, dynamic_axes=dynamic_axes, auto_correct=auto_correct
    )


def _is_dynamic(axes: Any) -> bool:
    """Whether these are `DynamicShardingAxes`, as an instance or as a class with both fields."""
    if isinstance(axes, type):
        return issubclass(axes, DynamicShardingAxes)
    return isinstance(axes, tuple) and hasattr(axes, "_fields")


def get_safe_hash_int(text: Any, algorithm: str = "md5") -> int:
    """The digest of the text, as an integer: the same in every process, unlike `hash`."""
    if algorithm not in hashlib.algorithms_available:
        raise ValueError(
            f"Unsupported hash algorithm: {algorithm!r}; there are "
            f"{sorted(hashlib.algorithms_guaranteed)}"
        )
    digest = hashlib.new(algorithm, str(text).encode())
    # The shake family gives as many bytes as it is asked for.
    data = digest.digest() if digest.digest_size else digest.digest(32)  # pyright: ignore[reportCallIssue]
    return int.from_bytes(data, "big")
