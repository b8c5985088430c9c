"""Albumentations: pipelines as they are, their draws a function of the row's position."""

import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest

A: Any = pytest.importorskip("albumentations")

from loader import DataLoader, On, Shuffle, Threads  # noqa: E402
from loader.records.spec import leaf_spec  # noqa: E402
from loader.testing import assert_covers_each_record_once, assert_resumes_exactly  # noqa: E402
from loader.transforms.transform import spec_after  # noqa: E402
from operators import Albumentations  # noqa: E402

COUNT = 23
_values = np.random.default_rng(0).integers(0, 256, (COUNT, 12, 10, 3), np.uint8)
RECORDS: dict[str, np.ndarray] = {
    "id": np.arange(COUNT, dtype=np.int32),
    "image": _values,
    "mask": _values[..., :1].copy(),
    "points": np.tile(np.array([[2, 3], [7, 5]], np.float32), (COUNT, 1, 1)),
}


def random_pipeline(**settings: Any) -> Any:
    some = A.OneOf([A.GaussNoise(p=1), A.ColorJitter(p=1)], p=settings.pop("p", 0.8))
    return A.Compose([A.RandomCrop(8, 6), A.HorizontalFlip(), some, A.CoarseDropout()], **settings)


def batches(operator: Any, data: Any = RECORDS, **settings: Any) -> dict[str, np.ndarray]:
    """All rows, in the order of their positions."""
    arguments = {"batch_size": 4, "order": Shuffle(1), "epochs": 2, **settings}
    loader = DataLoader(data, operators=[operator], **arguments)
    made = [jax.tree.map(lambda x: x, b) for b in loader.host_batches()]
    return {k: np.concatenate([b[k][b["valid_mask"]] for b in made]) for k in data}


def test_a_row_is_the_same_in_any_batch_thread_and_process():
    def make() -> DataLoader:
        operator = Albumentations(random_pipeline(), seed=3)
        return DataLoader(RECORDS, batch_size=4, order=Shuffle(1), epochs=2, operators=[operator])

    assert_resumes_exactly(make)
    assert_covers_each_record_once(make(), "id")
    expected = batches(Albumentations(random_pipeline(), seed=3), remainder="carry")
    assert expected["image"].shape == (2 * COUNT, 8, 6, 3)
    with ThreadPoolExecutor(1) as pool:  # what is sent there is pickled
        for workers in (Threads(3), On(pool)):
            operator = Albumentations(random_pipeline(), seed=3)
            rows = batches(operator, batch_size=7, remainder="carry", workers=workers)
            np.testing.assert_array_equal(rows["image"], expected["image"])
    again = [expected["image"][expected["id"] == record] for record in range(COUNT)]
    assert sum(np.array_equal(*pair) for pair in again) < 3  # another one in each epoch
    other = batches(Albumentations(random_pipeline(), seed=4), remainder="carry")
    assert not np.array_equal(other["image"], expected["image"])


def test_what_is_not_random_is_what_the_library_gives():
    pipeline = A.Compose([A.Resize(5, 9), A.Transpose(p=1), A.ToGray(p=1), A.Normalize(p=1)])
    rows = batches(Albumentations(pipeline, seed=1), order=None, epochs=1)
    expected = np.stack([pipeline(image=image)["image"] for image in RECORDS["image"]])
    assert expected.shape == (COUNT, 9, 5, 3)
    assert rows["image"].dtype == np.float32
    np.testing.assert_array_equal(rows["image"], expected)
    single = batches(Albumentations(A.HorizontalFlip(p=1), seed=1), order=None, epochs=1)
    np.testing.assert_array_equal(single["image"], RECORDS["image"][:, :, ::-1])


def test_chances_are_those_of_the_pipeline():
    images = np.broadcast_to(np.arange(4, dtype=np.uint8)[None, None, :, None], (400, 2, 4, 1))
    rows = batches(Albumentations(A.HorizontalFlip(p=0.3), seed=1), {"image": images}, epochs=1)
    flipped = rows["image"][:, 0, 0, 0] == 3
    assert 90 < flipped.sum() < 150
    assert flipped.shape == rows["image"][..., 0, 0, 0].shape


