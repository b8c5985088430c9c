"""GaussianBlur: a Gaussian in whole numbers, rounded alike on every processor."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from operators import GaussianBlur


def whole_weights(sigma: float, reach: int, total: int) -> list[int]:
    """Of a Gaussian, symmetric, from the outside in; what was rounded off goes to the next one."""
    exact = [math.exp(-((n - reach) ** 2) / (2 * sigma**2)) for n in range(2 * reach + 1)]
    exact = [weight / sum(exact) for weight in exact]
    half, rest = [], 0.0
    for weight in exact[:reach]:
        half.append(round(weight * total + rest))
        rest += weight * total - half[-1]
    return [*half, total - 2 * sum(half), *reversed(half)]


def blurred(image: np.ndarray, across: Any, down: Any) -> Any:
    """Weighted sums of neighbours, the image mirrored at its edges."""
    reach, (height, width) = len(across) // 2, image.shape[:2]
    padded = np.pad(image, [(reach, reach), (reach, reach), (0, 0)], mode="reflect")
    padded = padded.astype(np.int64 if isinstance(across[0], int) else np.float64)
    rows: Any = sum(weight * padded[n : n + height] for n, weight in enumerate(down))
    return sum(weight * rows[:, n : n + width] for n, weight in enumerate(across))


@pytest.mark.parametrize("sigma", [0.1, 0.4, 0.8, 1.0, 1.7, 2.0, 3.3])
@pytest.mark.parametrize("kernel", [None, 5])
def test_bytes_are_blurred_in_whole_numbers_and_rounded_once(sigma: float, kernel: Any):
    reach = math.ceil(3 * sigma) if kernel is None else min(kernel // 2, math.ceil(3 * sigma))
    across = whole_weights(sigma, reach, 256)
    down = [2 * weight for weight in whole_weights(sigma, reach, 128)]
    rng = np.random.default_rng(0)
    exact = [math.exp(-((n - reach) ** 2) / (2 * sigma**2)) for n in range(2 * reach + 1)]
    exact = [weight / sum(exact) for weight in exact]
    for height, width, channels in ((17, 23, 3), (40, 37, 1), (1, 50, 4), (9, 1, 3), (33, 64, 3)):
        noise = rng.integers(0, 256, (1, height, width, channels), np.uint8)
        for images in (noise, noise // 128 * np.uint8(128)):  # of which sums end in halves
            got = GaussianBlur("x", sigma=sigma, kernel=kernel)({"x": images})["x"][0]
            want = (blurred(images[0], across, down) + 1 + 2**15) // 2**16
            assert np.array_equal(got, want), (height, width, channels)
            assert np.abs(got - blurred(images[0], exact, exact)).max() <= 4
            floats = images.astype(np.float32) / 255
            smooth = GaussianBlur("x", sigma=sigma, kernel=kernel)({"x": floats})["x"][0]
            assert smooth.dtype == np.float32
            plain = blurred(floats[0], [w / 256 for w in across], [w / 256 for w in down])
            assert np.abs(smooth - plain).max() < 1e-6


def test_sigma_is_drawn_evenly_from_the_range_and_rows_are_blurred_by_chance():
    point = np.zeros((3000, 1, 41, 1), np.float32)
    point[:, 0, 20] = 1
    out = GaussianBlur("x", sigma=(1.0, 3.0), probability=0.75, seed=0)({"x": point})["x"]
    same = (out == point).all((1, 2, 3))
    assert 0.22 < same.mean() < 0.28
    places = np.arange(41) - 20.0
    sigmas = np.sqrt((out[~same, 0, :, 0] * places**2).sum(1))
    # Weights farther than three of the largest sigma are left out.
    assert 0.97 < sigmas.min() < 1.05
    assert 2.9 < sigmas.max() < 3.05
    counts, _ = np.histogram(sigmas, 4, (0.97, 3.03))
    assert counts.min() > 0.2 * counts.sum()


def test_a_blur_that_is_always_the_same_needs_no_seed():
    images = np.random.default_rng(0).integers(0, 256, (3, 9, 8, 3), np.uint8)
    fixed = GaussianBlur("x", sigma=1.5)
    assert not fixed.stochastic
    assert np.array_equal(fixed({"x": images})["x"], fixed({"x": images[[0, 1, 2]]})["x"])
    device = GaussianBlur("x", sigma=1.5, on="device")({"x": images})["x"]
    assert np.array_equal(device, fixed({"x": images})["x"])


def test_there_may_be_more_channels_than_opencv_takes_at_once():
    images = np.random.default_rng(0).integers(0, 256, (1, 9, 8, 131), np.uint8)
    blur = GaussianBlur("x", sigma=0.9)
    alone = [blur({"x": images[..., n : n + 1]})["x"] for n in range(131)]
    assert np.array_equal(blur({"x": images})["x"], np.concatenate(alone, -1))


def test_what_cannot_be_is_refused():
    refused: list[tuple[dict[str, Any], str]] = [
        ({"sigma": 0.0}, r"sigma must be two positive numbers, .* got \(0\.0, 0\.0\)"),
        ({"sigma": (2.0, 1.0)}, "sigma must be two positive numbers, the smaller first"),
        ({"kernel": 4}, "kernel must be an odd number of pixels, got 4"),
        ({"probability": 1.5}, "probability must lie in"),
    ]
    for settings, message in refused:
        with pytest.raises(ValueError, match=message):
            GaussianBlur("x", **settings)


PROGRAM = """
import sys
import numpy as np
from tests.operators.test_blur import on_this_processor
np.savez(sys.argv[1], **on_this_processor())
"""


def on_this_processor() -> dict[str, np.ndarray]:
    """Bytes through everything that promises the same bits everywhere; no width fits a register."""
    from operators import ColorJitter, Grayscale, RandAugment

    images = np.random.default_rng(0).integers(0, 256, (14, 29, 37, 3), np.uint8)
    images[7:] = images[7:] // 128 * np.uint8(128)
    jitter = ColorJitter("x", brightness=0.4, contrast=0.4, saturation=0.4, seed=1)
    operators = [
        jitter, GaussianBlur("x", seed=1), Grayscale("x"), RandAugment("x", num_ops=3, seed=1)
    ]  # fmt: skip
    return {operator.label: operator({"x": images})["x"] for operator in operators}


def test_bytes_are_the_same_on_processors_of_another_kind(tmp_path: Path):
    """As the page says: here OpenCV is told to do as on an old one."""
    old = {"OPENCV_IPP": "disabled", "OPENCV_CPU_DISABLE": "AVX512-SKX,AVX2,FP16,AVX,SSE4.2,SSE4.1"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "old.npz")]
    root = Path(__file__).parents[2]
    environment = {**os.environ, **old}
    subprocess.run(command, env=environment, check=True, capture_output=True, cwd=root)
    there = np.load(tmp_path / "old.npz")
    for name, here in on_this_processor().items():
        assert np.array_equal(here, there[name]), name
