"""Transforms of torchvision (v2) as they are, seeded for each row."""

import contextlib
import copy
import dataclasses
import json
import random
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Unpack

import numpy as np

from loader.records.digest import describe, qualified_name
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

_one_at_a_time = threading.RLock()  # the generators that are seeded are those of the process


@dataclasses.dataclass(frozen=True)
class _Transform:
    leaves: Leaves
    settings: str = dataclasses.field(repr=False)
    release: str
    _transform: Any = dataclasses.field(compare=False, repr=False)
    size: tuple[int, int] | None = None
    draws = DRAWS

    def __call__(self, rows: Any, draws: np.ndarray) -> Any:
        torch, tv_tensors = _packages()[:2]
        kinds = {"image": tv_tensors.Image, "mask": tv_tensors.Mask}

        def seeded(parts: Any, own: np.ndarray) -> Any:
            seed = seed_of(own)
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` seeds devices too
            random.seed(seed)
            np.random.seed(seed % 2**32)
            # Channels first, as torch has images.
            given = {
                part: kinds[part](torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1))))
                for part, array in parts.items()
            }
            made = self._transform(given)
            return {part: made[part].numpy().transpose(1, 2, 0) for part in given}

        with _one_at_a_time, _generators_put_back(torch):
            return by_row(rows, self.leaves, draws, seeded, self.size)

    def output_spec(self, spec: Spec) -> Spec:
        likelier = copy.deepcopy(self._transform)
        evened(_all_in(likelier))
        trial = dataclasses.replace(self, _transform=likelier, size=None)
        return spec_by_trial(spec, self.leaves, ("image", "mask"), trial, self.size)


class Torchvision(OperatorModule):
    """A transform of `torchvision.transforms.v2`, such as `v2.Compose([...])`, on each image.

    Images are (height, width, channels) here, before and after; the transform is given them as
    `tv_tensors.Image`, and `mask`, a leaf that is transformed alike, as `tv_tensors.Mask`. It draws
    from the generators of the whole process (torch, numpy, random): they are seeded for each row
    and put back afterwards, so only one thread at a time may be in such a transform, and what draws
    from them in another thread meanwhile disturbs it. Use processes for more than one.
    `size=(height, width)` promises the size that comes out, where a trial cannot show it. A state
    knows its settings and the release of the library, such as 0.25.
    """

    def __init__(
        self,
        pipeline: Any,
        leaf: str = "image",
        *,
        mask: str | None = None,
        size: ImageSize | None = None,
        **options: Unpack[OperatorOptions],
    ) -> None:
        torch, _, v2, version = _packages()
        if not isinstance(pipeline, v2.Transform):
            raise ValueError(
                "pipeline must be of torchvision.transforms.v2, such as "
                f"v2.Compose([v2.RandomHorizontalFlip()]), got {pipeline!r}"
            )
        transforms = _all_in(pipeline)
        for transform in transforms:
            if isinstance(transform, v2.MixUp | v2.CutMix):
                raise ValueError(
                    f"{type(transform).__name__} mixes the rows of a batch, and a pipeline is "
                    "given one image at a time: use operators.MixUp"
                )
        kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
        own_generators(transforms, (), kinds)
        named = {"image": leaf, "mask": mask}
        leaves = tuple((part, name_of(n)) for part, n in named.items() if n is not None)
        release = ".".join(["torchvision", *version.split(".")[:2]])
        settings = json.dumps(_settings(pipeline, torch), sort_keys=True)
        promised = None if size is None else two_sizes(size)
        super().__init__(_Transform(leaves, settings, release, pipeline, promised), **options)


def _packages() -> tuple[Any, Any, Any, str]:
    """torch, tv_tensors, transforms.v2 and the version of torchvision."""
    library, user = optional("torchvision", "Torchvision", "torchvision"), "Torchvision"
    tv_tensors = optional("torchvision.tv_tensors", user, "torchvision")
    v2 = optional("torchvision.transforms.v2", user, "torchvision")
    return optional("torch", user, "torchvision"), tv_tensors, v2, library.__version__


@contextlib.contextmanager
def _generators_put_back(torch: Any) -> Iterator[None]:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


def _all_in(transform: Any) -> list[Any]:
    """A transform, and all that are in it: in lists, and in containers of torch."""
    listed = getattr(transform, "transforms", None) or ()
    modules = transform.children() if hasattr(transform, "children") else ()
    return [transform, *(found for other in (*listed, *modules) for found in _all_in(other))]


def _settings(value: Any, torch: Any) -> Any:
    """A transform by its class and public attributes, those in it too, as plain data."""
    if isinstance(value, torch.nn.Module):
        fields = {**vars(value), **value._modules}
        public = {
            name: _settings(of, torch)
            for name, of in fields.items()
            if not name.startswith("_") and name != "training"
        }
        return {"class": qualified_name(type(value)), "fields": public}
    if isinstance(value, torch.Tensor):
        return describe(value.numpy())
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, Mapping):
        pairs = [[_settings(key, torch), _settings(of, torch)] for key, of in value.items()]
        return {"map": sorted(pairs, key=json.dumps)}
    if isinstance(value, list | tuple):
        return [_settings(item, torch) for item in value]
    return describe(value)
