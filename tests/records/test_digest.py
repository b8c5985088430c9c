"""Names for contents that depend on nothing but the contents."""

import collections
import enum
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from loader import Shuffle
from loader.records.digest import _structure, describe, qualified_name


class Point(NamedTuple):
    x: Any
    y: Any


@pytest.mark.parametrize(
    "tree",
    [
        3,
        None,
        {"b": 1, "a": [1, (2,), ()], "c": None},
        [],
        {},
        {"p": Point(1, [2])},
        {2: 1, 10: 3},
        [collections.OrderedDict(b=1, a=2)],
    ],
)
def test_the_structure_of_a_tree_is_written_as_jax_writes_it_today(tree: Any):
    assert f"PyTreeDef({_structure(tree)})" == str(jax.tree.structure(tree))


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def test_members_of_an_enumeration_differ():
    assert describe(Colour.RED) == describe(Colour.RED)
    assert describe(Colour.RED) != describe(Colour.BLUE)


class Optional:
    def __init__(self, **settings: Any) -> None:
        vars(self).update(settings)


def test_an_option_that_is_not_used_is_as_if_it_were_not_there():
    assert describe(Optional(by=2, more=None)) == describe(Optional(by=2))
    assert describe(Optional(by=2, more=False)) != describe(Optional(by=2))
    assert "match_grain" not in str(describe(Shuffle(1)))  # in a class of ours, False too
    assert "match_grain" in str(describe(Shuffle(1, match_grain=True)))


def test_names_are_public_ones():
    assert qualified_name(Shuffle) == "Shuffle"
    assert qualified_name(Shuffle(1)) == "Shuffle"
    assert qualified_name(jax.nn.relu) == "jax.relu"
    assert qualified_name(np.mean) == "numpy.mean"
    assert qualified_name(Point) == f"{__name__}.Point"


class Versioned:
    """What has a `version` that is not a plain value."""

    def version(self) -> int:
        return 1


def test_a_method_called_version_is_not_a_version():
    assert describe(Versioned()) == {"class": f"{__name__}.Versioned", "fields": {}}
