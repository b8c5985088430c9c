"""Resize: OpenCV's pixels on the host, within one step of them on the device."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import cv2
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from loader import DataLoader, MeshSharder, RowError
from loader.testing import assert_same_batch
from operators import Choice, DecodeImage, Resize, Sequence
from operators.images.sampling import Method
from tests.operators.resizing import resized

METHODS: list[Method] = list(get_args(Method))
FLAGS = {
    "linear": cv2.INTER_LINEAR,
    "area": cv2.INTER_AREA,
    "cubic": cv2.INTER_CUBIC,
    "nearest": cv2.INTER_NEAREST,
}
# Smaller, larger, both at once, by whole numbers, to and from a single pixel, the same size.
SIZES = [
    ((16, 20), (7, 9)), ((7, 9), (16, 20)), ((16, 9), (11, 23)), ((16, 20), (8, 5)),
    ((33, 47), (5, 6)), ((1, 1), (3, 4)), ((9, 7), (1, 1)), ((1, 12), (5, 3)), ((6, 5), (6, 5)),
    ((6, 5), (12, 15)), ((21, 58), (27, 62)),
]  # fmt: skip
DTYPES = (np.uint8, np.uint16, np.int16, np.float32)


def pictures(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    numbers = np.random.default_rng(seed).random(shape)
    if dtype == np.bool_:
        return numbers > 0.5
    return (numbers * (255 if dtype == np.float32 else np.iinfo(dtype).max)).astype(dtype)


def by_opencv(images: Any, size: tuple[int, int], method: str) -> np.ndarray:
    """A plain loop, in the way of OpenCV that does not depend on the processor."""
    cv2.ipp.setUseIPP(False)
    out = [cv2.resize(i, size[::-1], interpolation=FLAGS[method]) for i in images]
    cv2.ipp.setUseIPP(True)
    return np.stack([i.reshape(*size, -1) for i in out])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_the_host_the_pixels_are_opencvs_and_those_of_the_definition(method: Any, dtype: Any):
    for given, size in SIZES:
        for channels in (1, 3, 4):
            images = pictures((2, *given, channels), dtype)
            out = Resize("x", size, method=method)({"x": images})["x"]
            assert (out.shape, out.dtype) == ((2, *size, channels), dtype)
            assert np.array_equal(out, by_opencv(images, size, method)), (given, size, channels)
            ragged = np.empty(2, object)
            ragged[:] = [images[0], np.vstack([images[1], images[0]])]
            again = Resize("x", size, method=method)({"x": ragged})["x"]
            assert np.array_equal(again, by_opencv(ragged, size, method))
            plain = np.stack([resized(image, size, method) for image in images])
            plain = plain.round() if np.dtype(dtype).kind in "iu" else plain
            assert np.abs(out - plain).max() <= 1, (given, size, channels)


@pytest.mark.parametrize("method", METHODS)
def test_on_the_device_they_are_within_one_step_of_those_on_the_host(method: Any):
    cases: list[Any] = [(np.uint8, *sizes) for sizes in SIZES[:3]]
    cases += [(np.float32, *sizes) for sizes in SIZES[:1]]
    cases += [(dtype, (9, 17), (12, 7)) for dtype in (np.uint16, np.bool_)]
    images = [pictures((2, *given, 3), dtype) for dtype, given, _ in cases]
    images = [image / np.float32(255) if image.dtype.kind == "f" else image for image in images]
    device = [Resize("x", size, method=method, on="device") for _, _, size in cases]

    @jax.jit  # all in one program: compiling is what takes time
    def all_at_once(images: list[Any]) -> list[Any]:
        return [r.transform({"x": i})["x"] for r, i in zip(device, images, strict=True)]

    for case, image, got in zip(cases, images, all_at_once(images), strict=True):
        host = Resize("x", case[2], method=method)({"x": image})["x"]
        assert (got.shape, got.dtype) == (host.shape, host.dtype)
        away = np.abs(np.asarray(got).astype(np.float64) - host.astype(np.float64)).max()
        most = 0 if method == "nearest" else 0.01 / 255 if case[0] == np.float32 else 1
        assert away <= most, case


def test_on_the_device_the_bits_do_not_depend_on_the_mesh():
    data = {name: pictures((24, 20, 17, 3), np.float32) for name in METHODS}
    resize = Resize(METHODS, (11, 14), method={name: name for name in METHODS}, on="device")
    expected = list(DataLoader(data, batch_size=8, operators=[resize]))
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    sharder = MeshSharder(mesh, rules=[("cubic", P("data", None, "model")), (".*", P("data"))])
    loader = DataLoader(data, batch_size=8, operators=[resize], sharder=sharder)
    for got, want in zip(loader, expected, strict=True):
        assert_same_batch(got, want, "on a mesh")


@pytest.mark.parametrize(
    ("dtype", "channels", "method"),
    [
        *((np.uint8, 5, method) for method in METHODS),  # OpenCV's area takes four at most
        *((np.uint8, 131, method) for method in METHODS),  # and 128 the others
        *((np.int8, 3, method) for method in METHODS),
        *((np.float16, 2, method) for method in METHODS),
        *((np.dtype(">u2"), 3, method) for method in METHODS),
        (np.int64, 1, "nearest"),
        (np.bool_, 1, "nearest"),
    ],
)  # fmt: skip
def test_what_opencv_does_not_take_is_resized_all_the_same(dtype: Any, channels: int, method: Any):
    images = (pictures((2, 12, 17, channels), np.uint8) // 2).astype(dtype)
    out = Resize("x", (5, 8), method=method)({"x": images})["x"]
    assert (out.shape, out.dtype) == ((2, 5, 8, channels), dtype)
    plain = np.stack([resized(image, (5, 8), method) for image in images])
    assert np.abs(out.astype(np.float64) - plain).max() <= (0 if method == "nearest" else 1.5)


def test_an_image_is_resized_however_it_lies_in_memory_and_is_not_written_into():
    whole = pictures((2, 20, 30, 4), np.uint8)
    whole.flags.writeable = False
    for images in (
        whole[:, ::-1],
        whole[:, :, ::-2],
        whole.transpose(0, 2, 1, 3),
        whole[..., :3],
        whole[:, 3:9, 4:8],
        np.asfortranarray(whole),
        np.broadcast_to(whole[..., :1], (2, 20, 30, 3)),
    ):
        expected = by_opencv([image.copy() for image in images], (9, 7), "linear")
        assert np.array_equal(Resize("x", (9, 7))({"x": images})["x"], expected)


def test_beside_an_image_its_mask_keeps_its_values():
    rows = {"image": pictures((2, 16, 20, 3), np.uint8)}
    rows["mask"] = rows["far/mask"] = (rows["image"][..., :1] > 99) * np.uint8(200)
    both = Resize(["image", "mask", "far/mask"], (7, 9), method="area")(rows)
    assert set(np.unique(both["mask"])) == set(np.unique(both["far/mask"])) == {0, 200}
    assert np.array_equal(both["image"], by_opencv(rows["image"], (7, 9), "area"))
    soft = Resize(["image", "mask"], (7, 9), method={"mask": "area"})(rows)
    assert np.array_equal(soft["mask"], by_opencv(rows["mask"], (7, 9), "area"))
    assert np.array_equal(soft["image"], by_opencv(rows["image"], (7, 9), "linear"))
    alone = Resize("mask", (7, 9))(rows)
    assert np.array_equal(alone["mask"], by_opencv(rows["mask"], (7, 9), "linear"))
    one, other = (repr(Resize(["image", "mask"], 5, method=m)) for m in ("linear", "nearest"))
    assert one.endswith("method={'image': 'linear', 'mask': 'nearest'})")
    assert other.endswith("method='nearest')")


def test_images_that_cannot_be_resized_together_are_named():
    images = [np.zeros((5, 4, 3), np.uint8), np.zeros((5, 4, 1), np.uint8)]
    for odd, message in (
        (np.zeros((5, 4, 1), np.uint8), r"leaf 'x' is uint8\[5, 4, 1\] where .* with 3 channels"),
        (np.zeros((5, 4, 3), np.float32), r"leaf 'x' is float32\[5, 4, 3\] where others are uint8"),
        (np.zeros((0, 4, 3), np.uint8), r"leaf 'x' is an image of \(0, 4\) pixels: leave it out"),
    ):
        leaf = np.empty(2, object)
        leaf[:] = [images[0], odd]
        with pytest.raises(RowError, match=message) as raised:
            Resize("x", 3)({"x": leaf})
        assert raised.value.row == 1
    with pytest.raises(ValueError, match=r"is int32, whose values float32 .* method='nearest'"):
        DataLoader(
            {"x": np.zeros((4, 5, 5, 1), np.int32)}, batch_size=2, operators=[Resize("x", 3)]
        )


PLAIN = """
import sys
import cv2
import numpy as np
images = np.load(sys.argv[1])
for flag in (cv2.INTER_LINEAR, cv2.INTER_AREA, cv2.INTER_CUBIC, cv2.INTER_NEAREST):
    out = [cv2.resize(image, (37, 31), interpolation=flag) for image in images]
    np.save(f"{sys.argv[1]}.{flag}.npy", out)
