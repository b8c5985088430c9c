"""Images mixed in pairs, with their labels."""

import dataclasses
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from loader.records.integers import checked_int
from loader.records.spec import Spec, leaf_spec
from loader.transforms.numpy_or_jax import rounded
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.leaves import get, name_of, put

_QUANTILES = np.linspace(0, 1, 4097, dtype=np.float32)


@dataclasses.dataclass(frozen=True)
class _MixUp:
    image: str
    label: str
    num_classes: int
    alpha: float
    draws = 2
    mixes_rows = True
    sides = ("device",)

    def __call__(self, rows: Any, draws: Any, valid: Any) -> Any:
        partner = _partners(draws[:, 0], valid)
        quantiles = scipy.special.betaincinv(self.alpha, self.alpha, _QUANTILES.astype(float))
        share = jnp.interp(draws[:, 1], _QUANTILES, quantiles.astype(np.float32))

        def mixed(leaf: Any) -> Any:
            own = share.reshape(-1, *(1,) * (leaf.ndim - 1))
            return rounded(own * leaf) + rounded((1 - own) * leaf[partner])

        images = get(rows, self.image).astype(np.float32)
        labels = get(rows, self.label)
        if labels.ndim == 1:
            # A class that there is not shows up as NaN in the loss, not as a label of nothing.
            known = ((labels >= 0) & (labels < self.num_classes))[:, None]
            one_hot = jax.nn.one_hot(labels, self.num_classes, dtype=np.float32)
            labels = jnp.where(known, one_hot, jnp.nan)
        rows = put(rows, self.image, mixed(images))
        return put(rows, self.label, mixed(labels.astype(np.float32)))

    def output_spec(self, spec: Spec) -> Spec:
        floating = np.dtype(np.float32)
        image, label = get(spec, self.image), get(spec, self.label)
        if label.shape not in ((), (self.num_classes,)):
            raise ValueError(
                f"leaf {self.label!r} is {list(label.shape)} where a class number or "
                f"[{self.num_classes}] probabilities are needed"
            )
        spec = put(spec, self.image, leaf_spec(image.shape, floating))
        return put(spec, self.label, leaf_spec((self.num_classes,), floating))


def _partners(draws: Any, valid: Any) -> Any:
    """For each valid row the next in a random circle of the valid ones; itself for padding."""
    circle = jnp.argsort(jnp.where(valid, draws, 2.0))  # valid rows first
    place = jnp.argsort(circle)
    following = jnp.where(place + 1 < valid.sum(), place + 1, 0)
    return jnp.where(valid, circle[following], jnp.arange(len(valid)))


class MixUp(OperatorModule):
    """Each image becomes a mixture of itself and another of the batch, and so does its label.

    Labels are class numbers or probabilities, and come out as probabilities. The share is drawn
    from Beta(alpha, alpha). What a row is mixed with depends on the batch it is in (with
    microbatches, on its microbatch): another batch size gives other mixtures, other hosts and
    threads do not. Padding is never mixed in. A label that is not a class becomes NaN.
    """

    def __init__(
        self,
        image: str = "image",
        label: str = "label",
        *,
        num_classes: int,
        alpha: float = 0.2,
        **options: Unpack[OperatorOptions],
    ) -> None:
        if not 0 < alpha < float("inf"):
            raise ValueError(f"alpha must be greater than 0 and finite, got {alpha!r}")
        classes = checked_int("num_classes", num_classes, 1, wanted="a positive int")
        transform = _MixUp(name_of(image), name_of(label), classes, alpha)
        super().__init__(transform, **options)
