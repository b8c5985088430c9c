"""A `DataLoader` as a data pipeline of Kauldron. Nothing of Kauldron is changed.

    cfg.train_ds = LoaderPipeline(loader=DataLoader(..., sharder=rows_over_all_devices()))

Tried with Kauldron at commit c9b3ec86316cdfcfadd3c79f9bce074ea6333c04 and jax 0.12.0.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Self

import jax
from etils import enp
from jax.sharding import PartitionSpec as P

from loader import (
    DataLoader,
    LoaderCheckpointHandler,
    LoaderRestore,
    LoaderSave,
    MeshSharder,
)

try:
    from kauldron.data import Pipeline  # pyright: ignore[reportMissingImports]
except ImportError:  # the tests of this file run without Kauldron
    Pipeline: Any = object


def rows_over_all_devices() -> MeshSharder:
    """Each process reads the rows that Kauldron's default, `FIRST_DIM`, puts on its devices."""
    from kauldron import kd  # pyright: ignore[reportMissingImports]

    mesh = kd.sharding.DEVICES_MESH
    return MeshSharder(mesh, rules=[(".*", P(mesh.axis_names))])


@dataclasses.dataclass(frozen=True, kw_only=True, eq=True)
class LoaderPipeline(Pipeline):
    """The host batches of a loader; Kauldron places them. Each `iter()` is a pass from step 0."""

    loader: DataLoader

    def __iter__(self) -> "LoaderIterator":
        return LoaderIterator(self, self.loader.clone())  # this loader itself never moves

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def element_spec(self) -> Any:
        spec = self.loader.host_batch_spec()  # nothing is read for it
        return jax.tree.map(lambda leaf: enp.ArraySpec(leaf.shape, leaf.dtype), spec)


class LoaderIterator:
    """A pass, which Kauldron saves with the model through its checkpoint protocol."""

    def __init__(self, source: Any, loader: DataLoader) -> None:
        self.source, self.loader = source, loader
        self._batches: Iterator[Any] = loader.host_batches()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def element_spec(self) -> Any:
        return self.source.element_spec

    def __kd_ocp_handlers__(self) -> LoaderCheckpointHandler:
        return LoaderCheckpointHandler()

    def __kd_ocp_save_args__(self) -> LoaderSave:
        return LoaderSave(self.loader)

    def __kd_ocp_restore_args__(self) -> LoaderRestore:
        return LoaderRestore(self.loader)

    def __kd_ocp_restore_post__(self, value: DataLoader) -> Self:
        return self  # `value` is self.loader, which was moved in place
