"""What JAX is set to in this thread."""

import contextlib
from typing import Any

import jax
from jax.profiler import TraceAnnotation

_NOTHING = contextlib.nullcontext()


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


def thread_settings() -> tuple[bool, Any]:
    """What JAX keeps per thread and placing depends on: x64, and the default device."""
    return x64_enabled(), default_device()


def traced(part: str) -> contextlib.AbstractContextManager[Any]:
    """Shows this part of the flow in a trace of `jax.profiler`, if one is being taken."""
    return TraceAnnotation(f"gristmill/{part}") if TraceAnnotation.is_enabled() else _NOTHING
