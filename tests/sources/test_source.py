"""The contract of a source: what its base class says, and what is refused."""

from typing import Any

import numpy as np
import pytest

from loader import ArraySource, DataLoader, Mapped, Mixture, OperatorModule, Packed, Source
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


def test_only_the_class_can_say_that_it_is_thread_safe():
    source = Squares()
    source.thread_safe = True  # pyright: ignore[reportAttributeAccessIssue]
    assert not is_thread_safe(source)


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
