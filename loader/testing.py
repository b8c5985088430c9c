"""Checks that any loader, source, operator or batcher can be put through.

They raise `AssertionError` with the step at which a promise was broken, and read no clock.
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from loader.data_loader import DataLoader
from loader.records.digest import differing_leaves, leaf_keys
from loader.records.prng_keys import is_prng_key
from loader.records.spec import VALID_MASK
from loader.sources import as_source
from loader.sources.reading import locate, read_rows

STATE_BYTES_AT_MOST = 1024
_RECORDS_NAMED = 10


def assert_same_batch(got: Any, expected: Any, what: str) -> None:
    """Both trees have the same leaves, bit for bit."""
    assert jax.tree.structure(got) == jax.tree.structure(expected), f"{what}: other tree"
    for index, pair in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)):
        a, b = (_as_numpy(leaf) for leaf in pair)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), (
            f"{what}: leaf {index} is {a.dtype}{a.shape}"
        )
        assert a.tobytes() == b.tobytes() if a.dtype != object else a.tolist() == b.tolist(), (
            f"{what}: leaf {index} differs"
        )


def assert_resumes_exactly(make_loader: Callable[[], DataLoader]) -> None:
    """A loader restored before any of its batches goes on with exactly the batches that follow.

    `make_loader` makes a fresh loader of a finite run each time. Every state goes through JSON, is
    given back unchanged by the loader that takes it, and keeps its shape from first to last.
    """
    with make_loader() as whole:
        states, batches = [whole.get_state()], []
        for batch in whole.host_batches():
            batches.append(batch)
            states.append(whole.get_state())
    assert batches, "the loader gave no batch"
    for step, state in enumerate(states):
        text = json.dumps(state)
        assert len(text) <= STATE_BYTES_AT_MOST, f"the state of step {step} has {len(text)} bytes"
        assert _shape(state) == _shape(states[0]), f"the state of step {step} has another shape"
        with make_loader() as resumed:
            resumed.set_state(json.loads(text))
            assert resumed.get_state() == state, f"restored at step {step}, it says otherwise"
            tail = list(resumed.host_batches())
        assert len(tail) == len(batches) - step, (
            f"restored at step {step}, {len(tail)} batches follow, not {len(batches) - step}"
        )
        for offset, batch in enumerate(tail):
            what = f"batch {step + offset}, restored at step {step}"
            assert_same_batch(batch, batches[step + offset], what)


def assert_covers_each_record_once(
    loader: DataLoader, leaf: str, expected: np.ndarray | None = None
) -> None:
    """In each epoch of a finite run, the valid rows are each record once.

    `leaf` is the top-level leaf that tells records apart and `expected` its values in any order
    (0 to n - 1 if not given). Under `drop`, none comes twice and fewer than a batch are missing.
    """
    loader.reset()
    plan = loader.plan
    expected = np.arange(plan.num_records) if expected is None else np.asarray(expected)
    seen: dict[int, list[Any]] = {}
    for step, batch in enumerate(loader.host_batches()):
        rows = np.asarray(batch[leaf]).ravel()
        if VALID_MASK in batch:
            rows = rows[np.asarray(batch[VALID_MASK]).ravel()]
        start, stop = plan.span(step)
        assert len(rows) == stop - start, f"batch {step} has {len(rows)} valid rows"
        for position, value in zip(range(start, stop), rows.tolist(), strict=True):
            seen.setdefault(position // plan.num_records, []).append(value)
    assert len(seen) == plan.epochs, f"{len(seen)} epochs were seen"
    missing_at_most = plan.batch_size - 1 if plan.remainder == "drop" else 0
    for epoch, values in seen.items():
        assert len(set(values)) == len(values), f"epoch {epoch} has a record twice"
        assert set(values) <= set(expected.tolist()), f"epoch {epoch} has an unknown record"
        missing = len(expected) - len(values)
        assert missing <= missing_at_most, f"epoch {epoch} lacks {missing} records"


def assert_reads_the_same_twice(source: Any, most: int = 1000) -> None:
    """Records are the same when they are read again, later and in another order.

    So they are where no function writes into a record that the source keeps, and none draws random
    numbers of its own. At most `most` records are read, evenly spread.
    """
    source = as_source(source)
    records = np.unique(np.linspace(0, len(source) - 1, min(len(source), most)).astype(np.int64))
    before = [_leaf_keys(source, record) for record in records]
    wrong = []
    for record, keys in zip(records[::-1], before[::-1], strict=True):
        if leaves := differing_leaves(keys, _leaf_keys(source, record)):
            names = ", ".join(map(repr, leaves))
            wrong.append(f"record {locate(source, int(record))}: leaf {names}")
    assert not wrong, (
        f"{len(wrong)} of {len(records)} records are others when they are read again:\n"
        + "\n".join(wrong[: -_RECORDS_NAMED - 1 : -1])
    )


def _leaf_keys(source: Any, record: np.int64) -> dict[str, str]:
    return leaf_keys(read_rows(source, np.array([record]), ragged=True)[0])


def _as_numpy(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if is_prng_key(leaf) else leaf)


def _shape(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _shape(value) for key, value in state.items()}
    return [_shape(item) for item in state] if isinstance(state, list) else type(state)
