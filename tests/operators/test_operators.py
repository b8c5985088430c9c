"""Every operator: it resumes, covers, and gives the same rows whatever split, hosts and workers."""

import dataclasses
import json
import math
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from loader import (
    ArraySource,
    DataLoader,
    DefaultBatcher,
    LoaderModule,
    MeshSharder,
    OperatorModule,
    PadBatcher,
    Processes,
    RowError,
    Shuffle,
    StructuralConfig,
    Threads,
)
from loader.records.digest import content_key
from loader.records.spec import spec_of
from loader.testing import assert_resumes_exactly, assert_same_batch
from loader.transforms.draws import draw
from loader.transforms.transform import sides
from operators import (
    AddSpecialTokens,
    ByteTokenizer,
    Cast,
    CenterCrop,
    ChatTemplate,
    Choice,
    ColorJitter,
    Constant,
    CropImage,
    CropTokens,
    CutMix,
    DecodeImage,
    Filter,
    GaussianBlur,
    Grayscale,
    Map,
    MapBatch,
    MaskTokens,
    MixUp,
    Normalize,
    OneHot,
    PadImage,
    PadTokens,
    RandAugment,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
    Rename,
    Resize,
    Select,
    Sequence,
    ShiftTargets,
    SpanCorruption,
    Tokenize,
    TrivialAugment,
    TruncateTokens,
)
from tests.processes import run_processes

COUNT = 23


def chat_of(number: int) -> list[dict[str, str]]:
    """A conversation of one turn or several."""
    turns = [f"{word} {number}" for word in ("who", "me", "why", "so", "well")[: 2 + number % 4]]
    return [
        {"role": ("user", "assistant")[turn % 2], "content": content}
        for turn, content in enumerate(turns)
    ]


class Records:
    """Records of images, bytes of images, texts and tokens; no two alike, and a known spec."""

    def __init__(self, count: int = COUNT, *, readable: bool = True) -> None:
        rng = np.random.default_rng(0)
        self.readable = readable
        self.records = []
        for number in range(count):
            pixels = rng.integers(0, 256, (8 + number % 3, 9 + number % 2, 3), np.uint8)
            self.records.append(
                {
                    "id": np.int32(number),
                    "image": rng.integers(0, 256, (8, 10, 3), np.uint8),
                    "png": cv2.imencode(".png", pixels[..., ::-1])[1].tobytes(),
                    "text": f"record {number} " + "ä" * (number % 5),
                    "chat": json.dumps(chat_of(number)),
                    "tokens": np.arange(number, number + 12, dtype=np.int32),
                    "label": np.int32(number % 4),
                }
            )

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        assert self.readable, "a record was read"
        return self.records[index]

    def record_spec(self) -> Any:
        return spec_of(self.records[0])

    def fingerprint(self) -> dict[str, Any]:
        return {"length": len(self.records)}

    def locate(self, record: int) -> str:
        return f"line {record} of the list"


