"""Images sampled at another size, by the four methods of OpenCV: its own code on the host, tables
of the same weights on the device.

`nearest` takes one pixel, `linear` two and `cubic` four in a line, however far apart: where an
image shrinks to less than half, pixels between them are left out (it aliases). `area` averages all
that a new pixel covers; where an image grows in height or width it is OpenCV's variant of `linear`.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from loader.records.errors import RowError
from loader.records.optional import optional
from loader.records.spec import LeafSpec, Spec
from loader.transforms.numpy_or_jax import namespace, rounded
from operators.images.image_spec import image_spec, not_an_image, sized_spec
from operators.leaves import put

Method = Literal["linear", "area", "cubic", "nearest"]
METHODS: tuple[Method, ...] = get_args(Method)
Methods = Method | Mapping[str, Method]  # one for all leaves, or by the names of leaves
OfLeaves = Method | tuple[tuple[str, Method], ...]  # the same, as plain data

_FLAGS = {"linear": 1, "area": 3, "cubic": 2, "nearest": 0}  # cv2.INTER_LINEAR and so on
_OPENCVS = frozenset(np.dtype(t) for t in ("uint8", "uint16", "int16", "float32", "float64"))
MOST_CHANNELS = 128  # of OpenCV; of `area` four
_CUBIC = -0.75  # OpenCV's steepness


def methods_of(names: Sequence[str], given: Methods, among: Sequence[Method] = METHODS) -> OfLeaves:
    """The method of all leaves, or of each by name.

    Where one is given for several leaves, those called masks are sampled by `nearest`.
    """
    if isinstance(given, Mapping):
        if unknown := set(given) - set(names):
            raise ValueError(f"method names {sorted(unknown)}: the leaves are {list(names)}")
        methods: dict[str, Method] = {n: _checked(given.get(n, "linear"), among) for n in names}
    else:
        images = [name for name in names if not name.endswith("mask")] or names
        method = _checked(given, among)
        methods = {name: method if name in images else "nearest" for name in names}
    alike = len(set(methods.values())) == 1
    return methods[names[0]] if alike else tuple(methods.items())


def by_leaf(names: Sequence[str], methods: OfLeaves) -> Iterable[tuple[str, Method]]:
    """Each leaf with its method."""
    return methods if isinstance(methods, tuple) else [(name, methods) for name in names]


def _checked(method: Any, among: Sequence[Method]) -> Method:
    if method not in among:
        raise ValueError(f"method must be one of {list(among)}, got {method!r}")
    return method


def sampled_spec(spec: Spec, methods: Iterable[tuple[str, Method]], size: tuple[int, int]) -> Spec:
    """The spec of records of which these leaves are images of this size."""
    for name, method in methods:
        leaf = image_spec(spec, name)
        refuse_unfit_dtype(name, leaf, method)
        spec = put(spec, name, sized_spec(name, leaf, size))
    return spec


def refuse_unfit_dtype(name: str, leaf: LeafSpec, method: Method) -> None:
    """Raise `ValueError` for pixels that cannot be averaged."""
    if method != "nearest" and leaf.dtype.kind in "iu" and leaf.dtype.itemsize > 2:
        raise ValueError(
            f"leaf {name!r} is {leaf.dtype}, whose values float32 does not hold exactly: "
            f"put Cast({name!r}, np.float32) before, or use method='nearest'"
        )


def skipping(
    name: str, given: tuple[int, int], wanted: tuple[int, int], method: Method
) -> str | None:
    """What to do if an image shrinks so far that this method leaves out some of its pixels."""
    shrinks = any(2 * new < old for old, new in zip(given, wanted, strict=True))
    if method not in ("linear", "cubic") or not shrinks:
        return None
    sizes = " to ".join("{} x {}".format(*size) for size in (given, wanted))
    return (
        f"leaf {name!r} shrinks from {sizes}, to less than half, and method={method!r} leaves out "
        "pixels there: use method='area', or DecodeImage(least=...) of large JPEG files"
    )


def refuse_unlike(row: int, name: str, into: np.ndarray, image: np.ndarray, done: str) -> None:
    """Raise `RowError` for a row that is not like the memory for it, or has no pixels."""
    if fault := not_an_image(name, image):
        raise RowError(row, fault)
    if image.shape[2:] != into.shape[2:] or image.dtype != into.dtype:
        raise RowError(
            row,
            f"leaf {name!r} is {image.dtype}{list(image.shape)} where others are {into.dtype} with "
            f"{into.shape[2]} channels: bring all images to one kind before they are {done}",
        )
    refuse_empty(row, name, image)


def refuse_empty(row: int, name: str, image: np.ndarray) -> None:
    """Raise `RowError` for an image without pixels."""
    if not image.size:
        raise RowError(
            row,
            f"leaf {name!r} is an image of {image.shape[:2]} pixels: leave it out with a filter",
        )


def sample_row(row: int, name: str, into: np.ndarray, image: np.ndarray, method: Method) -> None:
    """Write a row of a leaf at another size into this memory; on the host."""
    refuse_unlike(row, name, into, image, "resized")
    sample_into(into, image, method)


def sample_into(into: np.ndarray, image: np.ndarray, method: Method) -> None:
    """Write the image at another size into this memory, by OpenCV; on the host.

    Dtypes that OpenCV does not average go through float32.
    """
    height, width, channels = into.shape
    if image.dtype not in _OPENCVS:
        if method == "nearest":
            down = _taps("nearest", image.shape[0], height, False)[0][0]
            across = _taps("nearest", image.shape[1], width, False)[0][0]
            into[:] = image[down][:, across]
            return
        sampled = np.empty(into.shape, np.float32)
        sample_into(sampled, image.astype(np.float32), method)
        into[:] = in_dtype(sampled, image.dtype)
        return
    cv2 = optional("cv2", "Resize", "images")
    most = 4 if method == "area" else MOST_CHANNELS
    with _without_ipp(cv2):
        if channels <= most:
            cv2.resize(image, (width, height), dst=into, interpolation=_FLAGS[method])
            return
        for first in range(0, channels, most):
            some = slice(first, first + most)
            part = np.ascontiguousarray(image[..., some])
            sampled = cv2.resize(part, (width, height), interpolation=_FLAGS[method])
            into[..., some] = sampled.reshape(height, width, -1)


@contextlib.contextmanager
def _without_ipp(cv2: Any) -> Iterator[None]:
    """OpenCV's own code, in this thread: the last bit of Intel's IPP depends on the processor.

    `cubic`, and `linear` of floats, take two to five times as long so; the others do not use it.
    """
    used = cv2.ipp.useIPP()
    cv2.ipp.setUseIPP(False)  # 0.1 µs
    try:
        yield
    finally:
        cv2.ipp.setUseIPP(used)


def sampled(images: Any, size: tuple[int, int], method: Method) -> Any:
    """Stacked images at another size, on the device: within one step of 255 of OpenCV's.

    Weighted sums of neighbours, one neighbour after the other: the same bits on every mesh.
    """
    given = images.shape[1:3]
    if given == size:
        return images
    shrinks = all(old >= new for old, new in zip(given, size, strict=True))
    down, across = (_taps(method, old, new, shrinks) for old, new in zip(given, size, strict=True))
    if method == "nearest":
        return images[:, down[0][0]][:, :, across[0][0]]
    sums = _sums(1, images.astype(np.float32), *down)
    return in_dtype(_sums(2, sums, *across), images.dtype)


def in_dtype(values: Any, dtype: np.dtype[Any]) -> Any:
    """Numbers of float32 in the dtype of the images: whole ones rounded, and held to its range."""
    if dtype.kind in "biu":
        values = values.round()
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        values = namespace(values).clip(values, info.min, info.max)
    return values.astype(dtype)


def _sums(axis: int, images: Any, places: np.ndarray, weights: np.ndarray) -> Any:
    xp = namespace(images)
    shape = [1, 1, 1, 1]
    shape[axis] = weights.shape[1]
    total = None
    for place, weight in zip(places, weights, strict=True):
        part = rounded(xp.take(images, place, axis=axis) * weight.reshape(shape))
        total = part if total is None else total + part
    return total


@functools.lru_cache(1024)
def _taps(method: Method, size: int, wanted: int, shrinks: bool) -> tuple[np.ndarray, np.ndarray]:
    """For each of `wanted` pixels in a line: which of `size` pixels add to it, and how much.

    Arrays are (taps, wanted). `shrinks` says whether the whole image does: `area` asks. The
    arithmetic is OpenCV's, with its roundings.
    """
    grows = wanted / size
    scale = 1 / grows
    pixels = np.arange(wanted)
    if method == "nearest":
        first, weights = np.floor(pixels * scale), np.ones((1, wanted))
    elif method == "area" and shrinks:
        edges = np.minimum(np.arange(wanted + 1) * scale, size)
        first = np.floor(edges[:-1])
        parts = first + np.arange(int(np.ceil(scale)) + 1)[:, None]
        weights = np.minimum(parts + 1, edges[1:]) - np.maximum(parts, edges[:-1])
        weights = weights.clip(0)
    elif method == "area":
        first = np.floor(pixels * scale)
        share = ((pixels + 1) - (first + 1) * grows).astype(np.float32)
        share = np.where(share <= 0, 0, share - np.floor(share))
        weights = np.stack([1 - share, share])
    else:
        centres = ((pixels + 0.5) * scale - 0.5).astype(np.float32)
        first = np.floor(centres)
        share = centres - first
        weights = np.stack([1 - share, share])
        if method == "cubic":
            first = first - 1
            weights = np.stack([_cubic(share + 1), _cubic(share), _cubic(1 - share)])
            weights = np.concatenate([weights, 1 - weights.sum(0, keepdims=True)])
    places = (first.astype(np.int64) + np.arange(len(weights))[:, None]).clip(0, size - 1)
    used = weights.any(1)
    weights = (weights / weights.sum(0))[used]
    return places[used], weights.astype(np.float32)


def _cubic(away: np.ndarray) -> np.ndarray:
    """The weight of a pixel so far away, up to 2."""
    near = ((_CUBIC + 2) * away - (_CUBIC + 3)) * away**2 + 1
    far = ((_CUBIC * away - 5 * _CUBIC) * away + 8 * _CUBIC) * away - 4 * _CUBIC
    return np.where(away <= 1, near, far)
