"""Zero mean and unit deviation, by statistics that are known, given, or fitted in one pass."""

import dataclasses
from collections.abc import Callable
from typing import Any, Unpack

import numpy as np

from loader.modules.structural import StructuralConfig
from loader.records.spec import VALID_MASK, Spec, leaf_spec
from loader.records.stacking import is_ragged
from loader.transforms.numpy_or_jax import rounded
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.leaves import BOTH, frozen, get, name_of, put


@dataclasses.dataclass(frozen=True, eq=False)
class _Standardize:
    name: str
    mean: np.ndarray | None = None
    std: np.ndarray | None = None
    sides = BOTH
    thread_safe = True
    row_wise = True

    def __call__(self, rows: Any) -> Any:
        assert self.mean is not None
        assert self.std is not None
        # A product with the inverse, because a compiler makes that of a quotient, and numpy not.
        inverse = (1 / self.std.astype(np.float64)).astype(np.float32)
        leaf = get(rows, self.name).astype(np.float32)
        return put(rows, self.name, rounded((leaf - self.mean) * inverse))

    def output_spec(self, spec: Spec) -> Spec:
        leaf = get(spec, self.name)
        if np.dtype(leaf.dtype).kind not in "biuf" or None in leaf.shape:
            raise ValueError(
                f"leaf {self.name!r} is {leaf.dtype}{list(leaf.shape)} where numbers of one shape "
                "are needed: decode and resize images first"
            )
        for statistic in (s for s in (self.mean, self.std) if s is not None):
            try:
                np.broadcast_to(statistic, leaf.shape)
            except ValueError as error:
                raise ValueError(
                    f"statistics of shape {statistic.shape} do not fit leaf {self.name!r}, which "
                    f"is {list(leaf.shape)}"
                ) from error
        return put(spec, self.name, leaf_spec(leaf.shape, np.dtype(np.float32)))


class Normalize(OperatorModule):
    """`(leaf - mean) / std` as float32.

    The statistics are a dict with `mean` and `std`, each a number or an array that broadcasts
    against the leaf of a record. They are those given here, or fitted by `fit(loader)`, or computed
    of data of your choice by `compute_statistics(data)` with `batch_stats_fn`, or set with
    `set_statistics`. A loader takes them when it is made.
    """

    def __init__(
        self,
        leaf: str,
        mean: Any = None,
        std: Any = None,
        *,
        batch_stats_fn: Callable[..., Any] | None = None,
        **options: Unpack[OperatorOptions],
    ) -> None:
        if (mean is None) != (std is None):
            raise ValueError("give both mean and std, or neither")
        if options.get("config") is None:
            stats = None if mean is None else {"mean": np.asarray(mean), "std": np.asarray(std)}
            options["config"] = StructuralConfig(
                batch_stats_fn=batch_stats_fn, precomputed_stats=stats
            )
        elif mean is not None or batch_stats_fn is not None:
            raise ValueError("give the statistics here or in config, not in both")
        self._leaf = name_of(leaf)
        super().__init__(_Standardize(self._leaf), **options)

    def ready_transform(self) -> _Standardize:
        stats = self.get_statistics()
        if stats is None:
            raise ValueError(
                f"{self.label} has no statistics: give mean and std, or call fit(loader) before "
                "this loader is made"
            )
        if missing := {"mean", "std"} - set(stats):
            raise ValueError(f"the statistics of {self.label} lack {sorted(missing)}: {stats}")
        mean, std = (frozen(stats[key], np.float32) for key in ("mean", "std"))
        if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()):
            raise ValueError(
                f"{self.label} cannot divide by std={std.tolist()} around mean={mean.tolist()}: "
                "each must be finite, and std greater than 0 (a channel that never changes?)"
            )
        return _Standardize(self._leaf, mean, std)

    def fit(self, loader: Any, *, per_channel: bool = True) -> dict[str, Any]:
        """Mean and deviation over an epoch of a loader: every record once. It does not move.

        One for each channel (place along the last axis), or a single one. All rows are read, on
        every process, so that all have the same statistics.
        """
        count, mean, squares = 0, 0.0, 0.0
        for batch in loader.pipeline.epoch():
            rows = get(batch, self._leaf)
            if is_ragged(rows):
                raise ValueError(
                    f"{self.label} cannot be fitted: the rows of {self._leaf!r} differ in size; "
                    "put Resize or a crop into the operators of the loader that it is fitted on"
                )
            valid = rows[batch[VALID_MASK]] if VALID_MASK in batch else rows
            count, mean, squares = _moments_with(count, mean, squares, valid, per_channel)
        if not count:
            raise ValueError(f"{self.label} cannot be fitted: the loader has no valid row")
        stats = {"mean": mean, "std": np.sqrt(squares / count)}
        self.set_statistics(stats)
        return stats


def _moments_with(
    count: int, mean: Any, squares: Any, rows: np.ndarray, per_channel: bool
) -> tuple[int, Any, Any]:
    """How many values, their mean and sum of squared deviations, with more rows; in float64."""
    channels = rows.shape[-1] if per_channel and rows.ndim > 1 else 1
    values = rows.reshape(-1, channels).astype(np.float64)
    if not len(values):
        return count, mean, squares
    more_mean = values.mean(0)
    more_squares = ((values - more_mean) ** 2).sum(0)
    if channels == 1:
        more_mean, more_squares = more_mean[0], more_squares[0]
    total = count + len(values)
    away = more_mean - mean
    mean = mean + away * (len(values) / total)
    squares = squares + more_squares + away**2 * (count * len(values) / total)
    return total, mean, squares
