"""Operators made of operators: one after the other, or one of several for each row."""

import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence as Several
from typing import Any, Unpack

import jax
import numpy as np
from flax import nnx

from loader.records.errors import RowError
from loader.records.merging import merged_rows
from loader.records.spec import Spec, with_open_lengths
from loader.transforms.numpy_or_jax import is_jax, namespace
from loader.transforms.operator_module import OperatorModule, OperatorOptions, as_operator
from loader.transforms.transform import (
    Side,
    Transform,
    call,
    draws_of,
    filters,
    mixes_rows,
    sides,
    spec_after,
)
from operators.leaves import BOTH


@dataclasses.dataclass(frozen=True)
class _Parts:
    """Transforms and what messages call them; each takes the next columns of the draws."""

    transforms: tuple[Transform, ...]
    labels: tuple[str, ...]

    @property
    def sides(self) -> tuple[Side, ...]:
        return tuple(s for s in BOTH if all(s in sides(t) for t in self.transforms))

    def part(self, number: int, rows: Any, draws: Any, valid: Any, first_draw: int = 0) -> Any:
        """The rows after one of the transforms; `draws` are those of all of them."""
        start = first_draw + sum(draws_of(t) for t in self.transforms[:number])
        own = None if draws is None else draws[:, start : start + draws_of(self.transforms[number])]
        try:
            return call(self.transforms[number], rows, own, valid)
        except RowError as error:
            raise RowError(error.row, f"{self.labels[number]}: {error}") from error.__cause__


@dataclasses.dataclass(frozen=True)
class _Sequence(_Parts):
    @property
    def draws(self) -> int:
        return sum(draws_of(transform) for transform in self.transforms)

    @property
    def mixes_rows(self) -> bool:
        return any(mixes_rows(transform) for transform in self.transforms)

    def __call__(self, rows: Any, draws: Any = None, valid: Any = None) -> Any:
        for number in range(len(self.transforms)):
            rows = self.part(number, rows, draws, valid)
        return rows

    def output_spec(self, spec: Spec) -> Spec:
        for transform, label in zip(self.transforms, self.labels, strict=True):
            spec = spec_after(transform, label, spec)
        return spec


_UNCHANGED = _Sequence((), ())


class Sequence(OperatorModule):
    """Operators one after the other, as one."""

    def __init__(self, operators: Iterable[Any], **options: Unpack[OperatorOptions]) -> None:
        parts = _checked_parts(operators)
        options.setdefault("on", _side(parts))
        super().__init__(_Sequence(*_transforms_and_labels(parts)), **options)
        self._operators = nnx.List(parts)

    def ready_transform(self) -> Transform:
        return _ready(self.transform, self._operators)

    def fingerprint(self) -> dict[str, Any]:
        return _with_parts(super().fingerprint(), self._operators)


@dataclasses.dataclass(frozen=True)
class _Choice(_Parts):
    probabilities: tuple[float, ...]

    @property
    def draws(self) -> int:
        return 1 + sum(draws_of(transform) for transform in self.transforms)

    def __call__(self, rows: Any, draws: Any) -> Any:
        limits = np.cumsum(self.probabilities)[:-1].astype(np.float32)
        chosen = (draws[:, :1] >= limits).sum(1)
        if is_jax((rows, draws)):
            return self._select(rows, draws, chosen)
        return self._split(rows, draws, chosen)

    def _select(self, rows: Any, draws: Any, chosen: Any) -> Any:
        """All of them on all rows, and for each row the one chosen: shapes must be static."""
        xp = namespace((rows, draws))
        results = [self.part(n, rows, draws, None, 1) for n in range(len(self.transforms))]

        def pick(*leaves: Any) -> Any:
            result = leaves[0]
            for number, leaf in enumerate(leaves[1:], 1):
                mask = (chosen == number).reshape(-1, *(1,) * (leaf.ndim - 1))
                result = xp.where(mask, leaf, result)
            return result

        return jax.tree.map(pick, *results)

    def _split(self, rows: Any, draws: np.ndarray, chosen: np.ndarray) -> Any:
        """Each on the rows for which it was chosen."""
        parts: dict[str, tuple[Any, Any]] = {}
        for number, label in enumerate(self.labels):
            where = np.flatnonzero(chosen == number)
            if where.size:
                own = jax.tree.map(lambda leaf, where=where: leaf[where], rows)
                try:
                    result = self.part(number, own, draws[where], None, 1)
                except RowError as error:
                    raise RowError(int(where[error.row]), str(error)) from error.__cause__
                parts[f"{label} ({number})"] = result, where
        return merged_rows(parts, ragged=True)

    def output_spec(self, spec: Spec) -> Spec:
        specs = [spec_after(t, n, spec) for t, n in zip(self.transforms, self.labels, strict=True)]
        joined = specs[0]
        for label, other in zip(self.labels[1:], specs[1:], strict=True):
            if with_open_lengths(other) != with_open_lengths(joined):
                raise ValueError(
                    f"{self.labels[0]} makes {specs[0]}, {label} makes {other}: whatever is chosen "
                    "for a row, the record must look the same, but for the length of a sequence"
                )
            joined = joined if other == joined else with_open_lengths(joined)
        return joined


