"""Torchvision: transforms as they are, their draws a function of the row's position."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchvision")
torch: Any = pytest.importorskip("torch")
v2: Any = pytest.importorskip("torchvision.transforms.v2")

from loader import DataLoader, On, Shuffle, Threads  # noqa: E402
from loader.testing import assert_covers_each_record_once, assert_resumes_exactly  # noqa: E402
from operators import Torchvision  # noqa: E402

COUNT = 23
_values = np.random.default_rng(0).integers(0, 256, (COUNT, 12, 10, 3), np.uint8)
RECORDS = {
    "id": np.arange(COUNT, dtype=np.int32),
    "image": _values,
    "mask": _values[..., :1].copy(),
}


def random_transform(chance: float = 0.5) -> Any:
    return v2.Compose(
        [
            v2.RandomCrop((8, 6)),
            v2.RandomApply(torch.nn.ModuleList([v2.ColorJitter(0.5)]), p=chance),
            v2.RandomHorizontalFlip(),
            v2.Lambda(_with_noise),
        ]
    )


def _with_noise(image: Any) -> Any:
    """Draws from the other generators of the process."""
    return image + int(np.random.randint(3)) + random.randrange(3)


def loader_of(transform: Any, **settings: Any) -> DataLoader:
    operator = Torchvision(transform, seed=3, mask=settings.pop("mask", None))
    arguments = {"batch_size": 4, "order": Shuffle(1), "epochs": 2, **settings}
    return DataLoader(RECORDS, operators=[operator], **arguments)


def rows_of(transform: Any, **settings: Any) -> dict[str, np.ndarray]:
    batches = list(loader_of(transform, remainder="carry", **settings).host_batches())
    return {k: np.concatenate([b[k][b["valid_mask"]] for b in batches]) for k in RECORDS}


def test_a_row_is_the_same_in_any_batch_thread_and_process():
    assert_resumes_exactly(lambda: loader_of(random_transform()))
    assert_covers_each_record_once(loader_of(random_transform()), "id")
    expected = rows_of(random_transform())
    assert expected["image"].shape == (2 * COUNT, 8, 6, 3)
    with ThreadPoolExecutor(1) as pool:  # what is sent there is pickled
        for workers in (Threads(3), On(pool)):
            rows = rows_of(random_transform(), batch_size=7, workers=workers)
            np.testing.assert_array_equal(rows["image"], expected["image"])
    again = [expected["image"][expected["id"] == record] for record in range(COUNT)]
    assert sum(np.array_equal(*pair) for pair in again) < 3  # another one in each epoch


def test_what_is_not_random_is_what_the_library_gives():
    transform = v2.Compose([v2.CenterCrop((6, 8)), v2.ToDtype(torch.float32, scale=True)])
    rows = rows_of(transform, order=None, epochs=1)
    images = torch.from_numpy(RECORDS["image"].transpose(0, 3, 1, 2).copy())
    expected = transform(images).numpy().transpose(0, 2, 3, 1)
    assert rows["image"].dtype == np.float32
    np.testing.assert_array_equal(rows["image"], expected)


def test_the_mask_follows_the_image():
    flips = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()])
    rows = rows_of(flips, mask="mask", order=None, epochs=1)
    np.testing.assert_array_equal(rows["mask"], rows["image"][..., :1])
    kept = (rows["image"] == RECORDS["image"]).all((1, 2, 3))
    assert 0 < kept.sum() < COUNT


def test_the_generators_of_the_process_are_put_back():
    def states() -> Any:
        numbers = np.random.get_state(legacy=False)["state"]["key"].tolist()
        return torch.get_rng_state().tolist(), random.getstate(), numbers

    before = states()
    rows_of(random_transform())
    assert states() == before
    with pytest.raises(ValueError, match=r"record .*: Torchvision"):
        rows_of(v2.Compose([v2.RandomHorizontalFlip(), v2.RandomCrop(50)]))
    assert states() == before


def test_no_generator_but_that_of_the_cpu_is_seeded():
    # Without a GPU, a seed for it is kept until there is one.
    kept = torch.cuda._lazy_seed_tracker.get_calls()
    rows_of(random_transform())
    assert torch.cuda._lazy_seed_tracker.get_calls() == kept


def test_batch_spec_is_known_and_sizes_that_are_drawn_are_open():
    spec = loader_of(random_transform()).batch_spec()["image"]
    assert (spec.shape, spec.dtype) == ((4, 8, 6, 3), np.uint8)
    larger = v2.RandomApply([v2.Resize((9, 9))], p=0.01)
    unlike = v2.RandomChoice([v2.CenterCrop((6, 6)), v2.CenterCrop((5, 5))], p=[0.99, 0.01])
    for transform in (larger, unlike):
        spec = loader_of(transform).host_batch_spec()["image"]
        assert (spec.shape, spec.dtype) == ((4,), np.dtype(object))  # ragged


def test_a_size_may_be_promised_and_is_looked_at():
    images = {"image": RECORDS["image"]}
    operator = Torchvision(v2.CenterCrop((6, 5)), size=(6, 5), seed=1)
    assert next(DataLoader(images, batch_size=4, operators=[operator]))["image"].shape[1:3] == (
        6,
        5,
    )
    operator = Torchvision(v2.CenterCrop((6, 5)), size=(6, 6), seed=1)
    loader = DataLoader(images, batch_size=4, operators=[operator])
    with pytest.raises(ValueError, match=r"record 0: Torchvision: an image of \(6, 5\) came"):
        next(loader)


def test_a_state_knows_the_settings():
    loader = loader_of(random_transform())
    next(loader.host_batches())
    state = loader.get_state()
    loader_of(random_transform()).set_state(state)
    for other in (random_transform(0.4), v2.RandomHorizontalFlip()):
        with pytest.raises(ValueError, match="operators"):
            loader_of(other).set_state(state)


class WithItsOwn(v2.Transform):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()


def test_what_cannot_be_seeded_is_refused_by_name():
    with pytest.raises(ValueError, match=r"WithItsOwn draws from .* attribute 'generator'"):
        Torchvision(v2.Compose([v2.RandomApply([WithItsOwn()])]))
    with pytest.raises(ValueError, match=r"WithItsOwn draws from .* attribute 'generator'"):
        Torchvision(v2.Compose([torch.nn.Sequential(torch.nn.Sequential(WithItsOwn()))]))
    with pytest.raises(ValueError, match="MixUp mixes the rows of a batch"):
        Torchvision(v2.Compose([v2.MixUp(num_classes=3)]))
    with pytest.raises(ValueError, match=r"must be of torchvision\.transforms\.v2"):
        Torchvision(lambda image: image)
    with pytest.raises(ValueError, match="runs on host"):
        Torchvision(v2.RandomHorizontalFlip(), on="device")
