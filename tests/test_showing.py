"""What is printed of a loader and its stages, and how long the traceback of an error is."""

import sys
import traceback
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from loader import (
    ArraySource,
    BlockShuffle,
    DataLoader,
    DefaultBatcher,
    DevicePrefetcher,
    Filter,
    Filtered,
    Mapped,
    MeshSharder,
    Mixture,
    Packed,
    PadBatcher,
    RawArrays,
    Sequential,
    Shuffle,
    Source,
    Subset,
)
from loader.records.spec import leaf_spec
from operators import (
    Cast,
    Choice,
    Constant,
    DecodeImage,
    Map,
    Normalize,
    PadTokens,
    RandomCrop,
    RandomFlip,
    Sequence,
    Tokenize,
)
from tests.data import RECORD_SPEC, unlike_records

DATA = {"image": np.zeros((600, 2, 2), np.uint8), "label": np.arange(600, dtype=np.int32)}


def mesh(*sizes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(sizes, ("data", "model")[: len(sizes)])


def is_odd(record: Any) -> bool:
    return bool(record["id"] % 2)


def doubled(rows: Any) -> Any:
    return {**rows, "id": rows["id"] * 2}


def test_a_loader_says_what_it_reads_and_where_it_is():
    loader = DataLoader(DATA, batch_size=64, order=Shuffle(seed=0), epochs=20, mesh=mesh(8))
    start = "DataLoader(600 records of {image, label}, batches of 64, Shuffle(seed=0), "
    assert repr(loader) == start + "epoch 1 of 20, step 0 of 200, mesh data=8)"
    loader.seek(13)
    assert repr(loader) == start + "epoch 2 of 20, step 13 of 200, mesh data=8)"
    assert str(loader) == repr(loader)
    loader.seek(200)
    assert repr(loader) == start + "epoch 20 of 20, step 200 of 200, mesh data=8)"
    endless = DataLoader(DATA["label"], batch_size=64, epochs=None, mesh=mesh(4, 2))
    assert repr(endless) == (
        "DataLoader(600 records, batches of 64, Sequential(), epoch 1, step 0, mesh data=4 model=2)"
    )
    endless.seek(25)
    assert "epoch 3, step 25, mesh" in repr(endless)


def test_to_show_a_loader_reads_nothing_and_never_fails():
    class Unread:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("it was read")

    class Broken(Unread):
        def record_spec(self) -> Any:
            raise ValueError("not to be known")

    assert repr(DataLoader(Unread(), batch_size=2)).startswith("DataLoader(5 records, batches of 2")
    loader = DataLoader(Unread(), batch_size=2)
    loader.pipeline.source = Broken()
    assert repr(loader).startswith("DataLoader(5 records, batches of 2")


class Numbered(Source):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        return {"id": index}


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (lambda: Sequential(), "Sequential()"),
        (lambda: Shuffle(3), "Shuffle(seed=3)"),
        (lambda: Shuffle(3, match_grain=True), "Shuffle(seed=3, match_grain=True)"),
        (lambda: BlockShuffle(1, 4, 2), "BlockShuffle(seed=1, block_size=4, window=2)"),
        (lambda: PadBatcher(), "PadBatcher()"),
        (lambda: DefaultBatcher(collate_fn=is_odd), "DefaultBatcher(collate_fn=is_odd)"),
        (lambda: MeshSharder(mesh(4, 2)), "MeshSharder(mesh data=4 model=2)"),
        (
            lambda: MeshSharder(mesh(8), rules=[("image", P("data"))]),
            f"MeshSharder(mesh data=8, rules=[('image', {P('data')!r})])",
        ),
        (lambda: DevicePrefetcher(iter([])), "DevicePrefetcher(list_iterator)"),
        (lambda: Normalize("image", 1.0, 2.0), "Normalize('image', mean=1.0, std=2.0)"),
        (
            lambda: Normalize("image", np.zeros(9), 2.0, on="device"),
            "Normalize('image', mean=float64[9], std=2.0, on='device')",
        ),
        (
            lambda: RandomCrop("image", 32, seed=1),
            "RandomCrop('image', size=(32, 32), random=True, seed=1)",
        ),
        (lambda: DecodeImage("image"), "DecodeImage('image', channels=3)"),
        (
            lambda: PadTokens("tokens", 8),
            "PadTokens('tokens', length=8, value=0, mask='loss_mask')",
        ),
        (lambda: Cast("id", np.int64), "Cast({'id': 'int64'})"),
        (lambda: Constant("weight", 1.5), "Constant('weight', value=1.5)"),
        (lambda: Map(doubled), "Map(doubled)"),
        (lambda: Filter(is_odd), "Filter(is_odd)"),
        (
            lambda: Choice([RandomFlip("image"), None], [0.25, 0.75], seed=2),
            "Choice([RandomFlip('image', axis=2, probability=0.5), None], "
            "probabilities=[0.25, 0.75], seed=2)",
        ),
        (lambda: Sequence([Map(doubled)]), "Sequence([Map(doubled)])"),
        (lambda: ArraySource(DATA), "ArraySource(600 records of {image, label})"),
        (lambda: ArraySource(np.zeros(1)), "ArraySource(1 record)"),
        (
            lambda: Mapped({"text": ["a", "b"]}, [Tokenize()]),
            "Mapped(ArraySource(2 records of {text}), [Tokenize])",
        ),
        (
            lambda: Mapped([{"id": 3}] * 2, [doubled]),
            "Mapped(list(2 records), [tests.test_showing.doubled])",
        ),
        (lambda: Subset([{"id": 3}] * 2000, np.arange(9)), "Subset(9 of list(2,000 records))"),
        (
            lambda: Filtered([{"id": n} for n in range(40)], is_odd),
            "Filtered(20 of list(40 records), tests.test_showing.is_odd)",
        ),
        (
            lambda: Packed([{"tokens": np.arange(3)}] * 8, np.full(8, 3), 6),
            "Packed(list(8 records), 4 rows of 6)",
        ),
        (lambda: Subset(Numbered(), [1]), "Subset(1 of Numbered(9 records))"),
        (
            lambda: Mixture({"books": (DATA, 1), "web": (DATA, 3)}, 0),
            "Mixture(books 25.0%, web 75.0%: 1,200 records)",
        ),
        (lambda: RawArrays(RECORD_SPEC), "RawArrays(id: int32[], x: float32[3, 2])"),
        (lambda: leaf_spec((None, 3), np.float32), "RaggedSpec(float32[None, 3])"),
    ],
)
def test_a_stage_is_shown_on_one_line(stage: Any, words: str):
    assert repr(stage()) == words