class Choice(OperatorModule):
    """For each row one of several operators, by chance; None among them leaves the row as it is.

    `probabilities` add up to 1; without them all are as likely.
    """

    def __init__(
        self,
        operators: Iterable[Any],
        probabilities: Several[float] | None = None,
        **options: Unpack[OperatorOptions],
    ) -> None:
        nothing = OperatorModule(_UNCHANGED, name="None")
        parts = _checked_parts(nothing if item is None else item for item in operators)
        if any(mixes_rows(part.transform) for part in parts):
            raise ValueError(
                "Choice decides row by row, so an operator that mixes rows has no part"
            )
        if probabilities is None:
            probabilities = [1 / len(parts)] * len(parts)
        chances = tuple(float(p) for p in probabilities)
        fit = len(chances) == len(parts) and all(chance >= 0 for chance in chances)
        if not (fit and abs(sum(chances) - 1) <= 1e-6):  # so that NaN is refused
            raise ValueError(
                f"Choice among {len(parts)} operators needs as many probabilities, none "
                f"negative, that add up to 1, got {list(chances)}"
            )
        options.setdefault("on", _side(parts))
        super().__init__(_Choice(*_transforms_and_labels(parts), chances), **options)
        self._operators = nnx.List(parts)

    def ready_transform(self) -> Transform:
        return _ready(self.transform, self._operators)

    def fingerprint(self) -> dict[str, Any]:
        return _with_parts(super().fingerprint(), self._operators)


def _checked_parts(given: Iterable[Any]) -> list[OperatorModule]:
    operators = [as_operator(item) for item in given]
    if not operators:
        raise ValueError("no operators given: name at least one")
    for operator in operators:
        if filters(operator.transform):
            raise ValueError(f"{operator.label} is a filter: put it into the list of the loader")
        if operator.seed is not None or operator.rngs is not None:
            raise ValueError(
                f"{operator.label} has a seed or rngs of its own, which have no effect here: give "
                "seed=... to the operator around it"
            )
    return operators


def _side(operators: list[OperatorModule]) -> Side:
    """The side on which all of them run."""
    told: set[Side] = {o.on for o in operators if o.transform is not _UNCHANGED}
    if len(told) > 1:
        raise ValueError(
            f"{[f'{o.label} on the {o.on}' for o in operators]}: give all of them the same on=..."
        )
    return told.pop() if told else "host"


def _transforms_and_labels(
    operators: list[OperatorModule],
) -> tuple[tuple[Transform, ...], tuple[str, ...]]:
    return tuple(o.transform for o in operators), tuple(o.label for o in operators)


def _ready(transform: Any, operators: Iterable[OperatorModule]) -> Transform:
    """The transform with those of its operators as they run: some need statistics first."""
    return dataclasses.replace(transform, transforms=tuple(o.ready_transform() for o in operators))


def _with_parts(described: dict[str, Any], operators: Iterable[OperatorModule]) -> dict[str, Any]:
    """What decides the results of an operator made of operators: theirs, and not their labels."""
    transform = described["fields"]["transform"]["fields"]
    transform["transforms"] = [operator.fingerprint() for operator in operators]
    del transform["labels"]
    return described
