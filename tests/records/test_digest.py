"""Names for contents that depend on nothing but the contents."""

import collections
import enum
import functools
import json
import os
import subprocess
import sys
import threading
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from loader import Shuffle
from loader.records.digest import _structure, describe, digest, qualified_name
from tests.records.unlike_values import KINDS, Hidden, digests


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


@pytest.mark.parametrize("kind", KINDS)
def test_unlike_values_have_unlike_digests_and_the_same_value_has_the_same(kind: str):
    make = KINDS[kind]
    assert digest(make(1)) == digest(make(1))
    assert digest(make(1)) != digest(make(2))


IN_ANOTHER_PROCESS = """
import json
from tests.records.unlike_values import digests
print(json.dumps(digests()))
"""


def test_a_digest_is_the_same_in_another_process():
    made = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS],
        env={**os.environ, "PYTHONHASHSEED": "17"},
        check=True,
        capture_output=True,
    )
    assert json.loads(made.stdout) == digests()


class Stateless:
    pass


class Named(Stateless):
    version = 3

    def __init__(self) -> None:
        self._lock = threading.Lock()


def test_an_object_without_state_is_its_class_and_one_with_a_version_that_too():
    assert describe(Stateless()) == {"class": f"{__name__}.Stateless", "fields": {}}
    assert describe(Named()) == {"class": f"{__name__}.Named", "version": 3, "fields": {}}


@pytest.mark.parametrize("value", [threading.Lock(), jax.devices()[0], (n for n in [1])])
def test_what_does_not_show_its_value_is_refused_with_its_path(value: Any):
    with pytest.raises(ValueError, match=r"x\['a'\]\[1\]\.more is a .* does not show its value"):
        describe({"a": [1, Optional(more=value)]}, "x")
    with pytest.raises(ValueError, match=r"x\.args\[0\]\.__self__\._by is a .* give its class a "):
        describe(functools.partial(print, Hidden(value).__init__), "x")