def test_mask_and_points_follow_the_image():
    settings = {"keypoint_params": A.KeypointParams(format="xy", remove_invisible=False)}
    pipeline = A.Compose([A.HorizontalFlip(), A.VerticalFlip(), A.Transpose()], **settings)
    data = {name: leaf[:, :10] for name, leaf in RECORDS.items() if name != "id"}
    data["points"] = RECORDS["points"]
    operator = Albumentations(pipeline, mask="mask", keypoints="points", seed=2)
    rows = batches(operator, data, order=None, epochs=1)
    np.testing.assert_array_equal(rows["mask"], rows["image"][..., :1])
    assert rows["points"].dtype == np.float32
    for number, points in enumerate(rows["points"]):
        was = RECORDS["points"][number].astype(int)
        for (x, y), (was_x, was_y) in zip(points.astype(int), was, strict=True):
            np.testing.assert_array_equal(
                rows["image"][number, y, x], data["image"][number, was_y, was_x]
            )
    assert len({points.tobytes() for points in rows["points"]}) > 4  # of the eight ways


def test_the_pipeline_and_the_generators_of_the_process_are_left_alone():
    pipeline = random_pipeline(seed=5)
    untouched = pickle.dumps(pipeline.random_generator), pipeline.py_random.getstate()
    before = np.random.get_state(legacy=False)["state"]["key"].tolist(), random.getstate()
    operator = Albumentations(pipeline, seed=3)
    rows = batches(operator)
    assert (np.random.get_state(legacy=False)["state"]["key"].tolist(), random.getstate()) == before
    assert (pickle.dumps(pipeline.random_generator), pipeline.py_random.getstate()) == untouched
    pipeline.transforms[0].height = 3  # a copy of it is kept
    pipeline(image=RECORDS["image"][0])
    np.testing.assert_array_equal(batches(operator)["image"], rows["image"])


def test_what_it_is_given_is_not_written_into():
    class Scribble(A.ImageOnlyTransform):
        def apply(self, img: np.ndarray, **params: Any) -> np.ndarray:
            img[:] = 0
            return img

        def get_transform_init_args_names(self) -> tuple[str, ...]:
            return ()

    rows = {"image": RECORDS["image"].copy()}
    assert not Albumentations(Scribble(p=1), seed=1)(rows)["image"].any()
    np.testing.assert_array_equal(rows["image"], RECORDS["image"])


def test_batch_spec_is_known_and_sizes_that_are_drawn_are_open():
    class Unreadable:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("read")

        def record_spec(self) -> Any:
            return {"image": jax.ShapeDtypeStruct((12, 10, 3), np.dtype(np.uint8))}

    def spec_of(pipeline: Any) -> Any:
        operators = [Albumentations(pipeline, seed=1)]
        return DataLoader(Unreadable(), batch_size=4, operators=operators).host_batch_spec()

    operators = [Albumentations(A.Compose([A.RandomCrop(8, 6), A.Normalize()]), seed=1)]
    spec = DataLoader(Unreadable(), batch_size=4, operators=operators).batch_spec()["image"]
    assert (spec.shape, spec.dtype) == ((4, 8, 6, 3), np.float32)
    open_sizes = spec_of(A.RandomScale((-0.5, 0.5), p=1))["image"]
    assert (open_sizes.shape, open_sizes.dtype) == ((4,), np.dtype(object))  # ragged


class OpenSizes:
    """Images whose sizes only the records know; each has another."""

    thread_safe = True

    def __init__(self, count: int = 6) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return {"image": np.full((20 + index, 30, 3), index, np.uint8)}

    def record_spec(self) -> Any:
        return {"image": leaf_spec((None, None, 3), np.dtype(np.uint8))}


@pytest.mark.parametrize("p", [0.5, 0.1, 0.001])
@pytest.mark.parametrize("seed", range(3))
def test_a_size_that_changes_however_rarely_is_open(p: float, seed: int):
    record = {"image": leaf_spec((20, 30, 3), np.dtype(np.uint8))}
    turn, same = A.RandomRotate90(p=p), A.HorizontalFlip(p=1)
    for pipeline in (
        turn,
        A.Compose([turn]),
        A.OneOf([same, turn], p=1),
        A.OneOf([same, A.Transpose(p=1)], p=p),
        A.Sequential([A.Transpose(p=1)], p=p),
    ):
        spec = spec_after(Albumentations(pipeline, seed=seed).transform, "A", record)["image"]
        assert spec.shape == (None, None, 3), pipeline
    never = A.Compose([A.RandomRotate90(p=0), A.OneOf([same, A.Transpose(p=0)])])
    spec = spec_after(Albumentations(never, seed=seed).transform, "A", record)["image"]
    assert spec.shape == (20, 30, 3)


