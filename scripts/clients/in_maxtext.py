"""A `DataLoader` as the input pipeline of MaxText. Two lines of MaxText are changed.

In `input_pipeline/input_pipeline_interface.py` the entry "grain" becomes

    "grain": (functools.partial(train_iterator, train_source),
              functools.partial(eval_iterator, eval_source)),

with its import. `dataset_type` stays "grain": by that name MaxText saves the place in the data.
Records have the leaves that MaxText trains on: `inputs`, `targets`, `inputs_segmentation`, and so
on. A row of zeros, which is padding, does not count in its loss: its segmentation is 0.

Tried with MaxText at commit e591f30cbbf217ed67ef71263ec0538239f9c3b8 and jax 0.12.0.
"""

import json
from collections.abc import Iterator
from typing import Any, Self

from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from loader import DataLoader, MeshSharder, Shuffle


def train_iterator(source: Any, config: Any, mesh: Mesh, process_indices: list[int]) -> Any:
    """What `make_grain_train_iterator` returns, over the records of `source`."""
    order = Shuffle(config.data_shuffle_seed) if config.enable_data_shuffling else None
    loader = DataLoader(
        source,
        batch_size=config.global_batch_size_to_load,
        order=order,
        epochs=config.num_epoch,
        remainder="carry",  # MaxText repeats first and batches after that
        sharder=rows_over_all_axes(mesh),
    )
    return placed_by_maxtext(loader, mesh)


def eval_iterator(source: Any, config: Any, mesh: Mesh, process_indices: list[int]) -> Any:
    """What `make_grain_eval_iterator` returns: every record once, in each evaluation."""
    size = config.global_batch_size_to_load_eval
    loader = DataLoader(source, batch_size=size, sharder=rows_over_all_axes(mesh))
    return placed_by_maxtext(loader, mesh)


def rows_over_all_axes(mesh: Mesh) -> MeshSharder:
    """Each process reads the rows that MaxText puts on its devices: split over every axis."""
    return MeshSharder(mesh, rules=[(".*", P(mesh.axis_names))])


def placed_by_maxtext(loader: DataLoader, mesh: Mesh) -> Any:
    from maxtext.input_pipeline import (  # pyright: ignore[reportMissingImports]
        multihost_dataloading,
    )

    return multihost_dataloading.MultiHostDataLoadIterator(HostPasses(loader), mesh)


class HostPasses:
    """Each `iter()` is a pass over the host batches from step 0."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader

    def __iter__(self) -> "HostPass":
        return HostPass(self.loader.clone())  # this loader itself never moves


class HostPass:
    """Host batches without `valid_mask`; its state is bytes, as that of a `grain.DataLoader` is."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self._batches: Iterator[Any] = loader.host_batches()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, Any]:
        return {name: leaf for name, leaf in next(self._batches).items() if name != "valid_mask"}

    def get_state(self) -> bytes:
        return json.dumps(self.loader.get_state()).encode()

    def set_state(self, state: bytes) -> None:
        self.loader.set_state(json.loads(state))
        self._batches = self.loader.host_batches()  # one that has ended would not go on
