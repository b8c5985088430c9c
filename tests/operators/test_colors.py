"""ColorJitter and Grayscale: those of the definitions, on both sides and every mesh."""

import colorsys
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from PIL import Image, ImageEnhance

from loader import DataLoader, MeshSharder, RowError
from loader.testing import assert_same_batch
from operators import ColorJitter, GaussianBlur, Grayscale

GREY = np.array([0.299, 0.587, 0.114])


def pictures(count: int = 6, height: int = 11, width: int = 13, channels: int = 3) -> np.ndarray:
    """Bytes: noise, and colours that change slowly."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (count, height, width, channels), np.uint8)
    slope = np.linspace(0, 255, height * width).reshape(height, width, 1)
    share = rng.random((count, 1, 1, channels))
    return np.where(rng.random((count, 1, 1, 1)) < 0.5, noise, (slope * share).astype(np.uint8))


def in_floats(images: np.ndarray) -> np.ndarray:
    return images.astype(np.float32) / np.float32(255)


def jittered(images: np.ndarray, *, on: Any = "host", **fixed: Any) -> np.ndarray:
    """With factors that are not random: ranges of one number."""
    ranges: dict[str, Any] = {name: (factor, factor) for name, factor in fixed.items()}
    return np.asarray(ColorJitter("x", **ranges, seed=0, on=on)({"x": images})["x"])


def plain(
    image: np.ndarray, brightness: float = 1, contrast: float = 1, saturation: float = 1
) -> np.ndarray:
    """One after the other, from the definitions, in [0, 1]; clipped at the end."""
    image = image.astype(np.float64) / (255 if image.dtype == np.uint8 else 1)
    weights = GREY if image.shape[-1] == 3 else np.ones(1)
    image = image * brightness
    image = contrast * image + (1 - contrast) * (image @ weights).mean()
    image = saturation * image + (1 - saturation) * (image @ weights)[..., None]
    return image.clip(0, 1)


FACTORS = [
    {"brightness": 1.4}, {"brightness": 0.3}, {"contrast": 1.7}, {"contrast": 0.2},
    {"saturation": 2.5}, {"saturation": 0.0},
    {"brightness": 1.3, "contrast": 0.7, "saturation": 1.6},
    {"brightness": 0.6, "contrast": 2.1, "saturation": 0.4},
]  # fmt: skip


@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize("channels", [1, 3])
def test_brightness_contrast_and_saturation_are_those_of_the_definitions(
    factors: Any, channels: int
):
    images = pictures(channels=channels)
    want = np.stack([plain(image, **factors) for image in images])
    for given, step in ((images, 1), (in_floats(images), 1e-5)):
        got = jittered(given, **factors)
        assert (got.shape, got.dtype) == (given.shape, given.dtype)
        scale = 255 if given.dtype == np.uint8 else 1
        assert np.abs(got - want * scale).max() <= step


def test_bytes_that_end_in_a_half_are_rounded_alike_by_every_matrix_and_side():
    """A factor of 1.5 makes a half of every odd byte, and OpenCV has a way of its own for it."""
    every = np.arange(256, dtype=np.uint8)
    images = np.repeat(every.reshape(1, 16, 16, 1), 3, -1)
    ways = [
        jittered(images, brightness=1.5),
        jittered(images, brightness=1.5, saturation=0.5),
        jittered(images[..., :1], brightness=1.5),
        *(jittered(images, on="device", brightness=1.5, saturation=s) for s in (1.0, 0.5)),
    ]
    for way in ways:
        assert np.array_equal(way[..., 0], ways[0][..., 0])
    assert np.array_equal(
        ways[0][0, ..., 0].ravel(), np.minimum((3 * every.astype(int) + 1) // 2, 255)
    )


def test_each_alone_is_that_of_pillow_within_one_step():
    kinds = {
        "brightness": ImageEnhance.Brightness,
        "contrast": ImageEnhance.Contrast,
        "saturation": ImageEnhance.Color,
    }
    for name, kind in kinds.items():
        for factor in (0.4, 1.6):
            images = pictures()
            got = jittered(images, **{name: factor}).astype(np.int32)
            for image, ours in zip(images, got, strict=True):
                theirs = np.asarray(kind(Image.fromarray(image)).enhance(factor)).astype(np.int32)
                assert np.abs(ours - theirs).max() <= 1, (name, factor)


@pytest.mark.parametrize("hue", [0.1, -0.1, 1 / 3, 0.5, -0.45])
def test_a_hue_is_turned_by_a_part_of_the_circle(hue: float):
    images = pictures()
    steps = round(hue * 180)  # in which it is kept

    def turned(pixel: Any) -> Any:
        h, s, v = colorsys.rgb_to_hsv(*(pixel / 255.0))
        return colorsys.hsv_to_rgb((h + steps / 180) % 1, s, v)

    want = np.apply_along_axis(turned, -1, images)
    assert np.abs(jittered(in_floats(images), hue=hue) - want).max() < 1e-5
    # Bytes have 180 hues: a pixel of full colour changes by 8.5 from one to the next.
    away = np.abs(jittered(images, hue=hue) - 255 * want)
    assert away.max() <= 6
    assert away.mean() < 1.5
    grey = np.repeat(images[..., :1], 3, -1)
    assert np.abs(jittered(grey, hue=hue).astype(int) - grey).max() <= 1


def test_a_third_of_the_circle_exchanges_channels_and_rounds_nothing():
    images = pictures()
    assert np.array_equal(jittered(images, hue=1 / 3), np.roll(images, 1, -1))
    assert np.array_equal(jittered(images, hue=-1 / 3), np.roll(images, -1, -1))


def test_what_becomes_of_a_pixel_does_not_depend_on_where_it_is():
    """OpenCV does the last pixels of a line in another way than those before."""
    image = pictures(1, 1, 301)
    for hue in (0.05, 0.3, -0.4):
        whole = jittered(image, hue=hue)
        for first, last in ((0, 37), (3, 200), (290, 301), (0, 64)):
            part = jittered(image[:, :, first:last], hue=hue)
            assert np.array_equal(part, whole[:, :, first:last])


def drawn(count: int = 4000, **settings: Any) -> np.ndarray:
    """The factors of so many rows, as seen in what becomes of a pixel of 0.25."""
    images = np.full((count, 1, 1, 3), 0.25, np.float32)
    return ColorJitter("x", seed=1, **settings)({"x": images})["x"][:, 0, 0, 0] * 4


@pytest.mark.parametrize(
    ("given", "low", "high"), [(0.4, 0.6, 1.4), (2.0, 0.0, 3.0), ((0.5, 0.9), 0.5, 0.9), (1, 0, 2)]
)
def test_a_number_is_so_much_more_or_less_and_two_are_a_range(given: Any, low: float, high: float):
    factors = drawn(brightness=given)
    assert low <= factors.min() < low + 0.01
    assert high - 0.01 < factors.max() <= high + 1e-6
    counts, _ = np.histogram(factors, 5, (low, high))
    assert counts.min() > 700  # of 800


def test_probability_is_the_share_of_rows_and_leaves_are_changed_alike():
    images = pictures(600, 3, 4)
    out = ColorJitter(["x", "y"], brightness=0.5, hue=0.3, probability=0.25, seed=4)(
        {"x": images, "y": images.copy()}
    )
    assert np.array_equal(out["x"], out["y"])
    same = (out["x"] == images).all((1, 2, 3))
    assert 0.7 < same.mean() < 0.8
    greys = Grayscale("x", probability=0.25, seed=4)({"x": images})["x"]
    assert 0.7 < (greys == images).all((1, 2, 3)).mean() < 0.8


def test_grey_is_the_weighted_sum_of_the_channels():
    images = pictures()
    for given, step in ((images, 0.51), (in_floats(images), 1e-6)):
        want = given.astype(np.float64) @ GREY
        one = Grayscale("x", channels=1)({"x": given})["x"]
        assert (one.shape, one.dtype) == ((*given.shape[:3], 1), given.dtype)
        assert np.abs(one[..., 0] - want).max() <= step
        assert np.array_equal(Grayscale("x")({"x": given})["x"], np.repeat(one, 3, -1))
    pillow = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in images])
    ours = Grayscale("x", channels=1)({"x": images})["x"][..., 0]
    assert np.abs(ours.astype(int) - pillow).max() <= 1


def all_there(**settings: Any) -> list[Any]:
    return [
        ColorJitter("image", brightness=0.5, contrast=0.5, saturation=0.5, seed=1, **settings),
        ColorJitter("grey", brightness=0.5, contrast=0.5, seed=1, **settings),
        GaussianBlur("image", sigma=(0.2, 0.6), probability=0.7, seed=2, **settings),
        Grayscale("image", probability=0.3, seed=3, **settings),
        ColorJitter("floats", contrast=0.9, hue=0.5, seed=4, **settings),
        GaussianBlur("floats", sigma=(0.3, 0.6), seed=4, **settings),
        ColorJitter("hue", contrast=0.5, hue=0.5, probability=0.8, seed=5, **settings),
    ]


def test_on_the_device_bytes_have_the_same_bits_and_a_hue_is_within_one_step():
    images = pictures(24, 8, 10)
    data = {"image": images, "floats": in_floats(images), "hue": images, "grey": images[..., :1]}
    host = list(DataLoader(data, batch_size=8, operators=all_there()).host_batches())
    device = list(DataLoader(data, batch_size=8, operators=all_there(on="device")))
    for got, want in zip(device, host, strict=True):
        assert np.array_equal(got["image"], want["image"])
        assert np.array_equal(got["grey"], want["grey"])
        assert np.abs(np.asarray(got["hue"]).astype(int) - want["hue"]).max() <= 1
        assert np.abs(got["floats"] - want["floats"]).max() < 1e-4
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    # Part of an image on each device: sums over it must not depend on that.
    rules = [("floats|hue", P("data", "model")), (".*", P("data"))]
    sharder = MeshSharder(mesh, rules=rules)
    again = DataLoader(data, batch_size=8, operators=all_there(on="device"), sharder=sharder)
    for step, (got, want) in enumerate(zip(again, device, strict=True)):
        assert_same_batch(got, want, f"batch {step} on a mesh")


def test_images_of_different_sizes_are_changed_as_they_are_alone():
    ragged = np.empty(5, object)
    ragged[:] = [pictures(1, 5 + n, 9 - n)[0] for n in range(5)]
    for operator in (
        ColorJitter("x", brightness=0.4, contrast=0.4, hue=0.2, seed=3),
        GaussianBlur("x", seed=3),
        Grayscale("x", probability=0.6, seed=3),
    ):
        out = operator.process({"x": ragged}, np.arange(7, 12))["x"]
        for row, image in enumerate(ragged):
            alone = operator.process({"x": image[None]}, np.array([7 + row]))["x"][0]
            assert out[row].shape == image.shape
            assert np.array_equal(out[row], alone)
        assert any((new != old).any() for new, old in zip(out, ragged, strict=True))


def test_what_is_given_is_not_written_into_however_it_is_in_memory():
    whole = pictures(2, 20, 30, 4)
    whole.flags.writeable = False
    for images in (whole[..., :3], whole[:, ::-1, ::2, 1:], whole[:, 3:9, 4:8, :3]):
        for operator in (
            ColorJitter("x", brightness=0.4, hue=0.2, seed=3),
            GaussianBlur("x", seed=3),
            Grayscale("x"),
        ):
            want = operator({"x": images.copy()})["x"]
            assert np.array_equal(operator({"x": images})["x"], want)


def test_what_cannot_be_is_refused():
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "changes nothing: give brightness"),
        ({"brightness": -0.1}, r"brightness must be a number of at least 0, .* got -0\.1"),
        ({"contrast": (1.2, 0.8)}, r"contrast must be .* the smaller first, got \(1\.2, 0\.8\)"),
        ({"saturation": "much"}, "saturation must be a number of at least 0, .* got 'much'"),
        ({"hue": 0.6}, r"hue must be a number in \[0, 0\.5\].* got 0\.6"),
        ({"hue": -0.1}, "hue must be a number"),
        ({"brightness": 9, "contrast": 9}, "the factors .* make 100 together: .* more than 31"),
        ({"hue": 0.1, "probability": 2}, "probability must lie in"),
    ]
    for settings, message in refused:
        with pytest.raises(ValueError, match=message):
            ColorJitter("x", **settings, seed=0)
    with pytest.raises(ValueError, match="channels must be 1 or 3, got 2"):
        Grayscale("x", channels=2)
    with pytest.raises(ValueError, match="with a probability they keep three channels"):
        Grayscale("x", channels=1, probability=0.5)


@pytest.mark.parametrize(
    ("dtype", "channels", "message"),
    [
        (np.int32, 3, r"leaf 'x' is int32 where images of uint8 or float32 in \[0, 1\] are needed"),
        (np.uint8, 4, r"leaf 'x' has 4 channels where 1 or 3 are needed: .*channels=3"),
    ],
)
def test_images_of_another_kind_are_refused_before_anything_is_read(
    dtype: Any, channels: int, message: str
):
    jitter = ColorJitter("x", brightness=0.5, seed=0)
    rows = {"x": np.zeros((4, 3, 3, channels), dtype)}
    with pytest.raises(ValueError, match=message):
        DataLoader(rows, batch_size=2, operators=[jitter]).batch_spec()
    with pytest.raises(RowError, match=message):
        jitter(rows)
    odd = np.empty(2, object)
    odd[:] = [np.zeros((3, 3, 3), np.uint8), np.zeros((3, 3, 1), np.uint8)]
    with pytest.raises(
        RowError, match=r"leaf 'x' is uint8\[3, 3, 1\] where .* 3 channels"
    ) as raised:
        jitter({"x": odd})
    assert raised.value.row == 1
