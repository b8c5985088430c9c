"""A data loader for JAX: batches that are a function of (data, configuration, step) alone.

All names that people use are here. Those that need a heavy package import it when they are asked
for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from loader.batchers import BatcherModule as BatcherModule
from loader.batchers import DefaultBatcher as DefaultBatcher
from loader.batchers import PadBatcher as PadBatcher
from loader.data_loader import DataLoader as DataLoader
from loader.modules.iterator import CheckpointableIteratorModule as CheckpointableIteratorModule
from loader.modules.module import IterationCount as IterationCount
from loader.modules.module import LoaderModule as LoaderModule
from loader.modules.module import LoaderModuleConfig as LoaderModuleConfig
from loader.modules.structural import StructuralConfig as StructuralConfig
from loader.modules.structural import StructuralModule as StructuralModule
from loader.order.orders import BlockShuffle as BlockShuffle
from loader.order.orders import Order as Order
from loader.order.orders import Sequential as Sequential
from loader.order.orders import Shuffle as Shuffle
from loader.partition import PartitionAxis as PartitionAxis
from loader.partition import PartitionManager as PartitionManager
from loader.records.errors import RowError as RowError
from loader.runtime.device_prefetcher import DevicePrefetcher as DevicePrefetcher
from loader.runtime.epochs import Epoch as Epoch
from loader.runtime.workers.threads import Threads as Threads
from loader.sharding.mesh_sharder import MeshSharder as MeshSharder
from loader.sharding.sharder_module import AxisName as AxisName
from loader.sharding.sharder_module import LogicalAxisSpec as LogicalAxisSpec
from loader.sharding.sharder_module import SharderModule as SharderModule
from loader.sharding.sharder_module import SharderModuleConfig as SharderModuleConfig
from loader.sharding.sharder_module import ShardingRules as ShardingRules
from loader.sources import ArrayRecordSource as ArrayRecordSource
from loader.sources import ArraySource as ArraySource
from loader.sources import FilesSource as FilesSource
from loader.sources import GrainSource as GrainSource
from loader.sources import Mixture as Mixture
from loader.sources import Msgpack as Msgpack
from loader.sources import Packed as Packed
from loader.sources import RawArrays as RawArrays
from loader.sources import Source as Source
from loader.sources import TextLinesSource as TextLinesSource
from loader.sources import TokenWindows as TokenWindows
from loader.sources import index_lengths as index_lengths
from loader.sources.mapped import Mapped as Mapped
from loader.transforms.operator_module import Filter as Filter
from loader.transforms.operator_module import OperatorModule as OperatorModule

if TYPE_CHECKING:
    from loader.sources.tensorstore.tensorstore_source import TensorStoreSource
    from loader.state.orbax import LoaderCheckpointHandler, LoaderRestore, LoaderSave

__all__ = [
    "ArrayRecordSource",
    "ArraySource",
    "AxisName",
    "BatcherModule",
    "BlockShuffle",
    "CheckpointableIteratorModule",
    "DataLoader",
    "DefaultBatcher",
    "DevicePrefetcher",
    "Epoch",
    "FilesSource",
    "Filter",
    "GrainSource",
    "IterationCount",
    "LoaderCheckpointHandler",
    "LoaderModule",
    "LoaderModuleConfig",
    "LoaderRestore",
    "LoaderSave",
    "LogicalAxisSpec",
    "Mapped",
    "MeshSharder",
    "Mixture",
    "Msgpack",
    "OperatorModule",
    "Order",
    "Packed",
    "PadBatcher",
    "PartitionAxis",
    "PartitionManager",
    "RawArrays",
    "RowError",
    "Sequential",
    "SharderModule",
    "SharderModuleConfig",
    "ShardingRules",
    "Shuffle",
    "Source",
    "StructuralConfig",
    "StructuralModule",
    "TensorStoreSource",
    "TextLinesSource",
    "Threads",
    "TokenWindows",
    "index_lengths",
]

_IMPORTED_WHEN_ASKED_FOR = {
    "LoaderCheckpointHandler": "loader.state.orbax",
    "LoaderRestore": "loader.state.orbax",
    "LoaderSave": "loader.state.orbax",
    "TensorStoreSource": "loader.sources.tensorstore.tensorstore_source",
}
_OLD_NAMES = {
    "PackBatcher": "use Packed: DataLoader(Packed(source, index_lengths(source), row_length), ...)",
}


def __getattr__(name: str) -> Any:
    if name in _IMPORTED_WHEN_ASKED_FOR:
        found = getattr(importlib.import_module(_IMPORTED_WHEN_ASKED_FOR[name]), name)
        globals()[name] = found  # the next time it is found without this function
        return found
    if name in _OLD_NAMES:
        # Of an AttributeError, `from loader import` would drop the message.
        raise ImportError(f"{name} is gone: {_OLD_NAMES[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
