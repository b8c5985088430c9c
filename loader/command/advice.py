"""What the operators say of the first records: what is allowed, and seldom meant."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from loader.sources.reading import read_rows
from loader.transforms.bound_transform import apply_transforms
from loader.transforms.transform import advice_of, call

_RECORDS = 8


def advice_on(loader: Any) -> list[str]:
    """What is said of the first record of which something is said."""
    for position in range(min(_RECORDS, loader.plan.num_records)):
        with contextlib.suppress(Exception):  # of a bad record, which `on_error` may mask
            if said := _on_one(loader, position):
                return said
    return []


def _on_one(loader: Any, position: int) -> list[str]:
    """What the operators say of the record at this position, as each is given it."""
    said: list[str] = []
    positions = np.array([position])
    rows, _ = read_rows(
        loader.pipeline.source, loader.pipeline.records(position, position + 1), ragged=True
    )
    for place, operator in enumerate(loader.operators):
        stage = operator.bound(place, loader.rngs)
        draws = stage.draw(positions)
        said += [f"{stage.name}: {words}" for words in advice_of(stage.transform, rows, draws)]
        if operator.on == "host":
            rows, kept = apply_transforms([stage], rows, positions)
            if kept is not None and not kept.size:
                break
        else:
            rows, draws = jax.tree.map(jnp.asarray, (rows, draws))
            rows = call(stage.transform, rows, draws, jnp.ones(1, bool))
    return said