def brighter(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "image": record["image"] // 2 + 7}


def noisy(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**record, "noise": rng.normal(size=3)}


def twice(rows: dict[str, Any]) -> dict[str, Any]:
    return {**rows, "tokens": rows["tokens"] * 2}


class GrainMap(grain.transforms.Map):
    def __init__(self, by: int) -> None:
        self.by = by

    def map(self, element: Any) -> Any:
        return {**element, "tokens": element["tokens"] + self.by}


class GrainRandomMap(grain.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return {**element, "noise": rng.integers(0, 1000)}


class GrainFilter(grain.transforms.Filter):
    def filter(self, element: Any) -> bool:
        return bool(element["id"] % 3 != 1)


class PlainMap:
    """With the method of Grain's `Map`, and nothing else of it."""

    def __init__(self, by: int) -> None:
        self.by = by

    def map(self, element: Any) -> Any:
        return {**element, "tokens": element["tokens"] + self.by}


class PlainRandomMap:
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return {**element, "noise": rng.integers(0, 1000)}


class CallableWithMap(PlainMap):
    def __call__(self, rows: Any) -> Any:
        return {**rows, "tokens": rows["tokens"] * 0}


Make = Callable[[], list[Any]]
HOST: dict[str, Make] = {
    "Select": lambda: [Select("id", "image")],
    "Rename": lambda: [Rename({"image": "picture", "tokens": "ids"})],
    "Cast": lambda: [Cast({"image": np.float32, "label": np.float16})],
    "Constant": lambda: [Constant("weights", np.array([1.5, 2.5], np.float32))],
    "Map": lambda: [Map(brighter)],
    "Map, random": lambda: [Map(noisy, random=True, seed=1)],
    "MapBatch": lambda: [MapBatch(twice)],
    "a callable": lambda: [twice],
    "grain Map": lambda: [GrainMap(5)],
    "grain RandomMap": lambda: [GrainRandomMap()],
    "an object with map": lambda: [PlainMap(5)],
    "an object with random_map": lambda: [PlainRandomMap()],
    "Resize": lambda: [Resize("image", (5, 13))],
    "Resize, area": lambda: [Resize("image", (3, 4), method="area")],
    "Resize, cubic": lambda: [Resize("image", (9, 4), method="cubic")],
    "Resize, nearest": lambda: [Resize("image", (16, 4), method="nearest")],
    "CenterCrop": lambda: [CenterCrop("image", (5, 6))],
    "RandomCrop": lambda: [RandomCrop("image", (5, 6), padding=1, seed=2)],
    "RandomFlip": lambda: [RandomFlip("image", seed=3)],
    "RandomFlip of floats": lambda: [Cast("image", np.float32), RandomFlip("image", seed=3)],
    "RandomFlip, vertical": lambda: [RandomFlip("image", direction="vertical", seed=3)],
    "CropImage and PadImage": lambda: [
        CropImage("image", 2, 1, 5, 6),
        PadImage("image", (11, 12), value=(1, 2, 3), mask="real"),
        PadImage("image", (13, 12), where="corner"),
    ],
    "RandomErasing": lambda: [
        RandomErasing("image", value=(7, 8, 9), seed=4),
        RandomErasing("image", probability=1, scale=(0.1, 0.9), value="random", seed=4),
    ],
    "RandomErasing of floats": lambda: [
        Cast("image", np.float32),
        RandomErasing("image", value="random", seed=4),
    ],
    "OneHot": lambda: [OneHot("label", 4, smoothing=0.1), OneHot("tokens", 40, dtype=np.float16)],
    "Normalize": lambda: [Normalize("image", mean=[1.0, 2.0, 3.0], std=[4.0, 5.0, 6.0])],
    "PadTokens": lambda: [PadTokens("tokens", 15, value=-1)],
    "CropTokens": lambda: [CropTokens("tokens", 5)],
    "CropTokens, random": lambda: [CropTokens("tokens", 5, random=True, seed=4)],
    "ShiftTargets": lambda: [ShiftTargets()],
    "TruncateTokens, AddSpecialTokens and MaskTokens": lambda: [
        TruncateTokens("tokens", 9, side="left"),
        AddSpecialTokens(begin=37, end=[38, 39]),
        MaskTokens(mask_token=36, vocab_size=40, special=[0, 37], probability=0.6, seed=2),
    ],
    "MaskTokens, with ignore": lambda: [
        MaskTokens(mask_token=36, vocab_size=40, probability=0.3, ignore=-100, seed=2)
    ],
    "ColorJitter": lambda: [
        ColorJitter("image", brightness=0.5, contrast=0.5, saturation=0.5, probability=0.8, seed=5)
    ],
    "ColorJitter with hue": lambda: [ColorJitter("image", contrast=0.5, hue=0.5, seed=5)],
    "Grayscale": lambda: [Grayscale("image", probability=0.5, seed=5)],
    "Grayscale, one channel": lambda: [Grayscale("image", channels=1)],
    "GaussianBlur": lambda: [GaussianBlur("image", sigma=(0.2, 0.6), probability=0.8, seed=5)],
    "Sequence": lambda: [Sequence([RandomFlip("image"), RandomCrop("image", 5)], seed=5)],
    "Choice": lambda: [
        Choice(
            [RandomFlip("image"), RandomFlip("image", direction="vertical"), None],
            [0.3, 0.3, 0.4],
            seed=6,
        )
    ],
}
HOST_ONLY: dict[str, Make] = {
    "RandomResizedCrop": lambda: [RandomResizedCrop("image", (6, 5), seed=7)],
    "DecodeImage and RandomResizedCrop": lambda: [
        DecodeImage("png", least=4, upright=True),
        RandomResizedCrop(["png"], 6, scale=(0.3, 0.9), method="area", seed=8),
    ],
    "RandomAffine": lambda: [
        RandomAffine("image", degrees=40, translate=(0.2, 0.3), scale=(0.5, 2), shear=20, seed=9)
    ],
    "DecodeImage, RandomAffine and RandomErasing": lambda: [
        DecodeImage("png"),
        RandomAffine("png", degrees=180, probability=0.7, fill=(1, 2, 3), seed=1),
        RandomErasing("png", value="random", seed=2),
        PadImage("png", (12, 10), value=9, mask="real"),
    ],
    "DecodeImage and CropImage": lambda: [DecodeImage("png"), CropImage("png", 1, 2, 7, 6)],
    "RandAugment": lambda: [RandAugment("image", num_ops=3, seed=9)],
    "TrivialAugment": lambda: [TrivialAugment("image", seed=9)],
    "DecodeImage and colours": lambda: [
        DecodeImage("png"),
        ColorJitter("png", brightness=0.4, hue=0.2, seed=1),
        GaussianBlur("png", probability=0.5, seed=2),
        Grayscale("png", probability=0.3, seed=3),
        RandAugment("png", seed=4),
        TrivialAugment("png", seed=5),
        CenterCrop("png", 6),
    ],
    "DecodeImage and Resize": lambda: [DecodeImage("png"), Resize("png", (6, 7))],
    "DecodeImage and RandomCrop": lambda: [DecodeImage("png"), RandomCrop("png", 6, seed=1)],
    "DecodeImage and RandomFlip": lambda: [
        DecodeImage("png"),
        RandomFlip("png", seed=1),
        CenterCrop("png", 6),
    ],
    "DecodeImage, grey": lambda: [DecodeImage("png", channels=1), CenterCrop("png", 4)],
    "Tokenize": lambda: [Tokenize(into="ids"), CropTokens("ids", 10), PadTokens("ids", 10)],
    "Tokenize, random crop": lambda: [
        Tokenize(into="ids"),
        CropTokens("ids", 6, random=True, seed=1),
        PadTokens("ids", 6),
    ],
    "Tokenize and SpanCorruption": lambda: [
        Tokenize(into="ids"),
        TruncateTokens("ids", 13),
        SpanCorruption("ids", sentinels=300, length=14, noise_density=0.4, end=1, seed=3),
    ],
    "SpanCorruption of one length": lambda: [
        SpanCorruption(sentinels=[90, 91, 92], noise_density=0.5, mean_span=2, seed=4)
    ],
    "ChatTemplate and MaskTokens": lambda: [
        ChatTemplate("chat", into="ids"),
        MaskTokens("ids", mask_token=259, vocab_size=260, probability=0.5, seed=5),
        TruncateTokens(["ids", "targets", "loss_mask"], 90, side="left"),
        PadTokens(["ids", "targets", "loss_mask"], 90),
    ],
}
WITHIN_A_STEP = (
    "Resize",
    "Resize, area",
    "Resize, cubic",
    "ColorJitter with hue",
)  # as the page says
NUMBERS = ["id", "image", "tokens", "label"]  # what a device can hold


def on_device(make: Make) -> list[Any]:
    """The same operators, to run on the device."""
    operators = []
    for operator in make():
        operator.on = "device"
        operators.append(operator)
    return operators


def loader_of(operators: list[Any], **settings: Any) -> DataLoader:
    arguments = {"batch_size": 4, "order": Shuffle(1), "epochs": 2, "rngs": nnx.Rngs(augment=9)}
    return DataLoader(
        settings.pop("source", Records()), operators=operators, **{**arguments, **settings}
    )


def rows_by_position(batches: Any) -> list[Any]:
    """Every valid row of some batches, in the order of positions."""
    rows = []
    for batch in batches:
        leaves = {k: v for k, v in batch.items() if k != "valid_mask"}
        for row in np.flatnonzero(batch["valid_mask"]):
            rows.append(jax.tree.map(lambda leaf, row=row: np.asarray(leaf)[row], leaves))
    return rows


@pytest.mark.parametrize("name", [*HOST, *HOST_ONLY])
def test_an_operator_on_the_host_keeps_every_promise(name: str):
    make = {**HOST, **HOST_ONLY}[name]
    assert_resumes_exactly(lambda: loader_of(make()))
    expected = rows_by_position(loader_of(make()).host_batches())
    assert [int(row["id"]) for row in expected[:COUNT]] != list(range(COUNT))
    assert sorted(int(row["id"]) for row in expected[:COUNT]) == list(range(COUNT))
    for settings in (
        {"batch_size": 7},
        {"batch_size": 20},  # more than are decoded at once
        {"remainder": "carry", "batch_size": 5},
        {"workers": Threads(2)},
        {"microbatches": 2},
    ):
        loader = loader_of(make(), **settings)
        batches = loader.host_batches()
        if "microbatches" in settings:
            batches = [jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), b) for b in batches]
        for number, (got, want) in enumerate(zip(rows_by_position(batches), expected, strict=True)):
            assert_same_batch(got, want, f"position {number} with {settings}")
    whole = list(loader_of(make()).host_batches())
    work = loader_of(make()).pipeline  # as two hosts would ask for it
    for step, batch in enumerate(whole):
        for rows in ([1, 3], [0, 2]):
            part = work.batch(step, np.array(rows))
            assert_same_batch(part, jax.tree.map(lambda x, r=rows: x[r], batch), f"rows {rows}")


@pytest.mark.parametrize("name", [*HOST, *HOST_ONLY])
def test_what_comes_out_is_known_without_reading(name: str):
    make = {**HOST, **HOST_ONLY}[name]
    spec = loader_of(make(), source=Records(readable=False)).pipeline.batch_spec()
    batch = next(loader_of(make()).host_batches())
    assert jax.tree.map(str, spec_of(batch)) == jax.tree.map(str, spec)


class Digests:
    """A digest of all that such pipelines make, each record by the pipeline of its number."""

    def __init__(self, pipelines: list[Any]) -> None:
        self.pipelines = pipelines

    def map(self, record: dict[str, Any]) -> dict[str, Any]:
        pipeline = self.pipelines[record["number"]]
        made = [pipeline.batch(step) for step in range(3)]
        return {"digest": content_key(made), "process": np.int64(os.getpid())}


def test_operators_give_the_same_rows_in_a_worker_process():
    names = {**HOST, **HOST_ONLY}
    pipelines = [loader_of(make()).pipeline for make in names.values()]
    here = [content_key([pipeline.batch(n) for n in range(3)]) for pipeline in pipelines]
    numbers = {"number": np.arange(len(names))}
    digests = [Digests(pipelines)]  # one process for all of them: it takes seconds to start
    with DataLoader(
        numbers, batch_size=len(names), operators=digests, workers=Processes(1)
    ) as loader:
        (batch,) = loader.host_batches()
    assert os.getpid() not in batch["process"]
    there = dict(zip(names, batch["digest"].tolist(), strict=True))
    assert there == dict(zip(names, here, strict=True))
    assert len(set(here)) == len(names) - 3  # three do what another one does


