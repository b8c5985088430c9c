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
    advice_of,
    call,
    draws_of,
    filters,
    mixes_rows,
    row_wise,
    rows_at_once,
    sides,
    spec_after,
    thread_safe,
)
from operators.leaves import BOTH


@dataclasses.dataclass(frozen=True)
class _Composed:
    """Transforms, and what messages call them; each takes the next columns of the draws.

    They are applied one after the other; or, where there are `probabilities`, one of them to each
    row, by the first of its draws.
    """

    transforms: tuple[Transform, ...]
    labels: tuple[str, ...]
    probabilities: tuple[float, ...] | None = None

    @property
    def sides(self) -> tuple[Side, ...]:
        return tuple(s for s in BOTH if all(s in sides(t) for t in self.transforms))

    @property
    def thread_safe(self) -> bool:
        return all(thread_safe(transform) for transform in self.transforms)

    @property
    def row_wise(self) -> bool:
        """Not if one of several is chosen: the lengths of other rows decide the kind of a leaf."""
        return self.probabilities is None and all(map(row_wise, self.transforms))

    @property
    def rows_at_once(self) -> int | None:
        return rows_at_once(self.transforms[0]) if self.row_wise and self.transforms else None

    @property
    def draws(self) -> int:
        return self._first_draw(len(self.transforms))

    @property
    def mixes_rows(self) -> bool:
        return any(mixes_rows(transform) for transform in self.transforms)

    def __call__(self, rows: Any, draws: Any = None, valid: Any = None) -> Any:
        if self.probabilities is None:
            for number in range(len(self.transforms)):
                rows = self._part(number, rows, draws, valid)
            return rows
        limits = np.cumsum(self.probabilities)[:-1].astype(np.float32)
        chosen = (draws[:, :1] >= limits).sum(1)
        choose = self._select if is_jax((rows, draws)) else self._split
        return choose(rows, draws, chosen)

    def _first_draw(self, number: int) -> int:
        """The column of the draws at which those of one of the transforms begin."""
        choice = 0 if self.probabilities is None else 1
        return choice + sum(draws_of(transform) for transform in self.transforms[:number])

    def _own(self, number: int, draws: Any) -> Any:
        """The draws of one of the transforms."""
        if draws is None:
            return None
        return draws[:, self._first_draw(number) : self._first_draw(number + 1)]

    def _part(self, number: int, rows: Any, draws: Any, valid: Any = None) -> Any:
        """The rows after one of the transforms."""
        try:
            return call(self.transforms[number], rows, self._own(number, draws), valid)
        except RowError as error:
            raise RowError(error.row, f"{self.labels[number]}: {error}") from error.__cause__

    def _select(self, rows: Any, draws: Any, chosen: Any) -> Any:
        """All of them on all rows, and for each row the one chosen: shapes must be static."""
        xp = namespace((rows, draws))
        results = [self._part(number, rows, draws) for number in range(len(self.transforms))]

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
                    result = self._part(number, own, draws[where])
                except RowError as error:
                    raise RowError(int(where[error.row]), str(error)) from error.__cause__
                parts[f"{label} ({number})"] = result, where
        return merged_rows(parts, ragged=True)

    def advice(self, rows: Any, draws: Any = None) -> list[str]:
        """What the transforms say of rows like these, each of those that it would be given."""
        said = []
        valid = np.ones(len(jax.tree.leaves(rows)[0]), bool)
        for number, transform in enumerate(self.transforms):
            said += advice_of(transform, rows, self._own(number, draws))
            if self.probabilities is None:
                rows = self._part(number, rows, draws, valid)
        return said

    def output_spec(self, spec: Spec) -> Spec:
        parts = list(zip(self.transforms, self.labels, strict=True))
        if self.probabilities is None:
            for transform, label in parts:
                spec = spec_after(transform, label, spec)
            return spec
        first, *others = [spec_after(transform, label, spec) for transform, label in parts]
        joined = first
        for label, other in zip(self.labels[1:], others, strict=True):
            if with_open_lengths(other) != with_open_lengths(joined):
                raise ValueError(
                    f"{self.labels[0]} makes {first}, {label} makes {other}: whatever is chosen "
                    "for a row, the record must look the same, but for the length of a sequence"
                )
            joined = joined if other == joined else with_open_lengths(joined)
        return joined


_UNCHANGED = _Composed((), ())


class _OfOperators(OperatorModule):
    """What operators made of operators share: the side they run on, and what decides results."""

    def __init__(
        self,
        operators: list[OperatorModule],
        probabilities: tuple[float, ...] | None,
        options: OperatorOptions,
    ) -> None:
        transforms, labels = zip(*((o.transform, o.label) for o in operators), strict=True)
        options.setdefault("on", _side(operators))
        super().__init__(_Composed(transforms, labels, probabilities), **options)
        self._operators = nnx.List(operators)

    def _arguments(self) -> list[str]:
        transform: Any = self.transform
        odds = transform.probabilities
        of = f"[{', '.join(map(repr, self._operators))}]"
        return [of] if odds is None else [of, f"probabilities={list(odds)}"]

    def ready_transform(self) -> Transform:
        """The transform with those of its operators as they run: some need statistics first."""
        ready = tuple(operator.ready_transform() for operator in self._operators)
        transform: Any = self.transform
        return dataclasses.replace(transform, transforms=ready)

    def fingerprint(self) -> dict[str, Any]:
        """Those of the operators decide, and not their labels."""
        described = super().fingerprint()
        transform = described["fields"]["transform"]["fields"]
        transform["transforms"] = [operator.fingerprint() for operator in self._operators]
        del transform["labels"]
        return described


class Sequence(_OfOperators):
    """Operators one after the other, as one."""

    def __init__(self, operators: Iterable[Any], **options: Unpack[OperatorOptions]) -> None:
        super().__init__(_checked_operators(operators), None, options)


class Choice(_OfOperators):
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
        operators = _checked_operators(nothing if item is None else item for item in operators)
        if any(mixes_rows(operator.transform) for operator in operators):
            raise ValueError(
                "Choice decides row by row, so an operator that mixes rows has no part"
            )
        count = len(operators)
        chances = tuple(map(float, [1 / count] * count if probabilities is None else probabilities))
        fit = len(chances) == count and all(chance >= 0 for chance in chances)
        if not (fit and abs(sum(chances) - 1) <= 1e-6):  # so that NaN is refused
            raise ValueError(
                f"Choice among {count} operators needs as many probabilities, none negative, that "
                f"add up to 1, got {list(chances)}"
            )
        super().__init__(operators, chances, options)


def _checked_operators(given: Iterable[Any]) -> list[OperatorModule]:
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