def test_an_operator_of_a_function_is_shown_by_its_name():
    (operator,) = DataLoader(unlike_records(3), batch_size=2, operators=[doubled]).operators
    assert repr(operator).endswith("doubled")
    assert "(" not in repr(operator)


class Picky:
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise KeyError("colour")
        return {"x": np.float32(index)}


def frames(error: BaseException | None) -> list[str]:
    assert error is not None
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_an_error_of_a_users_code_shows_few_frames_of_ours():
    with pytest.raises(KeyError, match="colour") as caught:
        for _ in DataLoader(Picky(), batch_size=3):
            pass
    assert frames(caught.value)[1:] == ["__next__", "_deliver", "take", "__getitem__"]


def test_an_operator_that_fails_is_shown_once_and_not_also_on_zeros():
    def wrong(rows: Any) -> Any:
        return {"x": rows["y"]}

    # An interrupt in another test may have left an exception that this thread "handles" for ever.
    handled = sys.exception()
    with pytest.raises(KeyError, match="'y'") as caught:
        next(DataLoader(Picky(), batch_size=3, operators=[wrong]))
    assert caught.value.__context__ is handled
    assert frames(caught.value)[-1] == "wrong"


def test_an_error_of_ours_keeps_its_frames():
    class Short(Picky):
        def __getitems__(self, indices: list[int]) -> Any:
            return [{"x": np.float32(1)}] * (1 if len(indices) == 1 else 0)

    with pytest.raises(ValueError, match=r"__getitems__ was asked for 3 records") as caught:
        next(DataLoader(Short(), batch_size=3))
    assert "read_rows" in frames(caught.value)