def on_both_sides(operator: Any) -> bool:
    return isinstance(operator, OperatorModule) and "device" in sides(operator.transform)


@pytest.mark.parametrize("name", [name for name in HOST if on_both_sides(HOST[name]()[-1])])
def test_host_and_device_forms_agree_on_the_same_draws(name: str):
    numbers = [Select(*NUMBERS)]
    host = list(loader_of(numbers + HOST[name]()))
    loader = loader_of(numbers + on_device(HOST[name]))
    assert jax.tree.map(str, loader.batch_spec()) == jax.tree.map(str, spec_of(host[0]))
    for got, want in zip(loader, host, strict=True):
        if name in WITHIN_A_STEP:
            ours, theirs = (batch["image"].astype(np.int32) for batch in (got, want))
            assert np.abs(ours - theirs).max() <= 1
            got = {**got, "image": want["image"]}
        assert_same_batch(got, want, name)  # not only within rounding: bit for bit


def all_on_device() -> list[Any]:
    return [
        Select(*NUMBERS),
        RandomCrop("image", (6, 8), seed=1, on="device"),
        RandomFlip("image", seed=2, on="device"),
        Normalize("image", 100.0, 50.0, on="device"),
        MixUp(num_classes=4, alpha=0.4, seed=3),
        CutMix(num_classes=4, seed=4),
    ]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("microbatches", [None, 2])
def test_device_operators_give_the_same_batches_on_any_mesh(kind: AxisType, microbatches: Any):
    settings = {"batch_size": 8, "microbatches": microbatches}
    expected = list(loader_of(all_on_device(), **settings))
    for shape in ((4, 2), (1, 8), (2, 1)):
        devices = jax.devices()[: shape[0] * shape[1]]
        mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(kind,) * 2, devices=devices)
        rules = [("image", P("data", None, "model")), (".*", P("data"))]
        sharder = MeshSharder(mesh, rules=rules)
        loader = loader_of(all_on_device(), sharder=sharder, **settings)
        spec = loader.batch_spec()
        for step, (got, want) in enumerate(zip(loader, expected, strict=True)):
            assert jax.tree.map(lambda x: x.sharding, got) == jax.tree.map(
                lambda s: s.sharding, spec
            )
            assert_same_batch(got, want, f"batch {step} on {shape}")
            assert_same_batch(loader.batch_at(step), got, f"batch_at({step})")


def test_operators_of_every_kind_give_the_same_batches_on_a_mesh_that_splits_images():
    def make(**settings: Any) -> DataLoader:
        operators = [
            Select(*NUMBERS),
            CropImage("image", 1, 0, 6, 8, on="device"),
            PadImage("image", (8, 12), mask="real", on="device"),
            RandomErasing("image", value="random", seed=5, on="device"),
            OneHot("tokens", 40, on="device"),
            CutMix(num_classes=4, seed=4),
        ]
        return loader_of(operators, batch_size=8, steps=3, **settings)

    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    rules = [("image|real", P("data", None, "model")), (".*", P("data"))]
    for got, want in zip(make(sharder=MeshSharder(mesh, rules=rules)), make(), strict=True):
        assert len(got["image"].sharding.spec) == 3
        assert_same_batch(got, want, "a batch")


ON_PROCESSES = """
import numpy as np
from loader import Threads
from tests.operators.test_operators import digests_of, loader_of, on_any_host
mesh = jax.make_mesh((4,), ("data",))
report(digests_of(loader_of(on_any_host(), batch_size=8, mesh=mesh, workers=Threads(process))))
jax.distributed.shutdown()
"""


def on_any_host() -> list[Any]:
    return [
        GrainFilter(),
        RandomCrop("image", (7, 9), seed=7),
        Choice([Map(brighter), None], seed=8),
        MaskTokens(mask_token=36, vocab_size=40, probability=0.5, mask="chosen", seed=11),
        SpanCorruption(inputs="tokens", sentinels=99, noise_density=0.4, seed=12),
        RandomAffine("image", degrees=20, scale=(0.7, 1.2), seed=9),
        RandAugment("image", seed=10),
        *all_on_device(),
    ]


def digests_of(loader: DataLoader) -> list[dict[str, str]]:
    """For every batch, a digest of each shard that this process holds."""
    return [
        {
            f"{name} {shard.index}": content_key(np.asarray(shard.data))
            for name, leaf in batch.items()
            for shard in leaf.addressable_shards
        }
        for batch in loader
    ]


@pytest.mark.parametrize("count", [2, 4])
def test_operators_give_the_same_bits_whatever_the_hosts(count: int, tmp_path: Path):
    results = run_processes(ON_PROCESSES, count, 4 // count, tmp_path)
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    expected = digests_of(loader_of(on_any_host(), batch_size=8, mesh=mesh))
    for step, whole in enumerate(expected):
        held = [result[step] for result in results]
        assert sum(len(part) for part in held) == len(whole)
        assert {key: digest for part in held for key, digest in part.items()} == whole


def test_device_operators_resume_exactly():
    whole = list(loader_of(all_on_device()))
    for step in (1, 5, 8):
        saved = loader_of(all_on_device())
        for _ in range(step):
            next(saved)
        resumed = loader_of(all_on_device(), workers=Threads(2), prefetch=0)
        resumed.set_state(json.loads(json.dumps(saved.get_state())))
        for number, (got, want) in enumerate(zip(resumed, whole[step:], strict=True), step):
            assert_same_batch(got, want, f"batch {number}")


def test_all_device_operators_are_compiled_once():
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *args, **kwargs: (
            compiled.append(event)
            if event == "/jax/core/compile/backend_compile_duration"
            else None
        )
    )
    loader = loader_of(all_on_device(), epochs=5)
    next(loader)
    before = len(compiled)
    assert len(list(loader)) == 29
    loader.batch_at(3)
    loader.seek(0)
    next(loader)
    assert len(compiled) == before


def test_what_device_operators_give_is_known_without_reading():
    spec = loader_of(all_on_device(), source=Records(readable=False)).batch_spec()
    assert jax.tree.map(str, spec_of(next(loader_of(all_on_device())))) == jax.tree.map(str, spec)


def test_padding_stays_zero_after_device_operators():
    loader = loader_of(all_on_device(), epochs=1)
    *_, last = loader
    assert last["valid_mask"].tolist() == [True, True, True, False]
    assert not np.asarray(last["image"])[3].any()
    assert not np.asarray(last["label"])[3].any()
    assert np.asarray(last["image"])[2].any()


def test_mixup_mixes_pairs_of_valid_rows_and_their_labels_alike():
    images = np.eye(8, dtype=np.float32).reshape(8, 2, 2, 2)[:7]
    data = {"image": images, "label": np.arange(7, dtype=np.int32)}
    loader = DataLoader(
        data, batch_size=5, operators=[MixUp(num_classes=7, alpha=1.0, seed=0)], epochs=3
    )
    shares = []
    for batch in loader:
        valid = np.asarray(batch["valid_mask"])
        pixels = np.asarray(batch["image"]).reshape(5, 8)[valid]
        labels = np.asarray(batch["label"])[valid]
        np.testing.assert_allclose(pixels[:, :7], labels, atol=1e-6)  # the images are one-hot too
        np.testing.assert_allclose(labels.sum(1), 1, atol=1e-6)
        shares += labels.max(1).tolist()
        present = np.count_nonzero(labels.sum(0) > 1e-6)
        assert present == valid.sum()  # partners come from the batch, and none from padding
    assert len({round(share, 4) for share in shares}) > 10


