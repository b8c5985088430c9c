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
from loader.transforms.transform import call, draws_of, filters, mixes_rows, sides, spec_after


@dataclasses.dataclass(frozen=True)
class _Parts:
    """Transforms and what messages call them; each takes the next columns of the draws."""

    transforms: tuple[Any, ...]
    labels: tuple[str, ...]

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(s for s in ("host", "device") if all(s in sides(t) for t in self.transforms))

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


class _Composed(OperatorModule):
    """An operator made of operators, whose transforms are taken when a loader is made."""

    def __init__(
        self, transform: _Parts, operators: list[OperatorModule], **options: Unpack[OperatorOptions]
    ) -> None:
        super().__init__(transform, **options)
        self._operators = nnx.List(operators)

    def ready_transform(self) -> Any:
        ready = tuple(operator.ready_transform() for operator in self._operators)
        return dataclasses.replace(self.transform, transforms=ready)

    def fingerprint(self) -> dict[str, Any]:
        described = super().fingerprint()
        transform = described["fields"]["transform"]["fields"]
        transform["transforms"] = [operator.fingerprint() for operator in self._operators]
        del transform["labels"]  # what messages say decides nothing
        return described


class Sequence(_Composed):
    """Operators one after the other, as one."""

    def __init__(self, operators: Iterable[Any], **options: Unpack[OperatorOptions]) -> None:
        parts, transforms, labels, on = _parts(operators)
        options.setdefault("on", on)
        super().__init__(_Sequence(transforms, labels), parts, **options)


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


class Choice(_Composed):
    """For each row one of several operators, by chance; None among them leaves the row as it is.

    `probabilities` add up to 1; without them all are as likely.
    """

    def __init__(
        self,
        operators: Iterable[Any],
        probabilities: Several[float] | None = None,
        **options: Unpack[OperatorOptions],
    ) -> None:
        given = [_Nothing() if item is None else item for item in operators]
        parts, transforms, labels, on = _parts(given)
        if any(mixes_rows(transform) for transform in transforms):
            raise ValueError(
                "Choice decides row by row, so an operator that mixes rows has no part"
            )
        if probabilities is None:
            probabilities = [1 / len(transforms)] * len(transforms)
        chances = tuple(float(p) for p in probabilities)
        fit = len(chances) == len(transforms) and all(chance >= 0 for chance in chances)
        if not (fit and abs(sum(chances) - 1) <= 1e-6):  # so that NaN is refused
            raise ValueError(
                f"Choice among {len(transforms)} operators needs as many probabilities, none "
                f"negative, that add up to 1, got {list(chances)}"
            )
        options.setdefault("on", on)
        super().__init__(_Choice(transforms, labels, chances), parts, **options)


class _Nothing(OperatorModule):
    def __init__(self) -> None:
        super().__init__(_Unchanged())


@dataclasses.dataclass(frozen=True)
class _Unchanged:
    sides = ("host", "device")

    def __call__(self, rows: Any) -> Any:
        return rows

    def output_spec(self, spec: Spec) -> Spec:
        return spec


def _parts(
    given: Iterable[Any],
) -> tuple[list[OperatorModule], tuple[Any, ...], tuple[str, ...], Any]:
    """Operators, their transforms, their names, and the side they run on."""
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
    told = {o.on for o in operators if not isinstance(o, _Nothing)}
    if len(told) > 1:
        raise ValueError(
            f"{[f'{o.label} on the {o.on}' for o in operators]}: give all of them the same on=..."
        )
    transforms = tuple(operator.transform for operator in operators)
    side = told.pop() if told else "host"
    return operators, transforms, tuple(operator.label for operator in operators), side
