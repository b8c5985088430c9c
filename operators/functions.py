"""Operators made of a function of yours.

A function is known to a saved state by its module and name, and by its `version` attribute if it
has one: change that when you change what the function does.
"""

from collections.abc import Callable
from typing import Any, Unpack

from loader.records.spec import Spec
from loader.transforms.functions import PerBatch, PerRecord
from loader.transforms.operator_module import OperatorModule, OperatorOptions


class Map(OperatorModule):
    """`fn(record) -> record`, one at a time; on the device, vectorised by `jax.vmap`.

    With `random=True` it is `fn(record, generator)`, with a `numpy.random.Generator` of the row's
    own. `output_spec`, the spec of a record afterwards, saves the reading of a record where `fn`
    does not work on zeros.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        random: bool = False,
        output_spec: Spec | None = None,
        **options: Unpack[OperatorOptions],
    ) -> None:
        super().__init__(PerRecord(fn, output_spec, bool(random)), **options)


class MapBatch(OperatorModule):
    """`fn(rows) -> rows`, all rows of a batch at once, with as many rows out as in."""

    def __init__(
        self,
        fn: Callable[[Any], Any],
        *,
        output_spec: Spec | None = None,
        **options: Unpack[OperatorOptions],
    ) -> None:
        super().__init__(PerBatch(fn, output_spec), **options)