def test_draws_are_uniform_and_belong_to_position_operator_and_seed():
    def flips(*operators: Any, **settings: Any) -> np.ndarray:
        images = np.arange(2, dtype=np.uint8).reshape(1, 1, 2, 1).repeat(4000, 0)
        loader = DataLoader({"image": images}, batch_size=500, operators=operators, **settings)
        return np.concatenate([b["image"][:, 0, 0, 0] for b in loader.host_batches()])

    base = flips(RandomFlip("image", seed=0))
    assert abs(base.mean() - 0.5) < 0.04
    assert np.array_equal(base, flips(RandomFlip("image", seed=0)))
    others = [
        flips(RandomFlip("image", seed=1)),
        flips(Select("image"), RandomFlip("image", seed=0)),
        flips(RandomFlip("image"), rngs=nnx.Rngs(augment=0)),
        flips(RandomFlip("image", rngs=nnx.Rngs(augment=1))),
        flips(RandomFlip("image"), rngs=nnx.Rngs(3)),
    ]
    for number, one in enumerate([base, *others]):
        for other in [base, *others][:number]:
            assert abs((one == other).mean() - 0.5) < 0.04, number
    epochs = flips(RandomFlip("image", seed=0), epochs=2)
    assert abs((epochs[:4000] == epochs[4000:]).mean() - 0.5) < 0.04
    drawn = draw("a key", np.arange(1000), 3)
    assert not (drawn[:-1, 1:] == drawn[1:, :-1]).any()  # none belongs to two rows
    assert flips(RandomFlip("image", seed=0, probability=0.1)).mean() == pytest.approx(
        0.1, abs=0.02
    )


def test_a_random_operator_without_seed_or_stream_is_refused():
    with pytest.raises(
        ValueError, match=r"RandomFlip needs the random stream 'augment'.*rngs=.*seed=2"
    ):
        DataLoader(Records(), batch_size=4, operators=[RandomFlip("image")])
    with pytest.raises(ValueError, match="CenterCrop was given seed=1: it is not random"):
        CenterCrop("image", 4, seed=1)
    with pytest.raises(ValueError, match="needs an integer"):
        RandomFlip("image", seed="a")  # pyright: ignore[reportArgumentType]


def test_a_filter_masks_rows_and_changes_no_shape():
    for keep in (GrainFilter(), Filter(GrainFilter().filter)):
        seen: list[int] = []

        def note(rows: dict[str, Any], seen: list[int] = seen) -> dict[str, Any]:
            seen.extend(rows["id"].tolist())
            return rows

        loader = loader_of([keep, RandomFlip("image"), note], epochs=1)
        every = loader_of([twice, RandomFlip("image")], epochs=1)
        unfiltered = rows_by_position(every.host_batches())
        loader.batch_spec()
        seen.clear()
        ids = []
        for batch in loader.host_batches():
            assert batch["image"].shape == (4, 8, 10, 3)
            assert not batch["image"][~batch["valid_mask"]].any()
            for row in np.flatnonzero(batch["valid_mask"]):
                ids.append(int(batch["id"][row]))
                same = next(r for r in unfiltered if r["id"] == ids[-1])
                assert np.array_equal(batch["image"][row], same["image"])
        assert sorted(ids) == [n for n in range(COUNT) if n % 3 != 1]
        assert sorted(seen) == sorted(ids)  # what was filtered out is not worked on
        assert loader.get_operation_stats() == {"applied_count": 15, "skipped_count": 9}
    none = loader_of([Filter(lambda record: False)], epochs=1)
    assert not any(batch["valid_mask"].any() for batch in none.host_batches())
    with pytest.raises(ValueError, match=r"filtered out.*DefaultBatcher never pads.*PadBatcher"):
        next(
            loader_of(
                [GrainFilter()], batcher=DefaultBatcher(), remainder="drop", batch_size=23
            ).host_batches()
        )
    for mask in ((True,) * 3, (1.0,) * 8):  # too few, and not bools
        with pytest.raises(ValueError, match="must return a bool for each"):
            next(loader_of([OperatorModule(_BadFilter(mask))]).host_batches())


@dataclasses.dataclass(frozen=True)
class _BadFilter:
    mask: tuple[Any, ...]
    filters = True

    def __call__(self, rows: Any) -> Any:
        return np.array(self.mask)


def test_operators_count_and_are_modules():
    flip = RandomFlip("image", seed=0)
    assert isinstance(flip, LoaderModule)
    assert (flip.stochastic, flip.stream_name) == (True, "augment")
    loader = loader_of([Select("image"), flip])
    list(loader)
    assert flip.get_operation_stats() == {"applied_count": 46, "skipped_count": 2}
    other = loader.clone()
    next(iter(other))
    assert flip.get_operation_stats()["applied_count"] == 46
    rows = {"image": np.zeros((3, 2, 2, 1), np.uint8)}
    assert flip.copy(name="mine")(rows)["image"].shape == (3, 2, 2, 1)
    crop = CenterCrop("image", 1, on="device")
    assert crop(rows)["image"].shape == (3, 1, 1, 1)
    assert crop.get_operation_stats()["applied_count"] == 3


def test_what_travels_is_plain_data_and_starts_no_backend(tmp_path: Path):
    operators = [
        *HOST_ONLY["DecodeImage and RandomCrop"](),
        *HOST["Choice"](),
        *HOST["Normalize"](),
        *HOST_ONLY["ChatTemplate and MaskTokens"](),
    ]
    loader = loader_of([*operators, Select("id", "png", "image", "ids", "loss_mask")])
    assert all(dataclasses.is_dataclass(stage.transform) for stage in loader.pipeline.transforms)
    (tmp_path / "work.pickle").write_bytes(pickle.dumps(loader.pipeline))
    program = (
        "import pickle, sys, numpy as np\n"
        f"work = pickle.load(open({str(tmp_path / 'work.pickle')!r}, 'rb'))\n"
        "batch = work.batch(3)\n"
        "np.savez(sys.argv[1], **batch)\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, xla_bridge._backends\n"
    )
    root = Path(__file__).parent.parent.parent
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "batch.npz")], check=True, cwd=root
    )
    got = dict(np.load(tmp_path / "batch.npz"))
    assert_same_batch(got, loader.host_batch_at(3), "made in another process")


def test_other_settings_are_another_fingerprint():
    def operators(**changes: Any) -> list[Any]:
        settings = {"seed": 1, "size": 5, "by": 2, "mean": 1.0, "fn": twice, **changes}
        return [
            RandomCrop("image", settings["size"], seed=settings["seed"]),
            GrainMap(settings["by"]),
            Normalize("label", settings["mean"], 2.0),
            MapBatch(settings["fn"]),
        ]

    state = loader_of(operators()).get_state()
    loader_of(operators()).set_state(state)
    for changes in ({"seed": 2}, {"size": 6}, {"by": 3}, {"mean": 1.5}, {"fn": brighter}):
        with pytest.raises(ValueError, match="operators: saved"):
            loader_of(operators(**changes)).set_state(state)
    fitted, other = Normalize("image"), Normalize("image")
    fitted.set_statistics({"mean": 1.0, "std": 2.0})
    other.set_statistics({"mean": 1.0, "std": 3.0})
    with pytest.raises(ValueError, match="operators: saved"):
        loader_of([fitted]).set_state(loader_of([other]).get_state())
    with pytest.raises(ValueError, match="operators: saved"):
        loader_of([RandomFlip("image")], rngs=nnx.Rngs(augment=8)).set_state(
            loader_of([RandomFlip("image")]).get_state()
        )


# What each does


