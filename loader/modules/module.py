"""The base of every stage: an `nnx.Module` with statistics, counters, a cache and strict state.

A `LoaderModule` promises that its state is a plain dict, that restoring one is all or nothing, and
that the state never grows with the data a module works on. Variables that count are
`IterationCount`s over arrays, so they may be updated inside `nnx.jit`; counting on the host
(`count`) writes numpy scalars and dispatches nothing.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import numpy as np
from flax import nnx

from loader.records.digest import content_key
from loader.records.jax_settings import raw_value, set_raw_value
from loader.records.showing import call, shown
from loader.records.stacking import copied

Path = tuple[Any, ...]

_OF_EVERY_MODULE = ("config", "rngs", "name")


class IterationCount(nnx.Variable[Any]):
    """A counter over an array, so that `nnx` treats it as data and transforms may change it.

    `nnx.StateAxes({IterationCount: None})` broadcasts counters, `nnx.Carry` carries them.
    """

    def add(self, amount: int) -> None:
        """Count on the host: no JAX operation, and 64 bits wide.

        A counter that passes through jit comes out as wide as JAX's integers are.
        """
        set_raw_value(self, np.array(raw_value(self).item() + amount, np.int64))


class Mirror(nnx.Variable[Any]):
    """A variable that repeats, for people to read, a number whose truth is kept elsewhere."""

    def set_value(self, value: Any, **kwargs: Any) -> None:
        if kwargs:
            super().set_value(value, **kwargs)
        else:
            set_raw_value(self, value)


class _Statistics(dict[str, Any]):
    """A dict of arrays that can be compared and hashed, as static parts of a module must be.

    By contents and dtypes: a function compiled for other statistics must not be reused.
    """

    @functools.cached_property
    def _key(self) -> str:
        return content_key(dict(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and self._key == content_key(dict(other))

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]  # dict has None
        return hash(self._key)


class _Held:
    """Holds a dict where `nnx` sees no dict: compared by identity, never part of the state."""

    def __init__(self, contents: dict[str, Any] | None) -> None:
        self.contents = contents


@dataclasses.dataclass(frozen=True)
class LoaderModuleConfig:
    """What every module can be told: whether it caches, and where its statistics come from."""

    cacheable: bool = False
    batch_stats_fn: Callable[..., Any] | nnx.Module | None = None
    precomputed_stats: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.batch_stats_fn is not None and self.precomputed_stats is not None:
            raise ValueError(
                "batch_stats_fn and precomputed_stats cannot both be given: statistics are either "
                "computed or known; leave one of them None"
            )
        if self.precomputed_stats is not None:
            object.__setattr__(self, "precomputed_stats", _Statistics(self.precomputed_stats))


class LoaderModule(nnx.Module):
    """Base of all stages. `config` is already checked; `rngs` and `name` are optional."""

    def __init__(
        self, config: LoaderModuleConfig, *, rngs: nnx.Rngs | None = None, name: str | None = None
    ) -> None:
        self.config = config
        self.rngs = rngs
        self.name = name
        self._held_cache = _Held({} if config.cacheable else None)
        # None: nothing computed, precomputed ones show; {}: reset, nothing shows; else: these show.
        self._computed_stats: nnx.Variable[Any] = nnx.Variable(None)
        self._applied_count = IterationCount(np.zeros((), np.int64))
        self._skipped_count = IterationCount(np.zeros((), np.int64))
        self._check_rngs()

    def __repr__(self) -> str:
        own = {name: value for name, value in vars(self).items() if name not in _OF_EVERY_MODULE}
        public = [name for name in own if not name.startswith("_") and own[name] is not None]
        return call(type(self).__name__, [f"{name}={shown(own[name])}" for name in public])

    def __str__(self) -> str:  # else that of nnx, which goes through all variables
        return repr(self)

    # Counters

    def count(self, applied: int = 0, skipped: int = 0) -> None:
        """Add to the operation counters, on the host."""
        if applied:
            self._applied_count.add(applied)
        if skipped:
            self._skipped_count.add(skipped)

    def get_operation_stats(self) -> dict[str, int]:
        """How many records this module was applied to, and how many rows were masked out."""
        return {
            "applied_count": int(self._applied_count.get_value()),
            "skipped_count": int(self._skipped_count.get_value()),
        }

    def reset_operation_stats(self) -> None:
        self._applied_count.set_value(np.zeros((), np.int64))
        self._skipped_count.set_value(np.zeros((), np.int64))

    # Statistics

    def compute_statistics(self, data: Any) -> dict[str, Any] | None:
        """Statistics of `data` by `config.batch_stats_fn`, kept; None without such a function."""
        stats_fn: Any = self.config.batch_stats_fn
        if stats_fn is None:
            return None
        stats = self.cached(data, lambda: dict(stats_fn(data)), purpose="statistics")
        self._computed_stats.set_value(stats)
        return dict(stats)

    def get_statistics(self) -> dict[str, Any] | None:
        """The statistics set or computed last, else the precomputed ones, else None."""
        computed = self._computed_stats.get_value()
        if computed is None:
            precomputed = self.config.precomputed_stats
            return None if precomputed is None else dict(precomputed)
        return dict(computed) or None

    def set_statistics(self, stats: dict[str, Any]) -> None:
        """Use these statistics from now on, whatever was computed or precomputed."""
        self._computed_stats.set_value(dict(stats))

    def reset_statistics(self) -> None:
        """Hide all statistics, precomputed ones too, until new ones are set or computed."""
        self._computed_stats.set_value({})

    # Cache

    @property
    def _cache(self) -> dict[str, Any] | None:
        """What is cached, by contents; None without `cacheable=True`."""
        return self._held_cache.contents

    def cached(self, data: Any, compute: Callable[[], Any], purpose: str = "") -> Any:
        """`compute()`, remembered under the contents of `data` when the config says cacheable.

        A module that computes several things from the same data tells them apart by `purpose`.
        """
        if self._cache is None:
            return compute()
        key = purpose + content_key(data)
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]

    def reset_cache(self) -> None:
        """Forget everything cached. Without `cacheable=True` there is nothing to forget."""
        if self._cache is not None:
            self._cache.clear()

    # Copies

    def copy(
        self,
        *,
        config: LoaderModuleConfig | None = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> Self:
        """A new module of this class with what is given replaced and all else carried over."""
        new = self.clone()
        if config is not None:
            new.config = config  # what was cached may depend on the old one
            new._held_cache = _Held({} if config.cacheable else None)
        if rngs is not None:
            new.rngs = rngs
        if name is not None:
            new.name = name
        new._check_rngs()
        return new

    def clone(self) -> Self:
        """An independent module with the same state; it owns a copy of the cache."""
        new = nnx.clone(self)
        new._computed_stats.set_value(copied(self._computed_stats.get_value()))
        new._held_cache = _Held(None if self._cache is None else dict(self._cache))
        return new

    def __copy__(self) -> Self:
        return self.clone()

    def __deepcopy__(self, memo: Any = None) -> Self:
        return self.clone()

    # State

    def get_state(self) -> dict[str, Any]:
        """All variables of this module and its parts as a nested plain dict."""
        return nnx.to_pure_dict(nnx.state(self), lambda variable: copied(value_of(variable)))

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` gave: all of it, or nothing and an error."""
        if not isinstance(state, dict):
            raise TypeError(f"State must be a dict, got {type(state).__name__}")
        variables = nnx.to_pure_dict(nnx.state(self), lambda variable: variable)
        try:
            restored = matched(variables, state)
            if not isinstance(state["_computed_stats"], dict | None):
                raise ValueError("_computed_stats is neither a dict nor None")
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"The state is structurally incompatible with this {type(self).__name__}: {error}. "
                "Restore it into a module made with the same configuration"
            ) from error
        nnx.update(self, nnx.State(restored))

    # Randomness

    def _check_rngs(self) -> None:
        """Raise `ValueError` if a new or copied module was not given the rngs that it needs."""

    def requires_rng_streams(self) -> list[str] | None:
        """Names of the random streams this module draws from, or None."""
        return None

    def ensure_rng_streams(self, stream_names: list[str]) -> None:
        """Raise `ValueError` if a stream this module requires is not among `stream_names`."""
        for required in self.requires_rng_streams() or ():
            if required not in stream_names:
                raise ValueError(
                    f"{type(self).__name__} needs the random stream {required!r}; available are "
                    f"{sorted(stream_names)}: pass rngs=nnx.Rngs({required}=seed)"
                )


