"""Pipelines of Albumentations as they are, seeded for each row."""

import copy
import dataclasses
import json
import random
from typing import Any, Unpack

import numpy as np

from loader.records.optional import optional
from loader.records.spec import Spec
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.by_row import (
    DRAWS,
    Leaves,
    by_row,
    evened,
    own_generators,
    seed_of,
    spec_by_trial,
)
from operators.images.image_spec import ImageSize, two_sizes
from operators.leaves import name_of

_IMAGES = ("image", "mask")
_SEEDED = ("random_generator", "py_random")  # what a pipeline sets in all of its transforms


@dataclasses.dataclass(frozen=True)
class _Pipeline:
    leaves: Leaves
    settings: str = dataclasses.field(repr=False)
    release: str
    _pipeline: Any = dataclasses.field(compare=False, repr=False)
    # A pipeline keeps its generators: copies that no thread uses just now.
    _idle: list[Any] = dataclasses.field(default_factory=list, compare=False, repr=False)
    size: tuple[int, int] | None = None
    draws = DRAWS
    thread_safe = True

    def __call__(self, rows: Any, draws: np.ndarray) -> Any:
        try:
            pipeline = self._idle.pop()
        except IndexError:
            pipeline = copy.deepcopy(self._pipeline)

        def seeded(parts: Any, own: np.ndarray) -> Any:
            seed = seed_of(own)
            pipeline.set_random_state(np.random.default_rng(seed), random.Random(seed))
            return pipeline(**parts)

        rows = by_row(rows, self.leaves, draws, seeded, self.size)
        self._idle.append(pipeline)
        return rows

    def output_spec(self, spec: Spec) -> Spec:
        likelier = copy.deepcopy(self._pipeline)
        evened(_all_in(likelier))
        trial = dataclasses.replace(self, _pipeline=likelier, _idle=[], size=None)
        return spec_by_trial(spec, self.leaves, _IMAGES, trial, self.size)

    def __reduce__(self) -> Any:
        plain = self.leaves, self.settings, self.release, self._pipeline
        return type(self), (*plain, [], self.size)


class Albumentations(OperatorModule):
    """A pipeline of Albumentations, such as `A.Compose([...])`, on each image.

    `mask` and `keypoints` are leaves that it transforms alike; for keypoints it needs
    `keypoint_params`. Its generators are seeded for each row, so that a `seed` of its own has no
    effect. What it gives is what comes out, dtype and range too; `size=(height, width)` promises
    the size, where a trial cannot show it. A copy of it is kept. A state knows its settings and the
    release of the library, such as 2.0.
    """

    def __init__(
        self,
        pipeline: Any,
        leaf: str = "image",
        *,
        mask: str | None = None,
        keypoints: str | None = None,
        size: ImageSize | None = None,
        **options: Unpack[OperatorOptions],
    ) -> None:
        library = optional("albumentations", "Albumentations", "albumentations")
        if isinstance(pipeline, library.BasicTransform):
            pipeline = library.Compose([pipeline])
        if not isinstance(pipeline, library.BaseCompose):
            raise ValueError(
                "pipeline must be one of albumentations, such as A.Compose([A.HorizontalFlip()]), "
                f"got {pipeline!r}"
            )
        _refuse_what_cannot_be_seeded(pipeline, library)
        if keypoints is not None and "keypoints" not in getattr(pipeline, "processors", {}):
            raise ValueError(
                f"keypoints={keypoints!r} needs a pipeline with keypoint_params: give "
                "A.Compose([...], keypoint_params=A.KeypointParams(format='xy'))"
            )
        named = {"image": leaf, "mask": mask, "keypoints": keypoints}
        leaves = tuple((part, name_of(n)) for part, n in named.items() if n is not None)
        release = ".".join(["albumentations", *library.__version__.split(".")[:2]])
        kept = copy.deepcopy(pipeline)
        promised = None if size is None else two_sizes(size)
        transform = _Pipeline(leaves, _settings(kept, library), release, kept, size=promised)
        super().__init__(transform, **options)


def _refuse_what_cannot_be_seeded(pipeline: Any, library: Any) -> None:
    if not hasattr(pipeline, "set_random_state"):
        raise ValueError(
            f"albumentations {library.__version__} cannot be seeded for each row: "
            "pip install 'albumentations>=2.0'"
        )
    transforms = _all_in(pipeline)
    for transform in transforms:
        if isinstance(transform, library.Lambda):
            raise ValueError(
                "A.Lambda calls a function of yours, which cannot be seeded for each row: leave it "
                "out, and write the function as Map(fn, random=True)"
            )
    own_generators(transforms, _SEEDED, (np.random.Generator, np.random.RandomState, random.Random))


def _all_in(pipeline: Any) -> list[Any]:
    """A pipeline or transform, and all that are in it."""
    inner = getattr(pipeline, "transforms", None) or ()
    return [pipeline, *(found for transform in inner for found in _all_in(transform))]


def _settings(pipeline: Any, library: Any) -> str:
    """Its serialised form, less the version of the library."""
    try:
        settings = library.to_dict(pipeline)["transform"]
        return json.dumps(settings, sort_keys=True)
    except Exception as error:
        raise ValueError(
            f"the pipeline cannot be serialised, so that a restart could not tell it from another: "
            f"{type(error).__name__}: {error}"
        ) from error