def test_normalize_takes_statistics_from_where_they_are(full: bool):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50, 4, 5, 3)).astype(np.uint8)
    loader = DataLoader({"image": images}, batch_size=8, order=Shuffle(3))
    normalize = Normalize("image")
    with pytest.raises(ValueError, match=r"Normalize has no statistics.*fit\(loader\)"):
        DataLoader({"image": images}, batch_size=8, operators=[normalize])
    next(loader)
    stats = normalize.fit(loader)
    np.testing.assert_allclose(stats["mean"], images.mean((0, 1, 2)))
    np.testing.assert_allclose(stats["std"], images.std((0, 1, 2)))
    assert loader.idx.get_value() == 0  # where it was
    rows = DataLoader({"image": images}, batch_size=50, operators=[normalize]).host_batch_at(0)
    np.testing.assert_allclose(rows["image"].mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(rows["image"].std((0, 1, 2)), 1, atol=1e-5)
    single = Normalize("image")
    np.testing.assert_allclose(single.fit(loader, per_channel=False)["mean"], images.mean())

    def stats_fn(batch: Any) -> dict[str, Any]:
        return {"mean": batch.min(), "std": batch.max()}

    computed = Normalize("image", batch_stats_fn=stats_fn)
    computed.compute_statistics(images[:7].astype(np.float32))
    out = computed({"image": images})["image"]
    low, high = images[:7].min(), images[:7].max()
    np.testing.assert_allclose(out, (images.astype(np.float32) - low) / high, rtol=1e-6)
    computed.reset_statistics()
    with pytest.raises(ValueError, match="no statistics"):
        computed.ready_transform()
    with pytest.raises(ValueError, match=r"cannot divide by std=\[0\.0, 1\.0\]"):
        Normalize("image", [0.0, 0.0], [0.0, 1.0]).ready_transform()
    with pytest.raises(ValueError, match="both mean and std"):
        Normalize("image", 1.0)
    with pytest.raises(ValueError, match=r"statistics of shape \(2,\) do not fit leaf 'image'"):
        DataLoader({"image": images}, batch_size=8, operators=[Normalize("image", [1, 2], [1, 2])])


def test_crops_are_windows_of_the_image_and_every_window_comes():
    images = np.arange(2000 * 4 * 5).reshape(2000, 4, 5, 1)
    cut = RandomCrop("x", (3, 4), seed=0)({"x": images})["x"]
    corners = cut[:, 0, 0, 0] - images[:, 0, 0, 0]
    assert sorted(set(corners.tolist())) == [0, 1, 5, 6]
    for row, corner in enumerate(corners):
        top, left = divmod(int(corner), 5)
        assert np.array_equal(cut[row], images[row, top : top + 3, left : left + 4])
    middle = CenterCrop("x", (2, 3))({"x": images})["x"]
    assert np.array_equal(middle, images[:, 1:3, 1:4])
    pair = RandomCrop(["x", "y"], 2, seed=1)({"x": images, "y": images + 1})
    assert np.array_equal(pair["x"] + 1, pair["y"])


def test_a_flip_mirrors_each_image_or_leaves_it():
    for dtype, channels in ((np.uint8, 3), (np.float32, 3), (np.uint8, 7), (np.int64, 1)):
        images = np.random.default_rng(0).integers(0, 99, (40, 5, 6, channels)).astype(dtype)
        directions: list[tuple[Any, int]] = [("horizontal", 2), ("vertical", 1)]
        for direction, axis in directions:
            rows = {"x": images.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)}  # strided
            flipped = RandomFlip("x", direction=direction, seed=0)(rows)["x"]
            kept = (flipped == images).all((1, 2, 3))
            mirrored = (flipped == np.flip(images, axis)).all((1, 2, 3))
            assert (kept != mirrored).all()
            assert 8 < kept.sum() < 32


def test_tokens_are_padded_cropped_and_shifted_with_their_mask():
    rows = {"text": np.array(["ab", "ä"], object)}
    tokens = Tokenize()(rows)
    assert [t.tolist() for t in tokens["tokens"]] == [[100, 101], [198, 167]]
    assert "text" not in tokens
    marked = Tokenize(tokenizer=ByteTokenizer(bos=True, eos=True))(rows)["tokens"]
    assert [t.tolist() for t in marked] == [[1, 100, 101, 2], [1, 198, 167, 2]]
    assert ByteTokenizer().decode([1, 198, 167, 2, 0, 0]) == "ä"
    ragged = {"tokens": np.array([None, None], object)}
    ragged["tokens"][:] = [np.array([1, 2, 3]), np.array([4])]
    padded = PadTokens("tokens", 4)(ragged)
    assert padded["tokens"].tolist() == [[1, 2, 3, 0], [4, 0, 0, 0]]
    assert padded["loss_mask"].tolist() == [[True, True, True, False], [True, False, False, False]]
    shifted = ShiftTargets()(padded)
    assert shifted["tokens"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert shifted["targets"].tolist() == [[2, 3, 0], [0, 0, 0]]
    assert shifted["loss_mask"].tolist() == [[True, True, False], [False, False, False]]
    packed = {
        "tokens": np.array([[1, 2, 3, 4, 5, 0]]),
        "segment_ids": np.array([[1, 1, 2, 2, 2, 0]]),
        "positions": np.array([[0, 1, 0, 1, 2, 0]]),
    }
    shifted = ShiftTargets()(packed)
    assert shifted["loss_mask"].tolist() == [[True, False, True, True, False]]
    assert shifted["segment_ids"].tolist() == [[1, 1, 2, 2, 2]]
    assert shifted["positions"].shape == (1, 5)


def test_real_tokenizers_are_taken_and_travel(tmp_path: Path):
    import io

    import sentencepiece
    import tokenizers

    texts = [f"the quick brown fox number {n} jumps over the lazy dog" for n in range(200)]
    hugging = tokenizers.Tokenizer(tokenizers.models.BPE())
    hugging.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    hugging.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(vocab_size=300))
    hugging.save(str(tmp_path / "tokenizer.json"))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=60, minloglevel=2
    )
    (tmp_path / "spiece.model").write_bytes(model.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    rows = {"text": np.array(texts[:5], object)}
    for given, expected in (
        (hugging, hugging.encode(texts[3]).ids),
        (tmp_path / "tokenizer.json", hugging.encode(texts[3]).ids),
        (pieces, pieces.encode(texts[3])),
        (tmp_path / "spiece.model", pieces.encode(texts[3])),
    ):
        operator = Tokenize(tokenizer=given)
        again = pickle.loads(pickle.dumps(operator.transform))
        assert again(rows)["tokens"][3].tolist() == expected
    other = tokenizers.Tokenizer(tokenizers.models.BPE())
    source = {"text": np.array(texts, object)}
    state = DataLoader(source, batch_size=4, operators=[Tokenize(tokenizer=hugging)]).get_state()
    DataLoader(source, batch_size=4, operators=[Tokenize(tokenizer=hugging)]).set_state(state)
    with pytest.raises(ValueError, match="operators: saved"):
        DataLoader(source, batch_size=4, operators=[Tokenize(tokenizer=other)]).set_state(state)
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match=r"bad\.json is neither a tokenizer\.json"):
        Tokenize(tokenizer=tmp_path / "bad.json")
    with pytest.raises(FileNotFoundError, match="no tokenizer file"):
        Tokenize(tokenizer="gone.model")
    with pytest.raises(TypeError, match="a tokenizer is None"):
        Tokenize(tokenizer=3)


