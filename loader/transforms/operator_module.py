"""Operators: the stages between reading and the training step, on the host or on the device.

An `OperatorModule` is a transform (see `transform.py`) with the bookkeeping of a stage: counters,
statistics, a seed, and the side it runs on. A loader takes the transform out of it when it is made;
the module itself never leaves the process. Randomness comes from the key and a row's position.
"""

import hashlib
import itertools
from collections.abc import Iterable
from typing import Any, TypedDict

import grain
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from loader.modules.structural import StructuralConfig, StructuralModule
from loader.records import showing
from loader.records.digest import describe, qualified_name
from loader.records.integers import Int64s, checked_int
from loader.records.renamed import refuse_old_names
from loader.records.spec import Spec
from loader.transforms.bound_transform import BoundTransform, apply_transforms
from loader.transforms.functions import KeepWhere, PerBatch, PerRecord
from loader.transforms.transform import Side, Transform, call, draws_of, sides, spec_after

DEFAULT_STREAM = "augment"


class OperatorOptions(TypedDict, total=False):
    """What every operator can be told besides its own arguments."""

    on: Side
    seed: int | None
    config: StructuralConfig | None
    rngs: nnx.Rngs | None
    name: str | None


class OperatorModule(StructuralModule):
    """A transform as a stage of a loader.

    `on` is "host" (numpy, where rows are read) or "device" (in one jitted function, after placing);
    by default the first that the transform can. A random one draws by `seed`, or by the stream
    `augment` of its own `rngs` or of the loader's.
    """

    def __init__(
        self,
        transform: Transform,
        *,
        on: Side | None = None,
        seed: int | None = None,
        config: StructuralConfig | None = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        random = draws_of(transform) > 0
        if config is None:
            config = StructuralConfig(
                stochastic=random, stream_name=DEFAULT_STREAM if random else None
            )
        own_name = name or type(self).__name__
        if seed is not None:
            seed = _checked_seed(own_name, seed, random)
        on = on or sides(transform)[0]
        if on not in sides(transform):
            raise ValueError(f"{own_name} runs on {' or '.join(sides(transform))}, got on={on!r}")
        self.transform = transform
        self.on: Side = on
        self.seed = seed
        super().__init__(config, rngs=rngs, name=name)

    def _check_rngs(self) -> None:
        """Rngs may come from the loader, which checks; but the config must fit the transform."""
        if self.config.stochastic != (draws_of(self.transform) > 0):
            raise ValueError(
                f"{self.label} draws {draws_of(self.transform)} random numbers per row, and its "
                f"config says stochastic={self.config.stochastic}: they must agree"
            )

    def requires_rng_streams(self) -> list[str] | None:
        return None if self.seed is not None else super().requires_rng_streams()

    def ensure_rng_streams(self, stream_names: list[str]) -> None:
        try:
            super().ensure_rng_streams(stream_names)
        except ValueError as error:
            raise ValueError(f"{error}; or give {self.label} a seed of its own: seed=2") from None

    def output_spec(self, record_spec: Spec) -> Spec:
        """What records of this spec look like after the operator."""
        return spec_after(self.transform, self.label, record_spec)

    @property
    def label(self) -> str:
        """What messages call this operator."""
        return self.name or type(self).__name__

    def __repr__(self) -> str:
        if type(self) is OperatorModule:  # around a function, which has the name
            return self.label
        return showing.call(type(self).__name__, [*self._arguments(), *self._options()])

    def _arguments(self) -> list[str]:
        statistics = self.config.precomputed_stats or {}
        known = [f"{name}={showing.shown(value)}" for name, value in statistics.items()]
        return [*showing.arguments_of(self.transform), *known]

    def _options(self) -> list[str]:
        side = [f"on={self.on!r}"] if self.on != sides(self.transform)[0] else []
        return [*side, *([] if self.seed is None else [f"seed={self.seed}"])]

    def ready_transform(self) -> Transform:
        """The transform as it runs. One that needs statistics is given them here."""
        return self.transform

    def bound(self, place: int | None = None, rngs: nnx.Rngs | None = None) -> BoundTransform:
        """The transform as number `place` of a loader's operators, with the key of its draws."""
        key = self._key(place or 0, rngs)
        return BoundTransform(self.ready_transform(), self.label, key, place)

    def fingerprint(self) -> dict[str, Any]:
        described = super().fingerprint()
        described["fields"]["transform"] = describe(self.ready_transform())
        return described

    def _key(self, place: int, rngs: nnx.Rngs | None) -> str:
        if not self.stochastic:
            return ""
        if self.seed is not None:
            seed = f"seed {self.seed}"
        else:
            streams = [r for r in (self.rngs, rngs) if r is not None]
            found = next((s for r in streams if (s := _stream_key(r, self.stream_name))), None)
            if found is None:
                self.ensure_rng_streams([])
            seed = f"stream {self.stream_name} {found}"
        return f"operator {place} {seed}"

    def process(self, elements: Any, positions: Int64s | None = None) -> Any:
        """The operator on stacked rows, outside of a loader: to look at what it does.

        `positions` are those of the rows (0, 1, ... by default). A filter gives the rows it keeps.
        """
        count = len(jax.tree.leaves(elements)[0])
        positions = np.arange(count) if positions is None else np.asarray(positions)
        stage = self.bound()
        if self.on == "device":
            rows, draws = jax.tree.map(jnp.asarray, (elements, stage.draw(positions)))
            rows, kept = call(stage.transform, rows, draws, jnp.ones(count, bool)), None
        else:
            rows, kept = apply_transforms([stage], elements, positions)
        self.count(count if kept is None else kept.size, 0 if kept is None else count - kept.size)
        return rows


class Filter(OperatorModule):
    """Keeps the records for which `fn(record)` is true; others become masked rows."""

    def __init__(self, fn: Any, **options: Any) -> None:
        super().__init__(KeepWhere(fn), **options)


def as_operators(given: Any) -> list[OperatorModule]:
    """Operators, plain callables (rows to rows) and Grain transformations as operators."""
    if callable(given) or not isinstance(given, Iterable):
        raise TypeError(f"operators is a list of operators: write operators=[{given!r}]")
    operators = [as_operator(item) for item in given]
    for before, operator in itertools.pairwise(operators):
        if before.on == "device" and operator.on == "host":
            raise ValueError(
                f"{operator.label} runs on the host and stands after {before.label}, which runs on "
                "the device: put host operators first, or give it on='device'"
            )
    return operators


def as_operator(given: Any) -> OperatorModule:
    refuse_old_names(given)
    if isinstance(given, OperatorModule):
        refuse_old_names(given.transform)
        return given
    if isinstance(given, type):
        raise TypeError(f"an operator is an instance, got the class {given.__name__}")
    label = qualified_name(given)
    if isinstance(given, grain.transforms.Map) or _has_only(given, "map", "random_map"):
        return OperatorModule(PerRecord(given.map), name=label)
    if isinstance(given, grain.transforms.RandomMap) or _has_only(given, "random_map", "map"):
        return OperatorModule(PerRecord(given.random_map, random=True), name=label)
    if isinstance(given, grain.transforms.Filter):
        return OperatorModule(KeepWhere(given.filter), name=label)
    if isinstance(given, grain.transforms.Batch):
        raise TypeError(
            "grain's Batch is not an operator here: give DataLoader(..., batch_size=...)"
        )
    if not callable(given) or isinstance(given, grain.transforms.Transformation):
        raise TypeError(
            "an operator is an OperatorModule, a callable from rows to rows, Grain's Map, "
            "RandomMap or Filter, or an object with a method map(element) or "
            f"random_map(element, rng), got {given!r}"
        )
    return OperatorModule(PerBatch(given), on="host", name=label)


def _has_only(given: Any, method: str, other: str) -> bool:
    """Whether an object is a transformation by this method: without the other, and no function.

    A `MapDataset` has both, and is a source. What can be called is a function of rows.
    """
    plain = not callable(given) and not hasattr(given, other)
    return plain and callable(getattr(given, method, None))


def _checked_seed(name: str, seed: Any, random: bool) -> int:
    if not random:
        raise ValueError(f"{name} was given seed={seed!r}: it is not random and has no use for it")
    try:
        return checked_int("seed", seed)
    except ValueError as error:
        raise ValueError(f"{name} was given seed={seed!r}: it needs an integer") from error


def _stream_key(rngs: nnx.Rngs, name: str | None) -> str | None:
    """A digest of the key of a stream, or of the default stream; None without either."""
    found = next((s for s in (name, "default") if s is not None and s in rngs), None)
    if found is None:
        return None
    key = jax.random.key_data(getattr(rngs, found).key.get_value())
    return hashlib.sha256(np.asarray(key).tobytes()).hexdigest()[:16]