def test_what_only_pads_small_images_has_no_fixed_size_where_sizes_are_open():
    def size_of(pipeline: Any) -> Any:
        operator = Albumentations(pipeline, seed=1)
        return spec_after(operator.transform, "A", OpenSizes().record_spec())["image"].shape

    assert size_of(A.PadIfNeeded(512, 512)) == (None, None, 3)
    assert size_of(A.Compose([A.PadIfNeeded(512, 512), A.RandomCrop(512, 512)])) == (512, 512, 3)


def test_a_size_may_be_promised_and_is_looked_at():
    pad = A.Compose([A.PadIfNeeded(24, 30)])
    loader = DataLoader(
        OpenSizes(4), batch_size=2, operators=[Albumentations(pad, size=(24, 30), seed=1)]
    )
    assert loader.batch_spec()["image"].shape == (2, 24, 30, 3)
    assert next(loader)["image"].shape == (2, 24, 30, 3)
    loader = DataLoader(
        OpenSizes(), batch_size=2, operators=[Albumentations(pad, size=(24, 30), seed=1)]
    )
    said = r"record 5: Albumentations: an image of \(25, 30\) came .* size=\(24, 30\) was promised"
    with pytest.raises(ValueError, match=said):
        list(loader)
    plain, promised = (Albumentations(pad, seed=1, size=size) for size in (None, (24, 30)))
    assert "size" not in str(plain.fingerprint())
    assert plain.fingerprint() != promised.fingerprint()
    again = pickle.loads(pickle.dumps(promised.transform))
    assert again.size == (24, 30)


def test_a_state_knows_the_settings_and_the_release(monkeypatch: pytest.MonkeyPatch):
    def loader_of(pipeline: Any, **settings: Any) -> DataLoader:
        operator = Albumentations(pipeline, seed=3, **settings)
        return DataLoader(RECORDS, batch_size=4, operators=[operator])

    loader = loader_of(random_pipeline())
    next(loader.host_batches())
    state = loader.get_state()
    loader_of(random_pipeline(seed=8)).set_state(state)  # a seed of its own has no effect
    for other in (random_pipeline(p=0.7), random_pipeline(additional_targets={"b": "image"})):
        with pytest.raises(ValueError, match="operators"):
            loader_of(other).set_state(state)
    with pytest.raises(ValueError, match="operators"):
        loader_of(random_pipeline(), mask="mask").set_state(state)
    major, minor = A.__version__.split(".")[:2]
    monkeypatch.setattr(A, "__version__", f"{major}.{minor}.99")
    loader_of(random_pipeline()).set_state(state)
    monkeypatch.setattr(A, "__version__", f"{major}.{int(minor) + 1}.0")
    with pytest.raises(ValueError, match="operators"):
        loader_of(random_pipeline()).set_state(state)


class WithItsOwn(A.ImageOnlyTransform):
    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)
        self.rng = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (lambda image: image, "must be one of albumentations"),
        ([A.HorizontalFlip()], "must be one of albumentations"),
        (A.Compose([A.OneOf([A.Lambda(image=np.negative)])]), "A.Lambda calls a function"),
        (A.Compose([A.SomeOf([WithItsOwn()], 1)]), "WithItsOwn draws from .* attribute 'rng'"),
    ],
)
def test_what_cannot_be_seeded_is_refused_by_name(pipeline: Any, message: str):
    with pytest.raises(ValueError, match=message):
        Albumentations(pipeline)


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match="keypoints='points' needs a pipeline with keypoint_par"):
        Albumentations(A.Compose([A.HorizontalFlip()]), keypoints="points")
    with pytest.raises(ValueError, match="runs on host"):
        Albumentations(A.HorizontalFlip(), on="device")
    with pytest.raises(ValueError, match=r"leaf 'id' is int32\[\] where an image"):
        batches(Albumentations(A.HorizontalFlip(), "id", seed=1))
    too_large = Albumentations(A.Crop(0, 0, 50, 50, p=1), seed=1)
    with pytest.raises(ValueError, match=r"record 0: Albumentations: .*"):
        batches(too_large, order=None)