def test_choice_gives_each_row_one_of_its_operators():
    rows = {"x": np.zeros((3000, 1), np.int64)}
    add = [Map(lambda r, n=n: {"x": r["x"] + n}) for n in (1, 2)]
    made = Choice([*add, None], [0.2, 0.5, 0.3], seed=0)(rows)["x"][:, 0]
    for value, share in ((1, 0.2), (2, 0.5), (0, 0.3)):
        assert np.mean(made == value) == pytest.approx(share, abs=0.03)
    with pytest.raises(ValueError, match="must look the same"):
        loader_of([Choice([CenterCrop("image", 3), None], seed=0)])
    with pytest.raises(ValueError, match="add up to 1"):
        Choice([None, None], [0.5, 0.6])
    with pytest.raises(ValueError, match="mixes rows"):
        Choice([MixUp(num_classes=3), None])
    with pytest.raises(ValueError, match=r"seed or rngs of its own.*around it"):
        Sequence([RandomFlip("x", seed=1)])
    with pytest.raises(ValueError, match="is a filter"):
        Sequence([Filter(bool)])
    with pytest.raises(ValueError, match="same on="):
        Sequence([RandomFlip("x", on="device"), RandomFlip("x")])


# What is refused


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        ([Select("image", "imge")], r"Select: there is no leaf 'imge': there are \['id', 'image'"),
        ([Cast("gone", np.int8)], "Cast: there is no leaf 'gone'"),
        ([Rename({"image": "label"})], "there is a leaf 'label' already"),
        ([CenterCrop("image", 20)], r"smaller than the crop \(20, 20\): resize"),
        ([CenterCrop("tokens", 2)], r"leaf 'tokens' is int32\[12\] where an image"),
        ([Resize("text", 2)], "where an image"),
        ([Normalize("text", 0, 1)], r"leaf 'text' is object\[\] where numbers"),
        ([Tokenize("image")], r"leaf 'image' is uint8\[8, 10, 3\], not a text"),
        ([PadTokens("text", 3)], "tokenise texts first"),
        ([Tokenize(into="ids"), ShiftTargets("ids")], r"needed: put PadTokens\('ids'"),
        ([DecodeImage("tokens")], "leaf 'tokens' is int32, not the bytes of an image"),
        ([Constant("valid_mask", 1)], "have a leaf called 'valid_mask'"),
        (
            [MixUp("image", "tokens", num_classes=4, seed=0)],
            r"leaf 'tokens' is \[12\] where a class number",
        ),
        (
            [RandomFlip("image", seed=1, on="device"), CenterCrop("image", 2)],
            "CenterCrop runs on the host and stands after RandomFlip",
        ),
    ],
)
def test_operators_that_do_not_fit_the_records_are_refused_at_once(
    operators: list[Any], message: str
):
    leaves = NUMBERS if operators[0].on == "device" else [*NUMBERS, "text"]
    with pytest.raises(ValueError, match=message):
        loader_of([Select(*leaves), *operators]).batch_spec()
    with pytest.raises(ValueError, match="leaf 'text' holds object values, which no device can"):
        loader_of([Select("text", "image"), RandomFlip("image", on="device")]).batch_spec()


