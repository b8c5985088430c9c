"""The contract of a source: what its base class says, and what is refused."""

from typing import Any

import grain
import numpy as np
import pytest

from loader import (
    ArraySource,
    DataLoader,
    GrainSource,
    Mapped,
    Mixture,
    OperatorModule,
    Packed,
    Source,
)
from loader.sources.reading import is_thread_safe, knows_spec, read_rows, varies_by_epoch
from operators import Choice

LENGTH = 7


class Squares(Source):
    """No more than what a subclass needs."""

    def __len__(self) -> int:
        return LENGTH

    def gather(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        return {"x": indices**2}


class Cubes:
    """A source that does not derive from the base class."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"x": index**3}


def test_a_source_with_gather_alone_also_gives_single_records():
    assert Squares()[3] == {"x": 9}
    with DataLoader(Squares(), batch_size=3) as loader:
        batches = [batch["x"].tolist() for batch in loader.host_batches()]
    assert batches == [[0, 1, 4], [9, 16, 25], [36, 0, 0]]


def test_whatever_has_a_length_and_items_is_a_source_with_the_same_defaults():
    for source in (Squares(), Cubes()):
        said = [is_thread_safe(source), knows_spec(source), varies_by_epoch(source)]
        assert said == [False, False, False]
    rows, there = read_rows(Cubes(), np.array([2, 5]))
    assert (rows["x"].tolist(), there) == ([8, 125], None)


def test_a_subclass_says_anew_that_it_is_thread_safe():
    class Counting(ArraySource):
        pass

    class Safe(Counting):
        thread_safe = True

    class Safer(Safe):
        thread_safe = True

    arrays = {"x": np.arange(4)}
    assert is_thread_safe(ArraySource(arrays))
    assert not is_thread_safe(Counting(arrays))
    assert is_thread_safe(Safe(arrays))
    assert is_thread_safe(Safer(arrays))
    assert Counting.owned_rows


def test_an_object_can_say_that_it_is_thread_safe_but_not_for_another():
    class Around:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    source = Squares()
    assert not is_thread_safe(source)
    source.thread_safe = True
    assert is_thread_safe(source)
    assert Around(source).thread_safe
    assert not is_thread_safe(Around(source))
    assert is_thread_safe(GrainSource(Squares(), thread_safe=True))
    assert not is_thread_safe(GrainSource(Squares()))
    assert is_thread_safe(GrainSource(grain.MapDataset.range(9)))


def test_a_subclass_of_a_grain_source_says_it_anew():
    class Counting(GrainSource):
        pass

    assert not is_thread_safe(Counting(grain.MapDataset.range(9)))
    assert is_thread_safe(Counting(grain.MapDataset.range(9), thread_safe=True))


@pytest.mark.parametrize("several", [False, True])
def test_a_source_that_fills_one_buffer_again_and_again_gives_each_record(several: bool):
    class Refilled:
        """As a reader that decodes into memory it keeps; two buffers, in turns."""

        def __init__(self) -> None:
            self.buffers = [np.zeros(3, np.int64), np.zeros(3, np.int64)]

        def __len__(self) -> int:
            return 7

        def __getitem__(self, index: int) -> Any:
            buffer = self.buffers[index % 2]
            buffer[:] = [index, 10 * index, 100 * index]
            return {"x": buffer[:], "n": np.int64(index)}

    if several:

        def getitems(self: Any, indices: list[int]) -> list[Any]:
            return [None if index == 3 else self[index] for index in indices]

        Refilled.__getitems__ = getitems  # pyright: ignore[reportAttributeAccessIssue]
    loader = DataLoader(Refilled(), batch_size=10, prefetch=0, epochs=2, remainder="carry")
    rows = np.concatenate([b["x"][b["valid_mask"]] for b in loader.host_batches()])
    there = [n for n in range(7) if not several or n != 3]
    assert rows.tolist() == [[n, 10 * n, 100 * n] for n in [*there, *there]]


def test_a_source_without_any_way_to_read_says_so():
    class Nothing(Source):
        def __len__(self) -> int:
            return 3

    with pytest.raises(NotImplementedError, match="Nothing has neither __getitem__ nor gather"):
        Nothing()[0]
    with pytest.raises(NotImplementedError, match="Source has no __len__"):
        len(Source())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("by_anyone", "thread_safe"),
        ("fresh_rows", "owned_rows"),
        ("by_epoch", "varies_by_epoch"),
    ],
)
@pytest.mark.parametrize("on_class", [True, False])
def test_an_attribute_of_an_old_name_is_refused_with_the_new_one(
    old: str, new: str, on_class: bool
):
    def renamed(base: type, *arguments: Any) -> Any:
        made = type("Aged", (base,), {old: True} if on_class else {})(*arguments)
        if not on_class:
            setattr(made, old, True)
        return made

    message = f"Aged has an attribute '{old}', which is now called '{new}': rename it"
    for base in (Squares, Cubes):
        with pytest.raises(TypeError, match=message):
            DataLoader(renamed(base), batch_size=2)
        with pytest.raises(TypeError, match=message):
            Mapped(renamed(base), [])
        with pytest.raises(TypeError, match=message):
            Packed(renamed(base), [1] * LENGTH, 4)
        with pytest.raises(TypeError, match=message):
            Mixture({"a": (renamed(base), 1)})

    class Plus:
        def __call__(self, rows: Any) -> Any:
            return {"x": rows["x"] + 1}

    for operator in (renamed(Plus), OperatorModule(renamed(Plus))):
        with pytest.raises(TypeError, match=message):
            DataLoader(Squares(), batch_size=2, operators=[operator])
        with pytest.raises(TypeError, match=message):
            Choice([operator, None])


def test_a_method_of_an_old_name_is_none_of_our_business():
    class ByEpoch(Squares):
        def by_epoch(self) -> list[int]:
            return [1]

    with DataLoader(ByEpoch(), batch_size=LENGTH) as loader:
        assert [batch["x"][2] for batch in loader.host_batches()] == [4]


def test_the_length_counts_whatever_a_source_says_of_itself():
    class Named(Source):
        def __init__(self, count: int) -> None:
            self.count = count

        def __len__(self) -> int:
            return self.count

        def gather(self, indices: np.ndarray) -> Any:
            return {"n": indices}

        def fingerprint(self) -> dict[str, Any]:
            return {"name": "mine"}

    state = DataLoader(Named(20), batch_size=4).get_state()
    with pytest.raises(ValueError, match=r"data\.length: saved"):
        DataLoader(Named(30), batch_size=4).set_state(state)
    DataLoader(Named(20), batch_size=4).set_state(state)