"""


def test_bytes_are_the_same_on_processors_of_another_kind(tmp_path: Path):
    """Here OpenCV is told to do as on an old one: without Intel's IPP, too."""
    used = cv2.ipp.useIPP()
    images, file = pictures((2, 57, 61, 3), np.uint8), tmp_path / "images.npy"
    np.save(file, images)
    old = {"OPENCV_IPP": "disabled", "OPENCV_CPU_DISABLE": "AVX512-SKX,AVX2,FP16,AVX,SSE4.2,SSE4.1"}
    command = [sys.executable, "-c", PLAIN, str(file)]
    subprocess.run(command, env={**os.environ, **old}, check=True, capture_output=True)
    for method in METHODS:
        there = np.load(f"{file}.{FLAGS[method]}.npy")
        assert np.array_equal(Resize("x", (31, 37), method=method)({"x": images})["x"], there)
    assert cv2.ipp.useIPP() == used  # what the program itself does with OpenCV is its own


def test_what_is_resized_is_new_unless_it_has_that_size_already():
    images = pictures((2, 6, 5, 3), np.uint8)
    assert Resize("x", (6, 5))({"x": images})["x"] is images
    assert not np.shares_memory(Resize("x", (5, 6))({"x": images})["x"], images)


def test_within_a_sequence_or_a_choice_it_does_the_same():
    images = pictures((9, 16, 20, 3), np.uint8)
    expected = by_opencv(images, (5, 6), "linear")
    inner = Sequence([Resize("x", 8), Resize("x", (5, 6))])({"x": images})["x"]
    assert np.array_equal(inner, by_opencv(by_opencv(images, (8, 8), "linear"), (5, 6), "linear"))
    either = Choice([Resize("x", (5, 6)), Resize("x", (5, 6), method="linear")], seed=0)
    assert np.array_equal(either({"x": images})["x"], expected)
    decoded = np.empty(9, object)
    decoded[:] = [cv2.imencode(".png", image[..., ::-1])[1].tobytes() for image in images]
    operators = [DecodeImage("x"), Resize("x", (5, 6))]
    batch = DataLoader({"x": list(decoded)}, batch_size=9, operators=operators).host_batch_at(0)
    assert np.array_equal(batch["x"], expected)
