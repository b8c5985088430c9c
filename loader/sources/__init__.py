"""Where records come from."""

from loader.sources.array_record import ArrayRecordSource as ArrayRecordSource
from loader.sources.array_record import Msgpack as Msgpack
from loader.sources.array_record import RawArrays as RawArrays
from loader.sources.arrays import ArraySource as ArraySource
from loader.sources.coerce import as_source as as_source
from loader.sources.files import FilesSource as FilesSource
from loader.sources.grain_source import GrainSource as GrainSource
from loader.sources.lengths import index_lengths as index_lengths
from loader.sources.mixture import Mixture as Mixture
from loader.sources.packed import Packed as Packed
from loader.sources.source import Source as Source
from loader.sources.tensorstore_source import TensorStoreSource as TensorStoreSource
from loader.sources.text_lines import TextLinesSource as TextLinesSource
from loader.sources.token_windows import TokenWindows as TokenWindows
