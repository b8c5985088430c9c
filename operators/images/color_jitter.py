"""The colours of images changed by chance: brightness, contrast, saturation and hue."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np

from loader.records.optional import optional
from loader.records.spec import Spec
from loader.transforms.numpy_or_jax import is_jax, rounded
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images import color_matrix, hue
from operators.images.ranges import (
    Range,
    checked_probability,
    range_of_factors,
    range_of_turns,
)
from operators.images.row_by_row import Pixels, changed
from operators.images.sampling import refuse_unlike
from operators.leaves import BOTH, LeafNames, get, names_of, put

Amount = float | Sequence[float]  # how much at most, either way; or a range

_PIXELS = Pixels((1, 3))


@dataclasses.dataclass(frozen=True)
class _ColorJitter:
    names: tuple[str, ...]
    brightness: Range = (1.0, 1.0)
    contrast: Range = (1.0, 1.0)
    saturation: Range = (1.0, 1.0)
    hue: Range = (0.0, 0.0)
    probability: float = 1.0
    draws = 5
    sides = BOTH
    thread_safe = True
    row_wise = True

    def __call__(self, rows: Any, draws: Any) -> Any:
        chosen = draws[:, 0] < np.float32(self.probability)
        for name in self.names:
            leaf = get(rows, name)
            jittered = self._on_device if is_jax(leaf) else self._on_host
            rows = put(rows, name, jittered(name, leaf, draws, chosen))
        return rows

    def _on_host(self, name: str, leaf: np.ndarray, draws: np.ndarray, chosen: Any) -> np.ndarray:
        sums = np.zeros((len(leaf), leaf[0].shape[2]))
        for row in np.flatnonzero(chosen):
            _PIXELS.refuse_unfit(int(row), name, leaf[row])
            refuse_unlike(int(row), name, leaf[0], leaf[row], "changed")
            if self.contrast != (1.0, 1.0):
                sums[row] = color_matrix.sums_of(leaf[row])
        sizes = np.array([image.shape[0] * image.shape[1] for image in leaf])
        matrices, steps = self._plan(
            draws, color_matrix.mean_greys(sums, sizes.clip(1)), sums.shape[1]
        )

        def change(row: int, image: np.ndarray, into: np.ndarray) -> None:
            color_matrix.apply_on_host(into, image, matrices[row])
            if steps[row]:
                hue.shift_on_host(into, int(steps[row]))

        return changed(name, leaf, _PIXELS, change, chosen)

    def _on_device(self, name: str, images: Any, draws: Any, chosen: Any) -> Any:
        sums, unit = color_matrix.device_sums(images)
        pixels = images.shape[1] * images.shape[2] * unit
        matrices, steps = self._plan(draws, color_matrix.mean_greys(sums, pixels), images.shape[3])
        jittered = color_matrix.apply_on_device(images, matrices)
        if self.hue != (0.0, 0.0) and images.shape[3] == 3:
            jittered = hue.shift_on_device(jittered, steps)
        return jnp.where(chosen[:, None, None, None], jittered, images)

    def _plan(self, draws: Any, greys: Any, channels: int) -> tuple[Any, Any]:
        """Of each row the matrix, and the steps of hue that are left for after it."""
        ranges = self.brightness, self.contrast, self.saturation
        factors = [
            np.float32(low) + rounded(draws[:, column] * np.float32(high - low))
            for column, (low, high) in enumerate(ranges, 1)
        ]
        matrices = color_matrix.matrices(factors, greys, channels)
        low, high = (np.float32(end * hue.CIRCLE) for end in self.hue)
        steps = (low + rounded(draws[:, 4] * (high - low))).round().astype(np.int32) % hue.CIRCLE
        if channels == 1:
            return matrices, 0 * steps
        return hue.turned(matrices, steps // hue.THIRD), steps % hue.THIRD

    def output_spec(self, spec: Spec) -> Spec:
        for name in self.names:
            _PIXELS.spec(spec, name)
        return spec


class ColorJitter(OperatorModule):
    """Brightness, contrast, saturation and hue, each changed by a random factor of the row's own.

    A number such as `brightness=0.4` is a factor from 0.6 to 1.4, `hue=0.1` a turn by up to a tenth
    of the circle of colours to either side; two numbers are a range. The first three are one matrix
    whose result is clipped once, so their order does not matter; the hue comes last. Images are
    uint8, or float32 in [0, 1], and stay so. Of grey images (one channel) only brightness and
    contrast change.
    """

    def __init__(
        self,
        leaf: LeafNames,
        *,
        brightness: Amount = 0.0,
        contrast: Amount = 0.0,
        saturation: Amount = 0.0,
        hue: Amount = 0.0,
        probability: float = 1.0,
        **options: Unpack[OperatorOptions],
    ) -> None:
        factors = (
            range_of_factors("brightness", brightness),
            range_of_factors("contrast", contrast),
            range_of_factors("saturation", saturation),
        )
        transform = _ColorJitter(
            names_of(leaf), *factors, range_of_turns("hue", hue), checked_probability(probability)
        )
        if transform == _ColorJitter(transform.names, probability=transform.probability):
            raise ValueError(
                f"ColorJitter({leaf!r}) changes nothing: give brightness, contrast, saturation or "
                "hue"
            )
        largest = math.prod(max(1.0, high) for _, high in factors)
        if largest > color_matrix.MOST:
            raise ValueError(
                f"the factors of brightness, contrast and saturation make {largest:g} together: "
                f"they must not make more than {color_matrix.MOST}"
            )
        super().__init__(transform, **options)
        if self.on == "host":
            optional("cv2", "ColorJitter", "images")  # missing, it is said now
