"""Colours taken out of images, by chance or always."""

import dataclasses
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np

from loader.records.optional import optional
from loader.records.spec import Spec, leaf_spec
from loader.transforms.numpy_or_jax import is_jax, rounded
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.ranges import checked_probability
from operators.images.row_by_row import Pixels, changed
from operators.leaves import BOTH, LeafNames, get, names_of, put

_PIXELS = Pixels((3,))
_BITS = 15
_WHOLE = np.array([9798, 19235, 3735], np.int32)  # 0.299, 0.587 and 0.114 of 2^15, as in OpenCV
_SHARES = np.array([0.299, 0.587, 0.114], np.float32)


@dataclasses.dataclass(frozen=True)
class _Grayscale:
    names: tuple[str, ...]
    channels: int = 3
    probability: float = 1.0
    sides = BOTH
    thread_safe = True
    row_wise = True

    @property
    def draws(self) -> int:
        return 0 if self.probability == 1 else 1

    def __call__(self, rows: Any, draws: Any = None) -> Any:
        for name in self.names:
            leaf = get(rows, name)
            chosen = np.ones(len(leaf), bool)
            if draws is not None:
                chosen = draws[:, 0] < np.float32(self.probability)
            if is_jax(leaf):
                grey = jnp.broadcast_to(_grey(leaf), (*leaf.shape[:3], self.channels))
                if draws is not None:
                    grey = jnp.where(chosen[:, None, None, None], grey, leaf)
            else:
                grey = changed(name, leaf, _PIXELS, _write_grey, chosen, self.channels)
            rows = put(rows, name, grey)
        return rows

    def output_spec(self, spec: Spec) -> Spec:
        for name in self.names:
            leaf = _PIXELS.spec(spec, name)
            spec = put(spec, name, leaf_spec((*leaf.shape[:2], self.channels), leaf.dtype))
        return spec


def _write_grey(row: int, image: np.ndarray, into: np.ndarray) -> None:
    cv2 = optional("cv2", "Grayscale", "images")
    if into.shape[2] == 1:
        cv2.cvtColor(image, cv2.COLOR_RGB2GRAY, dst=into)
    else:
        cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB, dst=into)


def _grey(images: Any) -> Any:
    """Stacked images as grey ones of one channel, on the device."""
    whole = images.dtype == np.uint8
    weights = _WHOLE if whole else _SHARES
    if whole:
        images = images.astype(np.int32)
    red, green, blue = (rounded(images[..., c : c + 1] * weights[c]) for c in range(3))
    total = red + green + blue
    return ((total + (1 << _BITS - 1)) >> _BITS).astype(np.uint8) if whole else total


class Grayscale(OperatorModule):
    """Each image becomes grey (0.299 red + 0.587 green + 0.114 blue), or with `probability`.

    It keeps three channels, all alike, or has one with `channels=1`. Images are uint8, or float32
    in [0, 1], and stay so.
    """

    def __init__(
        self,
        leaf: LeafNames,
        *,
        channels: int = 3,
        probability: float = 1.0,
        **options: Unpack[OperatorOptions],
    ) -> None:
        if channels not in (1, 3):
            raise ValueError(f"channels must be 1 or 3, got {channels!r}")
        if channels == 1 and probability != 1:
            raise ValueError(
                f"Grayscale(channels=1, probability={probability!r}): images of a batch must be "
                "alike, so with a probability they keep three channels: leave out channels"
            )
        transform = _Grayscale(names_of(leaf), channels, checked_probability(probability))
        super().__init__(transform, **options)
        if self.on == "host":
            optional("cv2", "Grayscale", "images")  # missing, it is said now
