"""What the sections of a configuration say that are not calls of the packages themselves."""

import dataclasses
import math
from typing import Any, Literal

from jax.sharding import PartitionSpec

from loader.order.plan import Remainder

_NOT_SPLIT = "-"


@dataclasses.dataclass(frozen=True)
class LoaderSettings:
    """What [loader] says."""

    batch_size: int
    epochs: int | Literal["endless"] = 1
    remainder: Remainder = "pad"
    steps: int | None = None
    microbatches: int | None = None
    threads: int = 0
    prefetch: int = 2

    def __post_init__(self) -> None:
        least = {"batch_size": 1, "epochs": 1, "steps": 0, "microbatches": 1}
        _refuse_less(self, {**least, "threads": 0, "prefetch": 0})


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """What [train] says."""

    task: Any
    learning_rate: float = 1e-3
    checkpoint_every: int = 100
    keep: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if not all(callable(getattr(self.task, name, None)) for name in ("model", "measure")):
            raise ValueError(
                "task must be Classify, Regress, NextToken, or have their methods model and "
                f"measure: it is {type(self.task).__name__}"
            )
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(
                f"learning_rate must be greater than 0 and finite, got {self.learning_rate}"
            )
        _refuse_less(self, {"checkpoint_every": 1, "keep": 1, "seed": 0})
        if self.seed >= 2**32:
            raise ValueError(f"seed must be less than 2**32, got {self.seed}")


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """What [held_out] says."""

    source: Any
    operators: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class ShardingSettings:
    """What [sharding] says: `rules = [["image", ["data", "-"]], ["label", ["data"]]]`."""

    rules: list[Any]

    def leaf_rules(self) -> list[tuple[str, PartitionSpec]]:
        if not isinstance(self.rules, list):
            raise ValueError(f"rules must be a list of pairs, got {self.rules!r}")
        return [self._leaf_rule(rule) for rule in self.rules]

    def _leaf_rule(self, rule: Any) -> tuple[str, PartitionSpec]:
        pair = isinstance(rule, list) and len(rule) == 2
        if not pair or not isinstance(rule[0], str) or not isinstance(rule[1], list):
            raise ValueError(
                f'rules are pairs such as ["image", ["data", "{_NOT_SPLIT}"]], got {rule!r}'
            )
        axes = [tuple(axis) if isinstance(axis, list) else axis for axis in rule[1]]
        return rule[0], PartitionSpec(*[None if axis == _NOT_SPLIT else axis for axis in axes])


def _refuse_less(settings: Any, least: dict[str, int]) -> None:
    for key, number in least.items():
        value = getattr(settings, key)
        if type(value) is int and value < number:
            raise ValueError(f"{key} must be at least {number}, got {value}")
