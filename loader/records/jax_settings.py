"""What JAX and flax are set to, and what they keep private: nothing else touches that.

Each private thing is looked for when it is first used. Where a release has moved or removed it, the
plain way is taken: slower, or with less to say, and with the same batches.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

_NOTHING = contextlib.nullcontext()


# Settings of this thread


def x64_enabled() -> bool:
    """Whether JAX keeps 64-bit values in this thread."""
    return jax_setting("jax_enable_x64")


def jax_setting(name: str) -> Any:
    """A setting of JAX as it holds in this thread."""
    return getattr(jax.config, name)


def default_device() -> Any:
    """What JAX was told to be the default device, in this thread; None if it was not."""
    return jax_setting("jax_default_device")


def transfers_are_guarded() -> bool:
    """Whether `jax.transfer_guard` or its like watches this thread.

    It takes what JAX's functions place for explicit, and what goes the short way for not.
    """
    return jax_setting("jax_transfer_guard_host_to_device") not in (None, "allow")


def thread_settings() -> tuple[dict[str, Any], Any]:
    """What JAX keeps per thread and batches depend on: `deciding_settings`, the default device."""
    return deciding_settings(), default_device()


_DECIDING = (
    "jax_enable_x64",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
)


def deciding_settings() -> dict[str, Any]:
    """The settings of this thread that decide what functions of JAX give."""
    return {name: jax_setting(name) for name in _DECIDING}


@contextlib.contextmanager
def under(settings: Mapping[str, Any]) -> Iterator[None]:
    """This thread is under such settings, of another thread or another process."""
    with contextlib.ExitStack() as stack:
        for name, value in settings.items():
            if jax_setting(name) != value:
                stack.enter_context(getattr(jax, name.removeprefix("jax_"))(value))
        yield


def set_all(settings: Mapping[str, Any]) -> None:
    """All of this process is under such settings."""
    for name, value in settings.items():
        jax.config.update(name, value)


# Private things


def _private(module: str, name: str) -> Any:
    """A private thing of JAX; None where this release does not have it."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def key_value_store() -> Any:
    """The store that `jax.distributed` keeps for the processes of a job; None without one."""
    return getattr(_private("jax._src.distributed", "global_state"), "client", None)


def mesh_of_with_statement() -> Mesh:
    """The mesh of the legacy `with mesh:` of this thread; an empty one if there is none."""
    resources = _private("jax._src.mesh", "thread_resources")
    mesh = getattr(getattr(resources, "env", None), "physical_mesh", None)
    return Mesh(np.empty((), object), ()) if mesh is None else mesh


@functools.cache
def batched_device_put() -> Callable[..., jax.Array] | None:
    """The function of jaxlib that `jax.device_put` ends in; None where it is gone."""
    return _private("jaxlib.xla_client", "batched_device_put")


def traced(part: str) -> contextlib.AbstractContextManager[Any]:
    """Shows this part of the flow in a trace of `jax.profiler`, if one is being taken."""
    return jax.profiler.TraceAnnotation(f"gristmill/{part}") if _is_tracing()() else _NOTHING


@functools.cache
def _is_tracing() -> Callable[[], bool]:
    # Without it every stage is annotated, which costs a microsecond where nobody looks.
    return getattr(jax.profiler.TraceAnnotation, "is_enabled", None) or (lambda: True)


def raw_value(variable: nnx.Variable[Any]) -> Any:
    """What a variable holds, not copied."""
    if hasattr(variable, "get_raw_value"):
        return variable.get_raw_value()
    return nnx.Variable.get_value(variable)


def set_raw_value(variable: nnx.Variable[Any], value: Any) -> None:
    """Put a value into a variable, on the host.

    The private way takes 0.1 µs, flax's `set_raw_value` 1.8 and `set_value` 5: a loader does this
    about ten times for each batch.
    """
    if _slot_is_known():
        object.__setattr__(variable, "_raw_value", value)
    elif hasattr(variable, "set_raw_value"):
        variable.set_raw_value(value)
    else:
        nnx.Variable.set_value(variable, value)


@functools.cache
def _slot_is_known() -> bool:
    """Whether flax keeps values where we write them: elsewhere a write would be lost, silently."""
    trial = type("Trial", (nnx.Variable,), {})(0)
    try:
        object.__setattr__(trial, "_raw_value", 1)
    except AttributeError:
        return False
    return trial.get_value() == 1