# A state beside the variables of a module: it fits when it has the same paths and, at each, the
# same tree, shapes and dtypes. Errors name the path.


def value_of(variable: Any) -> Any:
    return variable.get_value() if isinstance(variable, nnx.Variable) else variable


def matched(variables: Mapping[Any, Any], state: Any, path: Path = ()) -> dict[Any, Any]:
    """The nested dict of variables, each with its value of the state in it."""
    given = state if isinstance(state, Mapping) else {}
    for key in variables:
        if key not in given:
            raise ValueError(f"{_joined((*path, key))} is missing")
    for key in given:
        if key not in variables:
            raise ValueError(f"{_joined((*path, key))} is not a part of the module")
    restored = {}
    for key, variable in variables.items():
        match = matched if isinstance(variable, Mapping) else _matching
        restored[key] = match(variable, given[key], (*path, key))
    return restored


def _matching(variable: Any, value: Any, path: Path) -> Any:
    """The variable with `value` in it, if the two are alike in tree, shapes and dtypes."""
    if not isinstance(variable, nnx.Variable):
        _refuse_unlike(path, variable, value)
        return value
    old = variable.get_value()
    # Counters and random streams always have a value; other variables may be without one. Reset
    # statistics are {}, as empty as None.
    always_full = isinstance(variable, IterationCount | nnx.RngState)
    if isinstance(variable, IterationCount) and _is_integer(old) and _is_integer(value):
        pass  # as wide as numpy's or, after jit, JAX's integers
    elif always_full or not (_is_empty(old, value) or _is_empty(value, old)):
        _refuse_unlike(path, old, value)
    return variable.replace(copied(value))


