"""Images mixed in pairs, with their labels."""

import dataclasses
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
import scipy.special

from loader.records.spec import Spec, leaf_spec
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.mixing import (
    checked_mixture,
    mixed,
    partners,
    probabilities,
    with_probabilities,
)
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
    thread_safe = True

    def __call__(self, rows: Any, draws: Any, valid: Any) -> Any:
        partner = partners(draws[:, 0], valid)
        quantiles = scipy.special.betaincinv(self.alpha, self.alpha, _QUANTILES.astype(float))
        share = jnp.interp(draws[:, 1], _QUANTILES, quantiles.astype(np.float32))
        images = get(rows, self.image).astype(np.float32)
        labels = probabilities(get(rows, self.label), self.num_classes)
        rows = put(rows, self.image, mixed(images, partner, share, 1 - share))
        return put(rows, self.label, mixed(labels, partner, share, 1 - share))

    def output_spec(self, spec: Spec) -> Spec:
        image = get(spec, self.image)
        spec = put(spec, self.image, leaf_spec(image.shape, np.dtype(np.float32)))
        return with_probabilities(spec, self.label, self.num_classes)


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
        classes, alpha = checked_mixture(num_classes, alpha)
        super().__init__(_MixUp(name_of(image), name_of(label), classes, alpha), **options)
