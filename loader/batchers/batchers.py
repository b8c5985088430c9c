"""From records to batches of one static shape.

A batch is made by `collate(rows, valid)`: `rows` are the records that are there, stacked, in order;
`valid` is a mask over the rows of the batch that says where they stand. `process` makes batches of
an iterator of records and calls the same `collate`.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Literal

import jax
import numpy as np
from flax import nnx

from loader.modules.structural import StructuralConfig, StructuralModule
from loader.records.integers import checked_int
from loader.records.prng_keys import is_prng_key
from loader.records.spec import Spec, is_text, named_leaves, prepend, spec_of, with_mask
from loader.records.stacking import is_ragged, stack, to_one_shape, unstack, zero_rows


class BatcherModule(StructuralModule):
    """Base of all batchers. A subclass defines `collate`, or `process`, or both.

    One that changes the layout of a batch overrides `batch_spec` too; where it does not, a loader
    finds the spec by batching rows of zeros.
    """

    #: Whether `collate` fills rows that are not valid. One that does not needs remainder="drop".
    pads: ClassVar[bool] = True

    #: Whether any thread may make any batch, several at once. A subclass says so itself, or it is
    #: False: it may have added anything.
    thread_safe: ClassVar[bool] = False

    #: Which method makes a batch: the one that was defined last. Set for each subclass.
    made_by: ClassVar[Literal["collate", "process"]] = "collate"

    #: Whether `batch_spec` is as new as what makes a batch; else a trial shows the spec. Set for
    #: each subclass.
    states_spec: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        cls.thread_safe = own.get("thread_safe", False)
        if "collate" in own or "process" in own:
            cls.made_by = "collate" if "collate" in own else "process"
            cls.states_spec = "batch_spec" in own
        elif "batch_spec" in own:
            cls.states_spec = True

    def __init__(
        self,
        config: StructuralConfig | None = None,
        *,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(config or StructuralConfig(), rngs=rngs, name=name)

    def process(
        self,
        elements: Iterable[Any],
        *args: Any,
        batch_size: int,
        drop_remainder: bool = False,
        **kwargs: Any,
    ) -> Iterable[Any]:
        """Batches of `batch_size` records each; the last may be short or padded, or is dropped."""
        checked_int("batch_size", batch_size, 1)
        if args or kwargs:
            raise TypeError(
                f"{type(self).__name__}.process takes batch_size and drop_remainder, got also "
                f"{[*args, *kwargs]}"
            )
        return self._batches(iter(elements), batch_size, drop_remainder)

    def _batches(self, elements: Iterator[Any], size: int, drop_remainder: bool) -> Iterator[Any]:
        for first in itertools.count(0, size):
            records = list(itertools.islice(elements, size))
            if not records or (drop_remainder and len(records) < size):
                return
            self.count(applied=len(records), skipped=size - len(records))
            yield self._collate_records(records, first, np.arange(size) < len(records))

    def _collate_records(self, records: list[Any], first: int, valid: np.ndarray) -> Any:
        return self.collate(stack(records, range(first, first + len(records))), valid)

    def collate(self, rows: Any, valid: np.ndarray) -> Any:
        """A batch with a row for each entry of `valid`.

        `rows` hold only as many as are valid: at the end of an epoch, and where a filter has left
        gaps, they are fewer, and belong where `valid` is True. `PadBatcher.collate(rows, valid)`
        puts them there and fills the rest with zeros.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to collate")

    def batch_of(self, rows: Any, valid: np.ndarray) -> Any:
        """The batch of these rows, by `collate` or `process`, whichever makes batches here."""
        if self.made_by == "collate":
            return self.collate(rows, valid)
        batches = list(self.process(iter(unstack(rows)), batch_size=len(valid)))
        if len(batches) != 1:
            raise ValueError(
                f"{type(self).__name__}.process made {len(batches)} batches of "
                f"{len(jax.tree.leaves(rows)[0])} records with batch_size={len(valid)}: it must "
                "make one"
            )
        return batches[0]

    def batch_spec(self, element_spec: Spec, *, batch_size: int) -> Any:
        """The spec of a batch of records of `element_spec`: rows in front, and the mask."""
        checked_int("batch_size", batch_size, 1)
        mask = jax.ShapeDtypeStruct((batch_size,), np.dtype(bool))
        return with_mask(prepend(element_spec, batch_size), mask)


class PadBatcher(BatcherModule):
    """Fills missing rows with zeros and adds `valid_mask`. Bare records become the leaf `data`."""

    thread_safe: ClassVar[bool] = True

    def collate(self, rows: Any, valid: np.ndarray) -> dict[str, Any]:
        if len(jax.tree.leaves(rows)[0]) < len(valid):
            rows = jax.tree.map(lambda leaf: _spread(leaf, valid), rows)
        return with_mask(rows, valid.copy())


def _spread(leaf: Any, valid: np.ndarray) -> Any:
    """The rows of the leaf where `valid` is True, zeros (None for texts) elsewhere."""
    if is_prng_key(leaf):
        data = _spread(np.asarray(jax.random.key_data(leaf)), valid)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    shape = (len(valid), *leaf.shape[1:])
    full = np.full(shape, None) if leaf.dtype.hasobject else np.zeros(shape, leaf.dtype)
    full[valid] = leaf
    return full


class DefaultBatcher(BatcherModule):
    """Stacks records; never pads and adds no mask, so a last batch may be short.

    A loader, whose batches are all of one shape, takes it with `remainder="drop"` only.

    Texts become a list. `collate_fn`, if given, makes the batch from the list of its records.
    """

    pads: ClassVar[bool] = False

    def __init__(
        self,
        config: StructuralConfig | None = None,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(config, rngs=rngs, name=name)
        self.collate_fn = collate_fn

    def collate(self, rows: Any, valid: np.ndarray) -> Any:
        if self.collate_fn is not None:
            return self.collate_fn(unstack(rows))
        _refuse_ragged(rows)
        return jax.tree.map(lambda leaf: leaf.tolist() if is_text(leaf.dtype) else leaf, rows)

    def _collate_records(self, records: list[Any], first: int, valid: np.ndarray) -> Any:
        if self.collate_fn is not None:  # which may take records that cannot be stacked
            return self.collate_fn(records)
        return super()._collate_records(records, first, valid)

    def batch_spec(self, element_spec: Spec, *, batch_size: int) -> Any:
        checked_int("batch_size", batch_size, 1)
        if self.collate_fn is not None:
            return spec_of(self.collate(zero_rows(element_spec, batch_size), np.ones(batch_size)))
        text = jax.ShapeDtypeStruct((), np.dtype(object))  # a list of texts is as many texts
        return jax.tree.map(
            lambda s: [text] * batch_size if is_text(s.dtype) else prepend(s, batch_size),
            element_spec,
        )


def _refuse_ragged(rows: Any) -> None:
    for name, leaf in named_leaves(rows):
        if is_ragged(leaf):
            raise ValueError(
                f"the rows of leaf {name!r} may differ in shape, and DefaultBatcher makes one "
                f"array of them: {to_one_shape(name, leaf)}; or give PadBatcher(), for "
                "batches on the host"
            )
