"""What MixUp and CutMix share: partners within a batch, and labels as probabilities."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from loader.records.integers import checked_int
from loader.records.spec import Spec, leaf_spec
from loader.transforms.numpy_or_jax import rounded
from operators.leaves import get, put


def partners(draws: Any, valid: Any) -> Any:
    """For each valid row the next in a random circle of the valid ones; itself for padding."""
    circle = jnp.argsort(jnp.where(valid, draws, 2.0))  # valid rows first
    place = jnp.argsort(circle)
    following = jnp.where(place + 1 < valid.sum(), place + 1, 0)
    return jnp.where(valid, circle[following], jnp.arange(len(valid)))


def mixed(leaf: Any, partner: Any, own: Any, other: Any) -> Any:
    """So much of each row, and so much of its partner."""
    shape = (-1, *(1,) * (leaf.ndim - 1))
    return rounded(own.reshape(shape) * leaf) + rounded(other.reshape(shape) * leaf[partner])


def probabilities(labels: Any, num_classes: int) -> Any:
    """Class numbers as probabilities, in float32; those that are probabilities already stay."""
    if labels.ndim == 1:
        own = labels[:, None] == jnp.arange(num_classes)
        # A class that there is not shows up as NaN in the loss, not as a label of nothing.
        labels = jnp.where(own.any(1, keepdims=True), own, np.float32(np.nan))
    return labels.astype(np.float32)


def with_probabilities(spec: Spec, name: str, num_classes: int) -> Spec:
    """The spec with labels, numbers or probabilities, as probabilities."""
    label = get(spec, name)
    if label.shape not in ((), (num_classes,)):
        raise ValueError(
            f"leaf {name!r} is {list(label.shape)} where a class number or "
            f"[{num_classes}] probabilities are needed"
        )
    return put(spec, name, leaf_spec((num_classes,), np.dtype(np.float32)))


def checked_mixture(num_classes: int, alpha: float) -> tuple[int, float]:
    """Both numbers, if a mixture can be made of them."""
    if not 0 < alpha < float("inf"):
        raise ValueError(f"alpha must be greater than 0 and finite, got {alpha!r}")
    return checked_int("num_classes", num_classes, 1, wanted="a positive int"), alpha
