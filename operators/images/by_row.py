"""Transforms of other libraries: called a row at a time, on the host."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from loader.records.errors import RowError, SpecMismatch
from loader.records.spec import Spec, leaf_spec
from loader.records.stacking import ragged_leaf, row_spec, stack
from loader.transforms.draws import draw
from loader.transforms.transform import SpecUnknown
from operators.images.image_spec import image_spec
from operators.leaves import get, put

Leaves = tuple[tuple[str, str], ...]  # what the library calls each part, and the leaf it is in
Parts = dict[str, np.ndarray]  # of one row, by what the library calls them
DRAWS = 2  # of a row: a seed of 48 bits

_TRIED = 24  # rows, so that a size that is drawn shows as one that varies
_OPEN, _LARGE = 256, 1200  # pixels at least and at most, of an image whose size is not known


def seed_of(draws: np.ndarray) -> int:
    """The seed of a row, of 48 bits."""
    high, low = (int(number * 2**24) for number in draws)
    return high << 24 | low


def by_row(
    rows: Any,
    leaves: Leaves,
    draws: np.ndarray,
    fn: Callable[[Parts, np.ndarray], Mapping],
    size: tuple[int, int] | None,
) -> Any:
    """The rows with what `fn(parts, draws)` makes of the parts of each; of images, in this size."""
    given = {part: get(rows, leaf) for part, leaf in leaves}
    made = []
    for row, own in enumerate(draws):
        # A copy: what was given may be shared, and a library may write into it.
        parts = {part: leaf[row].copy() for part, leaf in given.items()}
        try:
            out = fn(parts, own)
            made.append({part: _shaped(out[part], parts[part]) for part in parts})
        except Exception as error:
            raise RowError(row, f"{type(error).__name__}: {error}") from error
        for array in made[-1].values():
            if size is not None and array.ndim == 3 and array.shape[:2] != size:
                raise RowError(
                    row,
                    f"an image of {array.shape[:2]} came out where size={size} was promised: leave "
                    "out size, and put Resize after it",
                )
    try:
        stacked = stack(made, ragged=True)
    except SpecMismatch as error:
        raise RowError(error.row or 0, f"of what came out, counted in rows, {error}") from error
    for part, leaf in leaves:
        rows = put(rows, leaf, stacked[part])
    return rows


def _shaped(made: Any, given: np.ndarray) -> np.ndarray:
    """As an array. An image that lost its only channel has it again; points keep their dtype."""
    if given.ndim < 3:
        return np.asarray(made, given.dtype)
    array = np.asarray(made)
    return array[..., None] if array.ndim == 2 else array


def spec_by_trial(
    spec: Spec,
    leaves: Leaves,
    images: tuple[str, ...],
    fn: Callable[[Any, np.ndarray], Any],
    size: tuple[int, int] | None,
) -> Spec:
    """What records look like afterwards: `fn(rows, draws)` is tried on rows of zeros.

    Lengths that differ from row to row are open. `images` are the parts that must be images, and
    have this size afterwards if one is promised.
    """
    zeros: Any = {}
    for part, leaf in leaves:
        of = image_spec(spec, leaf) if part in images else get(spec, leaf)
        open_sizes = [*range(_OPEN, _OPEN + _TRIED - 1), _LARGE]
        shapes = [tuple(one if n is None else n for n in of.shape) for one in open_sizes]
        zeros = put(zeros, leaf, ragged_leaf([np.zeros(shape, of.dtype) for shape in shapes]))
    try:
        made = row_spec(fn(zeros, draw("trial", np.arange(_TRIED), DRAWS)))
    except Exception as error:  # it may want other pixels than zeros: then a record is read
        raise SpecUnknown(str(error)) from error
    for part, leaf in leaves:
        seen = get(made, leaf)
        if part in images and size is not None:
            seen = leaf_spec((*size, *seen.shape[2:]), seen.dtype)
        spec = put(spec, leaf, seen)
    return spec


def evened(transforms: list[Any]) -> None:
    """Let what is done by chance be done for half of the rows, so that a trial shows it."""
    for transform in transforms:
        chance = getattr(transform, "p", None)
        if isinstance(chance, float) and 0 < chance < 1:
            transform.p = 0.5
        for name in ("p", "transforms_ps"):  # the chances of several, of which one is done
            odds = getattr(transform, name, None)
            if isinstance(odds, list):
                some = np.array(odds, bool)
                setattr(transform, name, (some / some.sum()).tolist())


def own_generators(transforms: list[Any], seeded: tuple[str, ...], kinds: tuple[type, ...]) -> None:
    """Refuse a transform with a generator of its own, but for those of these names."""
    for transform in transforms:
        for name, value in getattr(transform, "__dict__", {}).items():
            if isinstance(value, kinds) and name not in seeded:
                raise ValueError(
                    f"{type(transform).__name__} draws from a generator of its own, its attribute "
                    f"{name!r}, which cannot be seeded for each row: leave it out, or write it as "
                    "Map(fn, random=True)"
                )