def test_bad_arguments_are_refused():
    for make, message in (
        (lambda: DecodeImage(most_pixels=0), "most_pixels must be an int of at least 1, got 0"),
        (lambda: DecodeImage(channels=4), r"channels must be 1 \(grey\) or 3"),
        (lambda: DecodeImage(on="device"), "DecodeImage runs on host, got on='device'"),
        (lambda: MixUp(num_classes=3, on="host"), "MixUp runs on device"),
        (lambda: MixUp(num_classes=3, alpha=0), "alpha must be greater than 0"),
        (lambda: MixUp(num_classes=0), "num_classes must be a positive int"),
        (lambda: CenterCrop("x", (1, 2, 3)), "size must be a positive int or"),
        (lambda: Resize("x", True), "size must be a positive int or .* got True"),
        (lambda: RandomCrop("x", 3, padding=-1), "padding must be"),
        (lambda: RandomFlip("x", direction="up"), "direction must be one of"),  # pyright: ignore[reportArgumentType]
        (lambda: RandomFlip("x", probability=2), r"probability must lie in \[0, 1\]"),
        (lambda: Resize("x", 3, method="cube"), "method must be one of"),  # pyright: ignore[reportArgumentType]
        (lambda: Resize("x", 3, method={"y": "area"}), r"method names \['y'\]: the leaves are"),
        (lambda: RandomResizedCrop("x", 3, scale=(0.5, 1.1)), "scale must be two .* at most 1"),
        (lambda: RandomResizedCrop("x", 3, ratio=(2, 1)), "ratio must be two positive numbers, "),
        (lambda: RandomResizedCrop("x", 3, on="device"), "RandomResizedCrop runs on host"),
        (lambda: DecodeImage(least=0), "size must be a positive int or"),
        (lambda: DecodeImage(upright=1), "upright must be True or False"),  # pyright: ignore[reportArgumentType]
        (lambda: PadTokens("x", 0), "length must be an int of at least 1"),
        (lambda: Select(), "expected the name of a leaf"),
        (lambda: Cast("x"), "give Cast"),
        (lambda: Sequence([]), "no operators given"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    not_operators: list[tuple[Any, str]] = [
        ([RandomFlip], "an operator is an instance, got the class RandomFlip"),
        ([grain.transforms.Batch(3)], r"batch_size=\.\.\."),
        ([7], "an operator is an OperatorModule, a callable"),
        ([grain.MapDataset.range(3)], r"or an object with a method map\(element\)"),
        (RandomFlip("image"), "operators is a list"),
    ]
    for given, message in not_operators:
        with pytest.raises(TypeError, match=message):
            DataLoader(Records(), batch_size=4, operators=given)


def test_objects_with_the_methods_of_grains_transforms_do_what_those_do():
    for plain, theirs in ((PlainMap(5), GrainMap(5)), (PlainRandomMap(), GrainRandomMap())):
        ours, grains = (list(loader_of([one]).host_batches()) for one in (plain, theirs))
        for got, want in zip(ours, grains, strict=True):
            assert_same_batch(got, want, "a batch")
    state = loader_of([PlainMap(5)]).get_state()
    with pytest.raises(ValueError, match="operators"):
        loader_of([PlainMap(6)]).set_state(state)


def test_what_can_be_called_is_a_function_of_rows_whatever_else_it_has():
    (batch, *_) = loader_of([CallableWithMap(5)]).host_batches()
    assert not batch["tokens"].any()


@pytest.mark.parametrize("damage", ["cut off", "other bytes", "empty", "no bytes"])
def test_an_image_that_cannot_be_decoded_is_named_with_its_record(damage: str):
    source = Records()
    png = source.records[5]["png"]
    source.records[5]["png"] = {
        "cut off": png[: len(png) // 2],
        "other bytes": b"not an image at all",
        "empty": b"",
        "no bytes": "text",
    }[damage]
    loader = loader_of([DecodeImage("png"), CenterCrop("png", 4)], source=source)
    message = r"record 5 \(line 5 of the list\): DecodeImage: leaf 'png' is (no whole|a str)"
    with pytest.raises(ValueError, match=message):
        list(loader.host_batches())


def test_a_jpeg_that_is_cut_off_is_refused_wherever_it_ends():
    pixels = cv2.GaussianBlur(
        np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8), (5, 5), 2
    )
    jpeg = cv2.imencode(".jpg", pixels)[1].tobytes()
    decode = DecodeImage("x")
    assert decode({"x": np.array([jpeg], object)})["x"][0].shape == (40, 50, 3)
    for size in (len(jpeg) - 1, len(jpeg) - 100, 30):
        with pytest.raises(RowError, match="no whole JPEG or PNG"):
            decode({"x": np.array([jpeg[:size]], object)})


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize("shape", [(60_000, 50_000), (3, 65_000)])
def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(
    suffix: str, shape: tuple[int, int]
):
    data = bytearray(cv2.imencode(suffix, np.zeros((3, 5, 3), np.uint8))[1].tobytes())
    height, width = shape  # a forged header: to decode it would take gigabytes
    if suffix == ".png":
        data[16:24] = struct.pack(">II", width, height)
    else:
        frame = data.index(b"\xff\xc0")
        data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    rows = {"x": np.array([bytes(data)], object)}
    most = 100_000 if height == 3 else None
    words = (
        f"an image of {height} x {width} pixels.*{most or 10**8:,}.*most_pixels={height * width}"
    )
    with pytest.raises(RowError, match=words):
        DecodeImage("x", most_pixels=most)(rows)


def test_an_image_that_is_as_large_as_allowed_is_decoded():
    for suffix in (".jpg", ".png", ".bmp", ".webp", ".tiff", ".ppm"):
        data = cv2.imencode(suffix, np.zeros((3, 5, 3), np.uint8))[1].tobytes()
        rows = {"x": np.array([data], object)}
        assert DecodeImage("x", most_pixels=15)(rows)["x"][0].shape == (3, 5, 3)
        with pytest.raises(RowError, match="3 x 5 pixels, which is more than 14"):
            DecodeImage("x", most_pixels=14)(rows)


def test_colours_come_in_the_order_red_green_blue():
    red = np.zeros((4, 4, 3), np.uint8)
    red[..., 0] = 255
    data = cv2.imencode(".png", red[..., ::-1])[1].tobytes()
    assert np.array_equal(DecodeImage("x")({"x": np.array([data], object)})["x"][0], red)
    with pytest.raises(RowError, match=r"\(4, 4\) where size=\(5, 5\) was promised"):
        DecodeImage("x", size=(5, 5))({"x": np.array([data], object)})


def test_a_record_that_an_operator_cannot_take_is_named():
    source = Records()

    def picky(record: dict[str, Any]) -> dict[str, Any]:
        if record["id"] == 11:
            raise KeyError("colour")
        return record

    message = r"record 11 \(line 11 of the list\): Map: .*picky: KeyError: 'colour'"
    with pytest.raises(ValueError, match=message):
        list(loader_of([GrainFilter(), Map(picky)], source=source).host_batches())
    source.records[7]["tokens"] = np.arange(99, dtype=np.int32)
    with pytest.raises(
        ValueError, match=r"record 7 .*PadTokens: .*99 items.*put CropTokens\('tokens', 20\)"
    ):
        list(loader_of([PadTokens("tokens", 20)], source=source).host_batches())
    with pytest.raises(ValueError, match=r"record 7 .*leaf 'tokens' is int32\[99\] where records"):
        list(loader_of([Select("tokens")], source=source).host_batches())
    fine = loader_of([CropTokens("tokens", 3)], source=source)
    assert {b["tokens"].shape for b in fine.host_batches()} == {(4, 3)}
    source.records[7]["tokens"] = np.arange(12, dtype=np.float64)
    with pytest.raises(ValueError, match=r"leaf 'tokens' of record 7 \(line 7|record 7 \(line 7"):
        list(loader_of([Select("tokens")], source=source).host_batches())
    big = ArraySource({"x": np.array([1, 2, 300])})
    with pytest.raises(ValueError, match=r"record 2: Cast: leaf 'x' holds 300.*not fit int8"):
        list(DataLoader(big, batch_size=3, operators=[Cast("x", np.int8)]).host_batches())


def test_a_missing_package_is_named_with_the_extra_to_install(tmp_path: Path):
    program = (
        "import sys\n"
        "sys.modules['cv2'] = None\n"
        "sys.modules['sentencepiece'] = None\n"
        "from operators import DecodeImage, Tokenize\n"
        "for make in (DecodeImage, lambda: Tokenize(tokenizer='x.model')):\n"
        "    open('x.model', 'w').close()\n"
        "    try:\n"
        "        make()\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "DecodeImage needs the package cv2" in done.stdout
    assert "pip install 'gristmill[images]'" in done.stdout
    assert "pip install 'gristmill[text]'" in done.stdout


# Found in review


def test_an_operator_leaves_what_it_is_given_as_it_was():
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), np.uint8)

    class Cached:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            return {"image": images[index]}

        def gather(self, indices: np.ndarray) -> Any:
            return {"image": images}  # its own memory

        def record_spec(self) -> Any:
            return {"image": jax.ShapeDtypeStruct((4, 4, 3), np.dtype(np.uint8))}

    flip = RandomFlip("image", seed=1, probability=1.0)
    loader = DataLoader(Cached(), batch_size=6, operators=[flip])
    assert_same_batch(loader.host_batch_at(0), loader.host_batch_at(0), "asked for twice")
    twice_seen = MapBatch(lambda rows: {**rows, "other": rows["image"]})
    batch = DataLoader(images_of(images), batch_size=6, operators=[twice_seen, flip]).host_batch_at(
        0
    )
    assert np.array_equal(batch["other"], images)
    assert np.array_equal(batch["image"], images[:, :, ::-1])

    def in_place(record: dict[str, Any]) -> dict[str, Any]:
        record["t"] += 1
        return record

    records = [{"t": np.arange(n, dtype=np.int32)} for n in (3, 5, 4)]
    loader = DataLoader(
        records, batch_size=3, epochs=2, operators=[Map(in_place), PadTokens("t", 6)]
    )
    first, second = loader.host_batches()
    assert_same_batch(second, first, "the second epoch")
    assert records[1]["t"].tolist() == [0, 1, 2, 3, 4]


def images_of(images: np.ndarray) -> dict[str, np.ndarray]:
    return {"image": images}


def test_a_choice_of_unlike_results_is_refused_whatever_the_batch_size():
    def small(record: dict[str, Any]) -> dict[str, Any]:
        assert record["x"] > 0
        return {"v": np.uint8(7), "x": record["x"]}

    def large(record: dict[str, Any]) -> dict[str, Any]:
        assert record["x"] > 0
        return {"v": np.float32(0.75), "x": record["x"]}

    loader = DataLoader(
        {"x": np.arange(1, 9)}, batch_size=8, operators=[Choice([Map(small), Map(large)], seed=0)]
    )
    with pytest.raises(ValueError, match=r"leaf 'v' is .* in component 'Map \(1\)'"):
        next(loader.host_batches())

    def longer(record: dict[str, Any]) -> dict[str, Any]:
        return {"t": np.concatenate([record["t"], [1]])}

    records = [{"t": np.arange(n % 3 + 1)} for n in range(8)]
    rows = [
        rows_by_position(
            DataLoader(
                records,
                batch_size=size,
                operators=[Choice([Map(longer), None], seed=1), PadTokens("t", 8)],
            ).host_batches()
        )
        for size in (1, 2, 4, 8)
    ]
    for other in rows[1:]:
        for number, (got, want) in enumerate(zip(other, rows[0], strict=True)):
            assert_same_batch(got, want, f"row {number}")


def test_tokens_do_not_depend_on_the_other_texts_of_a_batch():
    import tokenizers

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 1, "b": 2, "?": 0}, "?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.enable_padding(pad_id=0)
    rows = {"text": np.array(["a b", "a b a b", "b"], object)}
    assert [t.tolist() for t in Tokenize(tokenizer=words)(rows)["tokens"]] == [
        [1, 2],
        [1, 2, 1, 2],
        [2],
    ]
    with pytest.raises(RowError, match="cannot tokenise"):
        Tokenize()({"text": np.array(["fine", "\ud800"], object)})


