"""A data loader for JAX: batches that are a function of (data, configuration, step) alone."""

from loader.batchers import BatcherModule as BatcherModule
from loader.batchers import DefaultBatcher as DefaultBatcher
from loader.batchers import PadBatcher as PadBatcher
from loader.data_loader import DataLoader as DataLoader
from loader.data_loader import Epoch as Epoch
from loader.module import CheckpointableIteratorModule as CheckpointableIteratorModule
from loader.module import IterationCount as IterationCount
from loader.module import LoaderModule as LoaderModule
from loader.module import LoaderModuleConfig as LoaderModuleConfig
from loader.order import BlockShuffle as BlockShuffle
from loader.order import Order as Order
from loader.order import Sequential as Sequential
from loader.order import Shuffle as Shuffle
from loader.sources import ArrayRecordSource as ArrayRecordSource
from loader.sources import ArraySource as ArraySource
from loader.sources import GrainSource as GrainSource
from loader.sources import Msgpack as Msgpack
from loader.sources import RawArrays as RawArrays
from loader.sources import Source as Source
from loader.structural import StructuralConfig as StructuralConfig
from loader.structural import StructuralModule as StructuralModule
from loader.workers import Threads as Threads
