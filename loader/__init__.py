"""A data loader for JAX: batches that are a function of (data, configuration, step) alone.

All names that people use are here. Those that need a heavy package import it when they are asked
for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from loader.batchers import BatcherModule, DefaultBatcher, PadBatcher
from loader.data_loader import DataLoader
from loader.modules.iterator import CheckpointableIteratorModule
from loader.modules.module import IterationCount, LoaderModule, LoaderModuleConfig
from loader.modules.structural import StructuralConfig, StructuralModule
from loader.order.block_shuffle import BlockShuffle
from loader.order.orders import Order, Sequential, Shuffle
from loader.partition import PartitionAxis, PartitionManager
from loader.records.errors import RowError
from loader.records.masked_mean import masked_mean
from loader.records.version import __version__ as __version__
from loader.runtime.bad_records import Mask
from loader.runtime.device_prefetcher import DevicePrefetcher
from loader.runtime.epochs import Epoch
from loader.runtime.workers.kinds import WorkerLost
from loader.runtime.workers.on import On
from loader.runtime.workers.processes.kind import Processes
from loader.runtime.workers.threads import Threads
from loader.sharding.mesh_sharder import MeshSharder
from loader.sharding.sharder_module import (
    AxisName,
    LogicalAxisSpec,
    SharderModule,
    SharderModuleConfig,
    ShardingRules,
)
from loader.sources import (
    ArrayRecordSource,
    ArraySource,
    FilesSource,
    Filtered,
    GrainSource,
    HuggingFaceSource,
    ImageFolderSource,
    JSONLinesSource,
    Mixture,
    Msgpack,
    Packed,
    ParquetSource,
    RawArrays,
    Source,
    Subset,
    TarSource,
    TextLinesSource,
    TFExample,
    TFRecordSource,
    TokenWindows,
    index_lengths,
)
from loader.sources.mapped import Mapped
from loader.sources.storage.cache.disk_cache import DiskCache
from loader.state.agreement import join_job
from loader.transforms.operator_module import Filter, OperatorModule

if TYPE_CHECKING:
    from loader.runtime.workers.ray.kind import Ray
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
    "DiskCache",
    "Epoch",
    "FilesSource",
    "Filter",
    "Filtered",
    "GrainSource",
    "HuggingFaceSource",
    "ImageFolderSource",
    "IterationCount",
    "JSONLinesSource",
    "LoaderCheckpointHandler",
    "LoaderModule",
    "LoaderModuleConfig",
    "LoaderRestore",
    "LoaderSave",
    "LogicalAxisSpec",
    "Mapped",
    "Mask",
    "MeshSharder",
    "Mixture",
    "Msgpack",
    "On",
    "OperatorModule",
    "Order",
    "Packed",
    "PadBatcher",
    "ParquetSource",
    "PartitionAxis",
    "PartitionManager",
    "Processes",
    "RawArrays",
    "Ray",
    "RowError",
    "Sequential",
    "SharderModule",
    "SharderModuleConfig",
    "ShardingRules",
    "Shuffle",
    "Source",
    "StructuralConfig",
    "StructuralModule",
    "Subset",
    "TFExample",
    "TFRecordSource",
    "TarSource",
    "TensorStoreSource",
    "TextLinesSource",
    "Threads",
    "TokenWindows",
    "WorkerLost",
    "index_lengths",
    "join_job",
    "masked_mean",
]

_IMPORTED_WHEN_ASKED_FOR = {
    "LoaderCheckpointHandler": "loader.state.orbax",
    "LoaderRestore": "loader.state.orbax",
    "LoaderSave": "loader.state.orbax",
    "Ray": "loader.runtime.workers.ray.kind",
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