def _is_empty(value: Any, other: Any) -> bool:
    return value is None or (isinstance(value, dict) and isinstance(other, dict) and not value)


def _is_integer(value: Any) -> bool:
    return np.shape(value) == () and np.asarray(value).dtype.kind in "iu"


def _refuse_unlike(path: Path, old: Any, new: Any) -> None:
    old_leaves, old_tree = jax.tree.flatten(old)
    new_leaves, new_tree = jax.tree.flatten(new)
    if old_tree != new_tree:
        raise ValueError(f"{_joined(path)} is {new_tree} where {old_tree} was expected")
    for old_leaf, new_leaf in zip(old_leaves, new_leaves, strict=True):
        if (expected := _shape_and_dtype(old_leaf)) != (got := _shape_and_dtype(new_leaf)):
            raise ValueError(f"{_joined(path)} is {got} where {expected} was expected")


def _shape_and_dtype(leaf: Any) -> str:
    array = leaf if isinstance(leaf, jax.Array | np.ndarray) else np.asarray(leaf)
    if getattr(array.dtype, "kind", "") in ("U", "S"):
        return "text"
    # A Python number that went through jit is a 32-bit array where x64 is off.
    dtype = array.dtype if hasattr(leaf, "dtype") else jax.dtypes.canonicalize_dtype(array.dtype)
    return f"{dtype}{list(array.shape)}"


def _joined(path: Path) -> str:
    return "/".join(map(str, path))
