"""The table of operators says how each of them is called."""

import inspect
import re
from pathlib import Path

import pytest

import operators

PAGE = (Path(__file__).parents[2] / "operators" / "README.md").read_text()
NAMES = [name for name in operators.__all__ if name != "ByteTokenizer"]


def signature(name: str) -> str:
    """As a person writes it: without types, and without the options that all operators take."""
    parameters = inspect.signature(getattr(operators, name).__init__).parameters.values()
    own = [p for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD]
    bare = inspect.Signature([p.replace(annotation=p.empty) for p in own])
    return f"{name}{bare}".replace("'", '"')


@pytest.mark.parametrize("name", NAMES)
def test_the_table_has_the_signature_of_every_operator(name: str):
    assert re.findall(rf"^\| `({name}\(.*?\))` \|", PAGE, re.M) == [signature(name)]