def test_names_may_be_paths_or_hold_a_slash():
    nested = {"x": {"tokens": np.array([[1, 2, 3], [4, 5, 6]])}, "a/b": np.array([1, 300])}
    padded = PadTokens("x/tokens", 5, mask="x/loss_mask")(nested)
    shifted = ShiftTargets("x/tokens", targets="x/targets", mask="x/loss_mask")(padded)
    assert shifted["x"]["loss_mask"].tolist() == [[True, True, False, False]] * 2
    assert Cast("a/b", np.int16)(nested)["a/b"].dtype == np.int16
    assert Rename({"a/b": "c"})(nested)["c"].tolist() == [1, 300]
    with pytest.raises(ValueError, match="there is a leaf 'x/tokens' already"):
        Rename({"a/b": "x/tokens"})(nested)


def test_a_cast_says_which_value_does_not_fit():
    for values, dtype in (
        (np.array([1.5, 300.7]), np.int8),
        (np.array([1.0, np.nan], np.float32), np.int32),
        (np.array([1, -2]), np.uint8),
        (np.array([1.0, 1e20]), np.int64),
    ):
        with pytest.raises(RowError, match="which does not fit"):
            Cast("a", dtype)({"a": values})
    assert Cast("a", np.int8)({"a": np.array([2.9, -2.9])})["a"].tolist() == [2, -2]
    with pytest.raises(ValueError, match="cast it on the host"):
        Cast("a", np.uint8, on="device")({"a": np.array([300])})


def test_a_loader_keeps_the_values_it_was_made_with():
    mean, constant = np.zeros((), np.float32), np.zeros(2)
    operators = [Normalize("x", mean, np.float32(1)), Constant("c", constant)]
    loader = DataLoader({"x": np.arange(4.0)}, batch_size=4, operators=operators)
    before = loader.host_batch_at(0)
    mean += 5
    constant[:] = 9
    assert_same_batch(loader.host_batch_at(0), before, "afterwards")
    normalize = Normalize("x")
    sequence = Sequence([normalize])
    normalize.set_statistics({"mean": 1.0, "std": 2.0})
    loader = DataLoader({"x": np.arange(4.0)}, batch_size=4, operators=[sequence])
    assert loader.host_batch_at(0)["x"].tolist() == [-0.5, 0.0, 0.5, 1.0]


def test_device_operators_work_behind_any_batcher():
    data = {"x": np.arange(24.0, dtype=np.float32)}
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    double = MapBatch(lambda rows: {"x": rows["x"] * 2}, on="device")
    loader = DataLoader(
        data,
        batch_size=4,
        operators=[double],
        batcher=DefaultBatcher(),
        remainder="drop",
        mesh=mesh,
    )
    assert next(loader)["x"].tolist() == [0, 2, 4, 6]

    class WithTotal(PadBatcher):
        def collate(self, rows: Any, valid: np.ndarray) -> Any:
            return {**super().collate(rows, valid), "total": rows["x"].sum()}

    batch = next(DataLoader(data, batch_size=4, operators=[double], batcher=WithTotal()))
    assert (batch["x"].tolist(), float(batch["total"])) == ([0, 2, 4, 6], 6.0)
    for wrong, message in (
        (lambda rows: (rows["x"],), "operator MapBatch returned a tuple"),
        (lambda rows: {"x": 3}, "operator MapBatch was given 4 rows; leaf 'x'"),
    ):
        with pytest.raises(ValueError, match=message):
            DataLoader(data, batch_size=4, operators=[MapBatch(wrong, on="device")]).batch_spec()


def test_the_shape_of_records_is_seen_from_one_that_passes_the_filter():
    def log(record: dict[str, Any]) -> dict[str, Any]:
        return {"y": math.log(record["x"])}

    operators = [Filter(lambda record: record["x"] > 0), Map(log)]
    loader = DataLoader({"x": np.arange(8.0)}, batch_size=4, operators=operators)
    assert loader.batch_spec()["y"].shape == (4,)
    with pytest.raises(ValueError, match=r"record 0, read to see its shape: Map: .*math domain"):
        DataLoader({"x": np.arange(8.0)}, batch_size=4, operators=[Map(log)]).batch_spec()


def test_an_operators_own_error_arrives_as_it_is():
    def fails(rows: Any) -> Any:
        raise RuntimeError("vocabulary file not found")

    records = [{"t": np.arange(n + 1)} for n in range(4)]
    output = {"t": jax.ShapeDtypeStruct((8,), np.dtype(np.int64))}
    operators = [MapBatch(fails, output_spec=output)]
    with pytest.raises(RuntimeError, match="vocabulary file not found"):
        next(DataLoader(records, batch_size=4, operators=operators).host_batches())


def test_keys_among_the_leaves_do_not_send_host_operators_to_jax():
    records = [{"k": jax.random.key(n), "x": np.int64(n)} for n in range(4)]

    def branch(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "x": record["x"] + 1 if record["x"] > 1 else record["x"]}

    operators = [
        Map(branch),
        Constant("c", np.int64(5)),
        MapBatch(lambda rows: {**rows, "j": jnp.ones(len(rows["x"]))}),
    ]
    batch = DataLoader(records, batch_size=4, operators=operators).host_batch_at(0)
    assert batch["x"].tolist() == [0, 1, 3, 4]
    assert batch["c"].dtype == np.int64
    assert isinstance(batch["j"], np.ndarray)


def test_mixup_shows_a_label_that_is_no_class_and_takes_either_precision():
    data = {"image": np.zeros((4, 2, 2, 1), np.float32), "label": np.array([0, 1, 7, 2], np.int32)}
    loader = DataLoader(data, batch_size=4, operators=[MixUp(num_classes=3, seed=0)])
    assert np.isnan(next(loader)["label"]).any()
    fine = {**data, "label": np.array([0, 1, 1, 2], np.int32)}
    narrow = next(DataLoader(fine, batch_size=4, operators=[MixUp(num_classes=3, seed=0)]))
    with jax.enable_x64(True):
        wide = next(DataLoader(fine, batch_size=4, operators=[MixUp(num_classes=3, seed=0)]))
    assert_same_batch(narrow, wide, "with x64")


def test_fit_sees_every_record_once_whatever_the_remainder():
    every: list[dict[str, Any]] = [
        {"remainder": "carry", "epochs": 2},
        {"remainder": "drop"},
        {"steps": 1},
    ]
    for settings in every:
        loader = DataLoader({"x": np.arange(3.0)}, batch_size=2, **settings)
        assert Normalize("x").fit(loader)["mean"] == 1.0
    empty = DataLoader({"x": np.arange(3.0)}, batch_size=2, operators=[Filter(lambda r: False)])
    with pytest.raises(ValueError, match="has no valid row"):
        Normalize("x").fit(empty)


def test_explain_shows_what_is_narrowed_before_device_operators():
    loader = DataLoader(
        {"image": np.zeros((4, 2, 2, 1), np.float32), "label": np.arange(4)},
        batch_size=2,
        operators=[RandomFlip("image", seed=0, on="device")],
    )
    assert "label: int64 -> int32" in loader.explain()


def test_a_copy_with_other_rngs_draws_by_them():
    data = {"image": np.random.default_rng(0).random((40, 2, 3, 1), np.float32)}
    loader = DataLoader(
        data, batch_size=40, operators=[RandomFlip("image")], rngs=nnx.Rngs(augment=0)
    )
    other = loader.copy(rngs=nnx.Rngs(augment=1))
    fresh = DataLoader(
        data, batch_size=40, operators=[RandomFlip("image")], rngs=nnx.Rngs(augment=1)
    )
    assert_same_batch(other.host_batch_at(0), fresh.host_batch_at(0), "with the other rngs")
    assert not np.array_equal(other.host_batch_at(0)["image"], loader.host_batch_at(0)["image"])
    with pytest.raises(ValueError, match="says stochastic=False: they must agree"):
        RandomFlip("image", seed=1).copy(config=StructuralConfig())
