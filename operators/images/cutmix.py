"""A rectangle of each image from another one, and the labels mixed by area."""

import dataclasses
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
import scipy.special

from loader.records.spec import Spec
from loader.transforms.draws import below
from loader.transforms.numpy_or_jax import rounded
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.image_spec import image_spec
from operators.images.mixing import (
    checked_mixture,
    mixed,
    partners,
    probabilities,
    with_probabilities,
)
from operators.leaves import get, name_of, put

_STEPS = 4096  # shares that are told apart: by a table, the same on every device


@dataclasses.dataclass(frozen=True)
class _CutMix:
    image: str
    label: str
    num_classes: int
    alpha: float = 1.0
    draws = 4
    mixes_rows = True
    sides = ("device",)
    thread_safe = True

    def __call__(self, rows: Any, draws: Any, valid: Any) -> Any:
        images, labels = get(rows, self.image), get(rows, self.label)
        partner = partners(draws[:, 0], valid)
        size = images.shape[1:3]
        inside, area = self._rectangles(size, draws[:, 1:])
        images = jnp.where(inside[..., None], images[partner], images)
        # A product: a quotient would be made in other ways on other devices.
        other = rounded(area.astype(np.float32) * np.float32(1 / (size[0] * size[1])))
        labels = probabilities(labels, self.num_classes)
        rows = put(rows, self.image, images)
        return put(rows, self.label, mixed(labels, partner, 1 - other, other))

    def _rectangles(self, size: tuple[int, int], draws: Any) -> tuple[Any, Any]:
        """Which pixels of each row are cut out, and how many.

        The share of a rectangle is drawn from Beta(alpha, alpha), and its middle is any pixel; what
        is outside of the image is left out.
        """
        quantiles = (np.arange(_STEPS) + 0.5) / _STEPS
        shares = scipy.special.betaincinv(self.alpha, self.alpha, quantiles)
        step = below(draws[:, 0], _STEPS)
        lines, lengths = [], []
        for axis, length in enumerate(size):
            halves = np.floor(0.5 * np.sqrt(shares) * length).astype(np.int32)
            half = jnp.asarray(halves)[step]
            middle = below(draws[:, 1 + axis], length)
            begin, end = jnp.maximum(middle - half, 0), jnp.minimum(middle + half, length)
            places = jnp.arange(length)
            lines.append((places >= begin[:, None]) & (places < end[:, None]))
            lengths.append(end - begin)
        return lines[0][:, :, None] & lines[1][:, None], lengths[0] * lengths[1]

    def output_spec(self, spec: Spec) -> Spec:
        image_spec(spec, self.image)
        return with_probabilities(spec, self.label, self.num_classes)


class CutMix(OperatorModule):
    """A rectangle of each image is that of another of the batch, and its label is mixed by area.

    Labels are class numbers or probabilities, and come out as probabilities, by the number of
    pixels that each image has in the end; the images keep their dtype. The area is drawn from
    Beta(alpha, alpha). Which image is cut out depends on the batch (with microbatches, on the
    microbatch): another batch size gives other mixtures, other hosts and threads do not. Padding is
    never mixed in. A label that is not a class becomes NaN.
    """

    def __init__(
        self,
        image: str = "image",
        label: str = "label",
        *,
        num_classes: int,
        alpha: float = 1.0,
        **options: Unpack[OperatorOptions],
    ) -> None:
        classes, alpha = checked_mixture(num_classes, alpha)
        super().__init__(_CutMix(name_of(image), name_of(label), classes, alpha), **options)
