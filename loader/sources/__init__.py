"""Where records come from: the source contract, a file or folder for each kind of data.

Also sources made of other sources: `Mapped`, `Packed`, `Mixture`, `Subset`, `Filtered`. It imports
from `records/`, `modules/`, `order/` and `transforms/`, never from `runtime/`.
"""

from typing import TYPE_CHECKING, Any

from loader.sources.array_record.array_record import ArrayRecordSource as ArrayRecordSource
from loader.sources.array_record.parsers import Msgpack as Msgpack
from loader.sources.array_record.parsers import RawArrays as RawArrays
from loader.sources.arrays import ArraySource as ArraySource
from loader.sources.as_source import as_source as as_source
from loader.sources.files import FilesSource as FilesSource
from loader.sources.filtered import Filtered as Filtered
from loader.sources.grain_source import GrainSource as GrainSource
from loader.sources.hugging_face.hugging_face import HuggingFaceSource as HuggingFaceSource
from loader.sources.image_folder import ImageFolderSource as ImageFolderSource
from loader.sources.mixture.mixture import Mixture as Mixture
from loader.sources.packing.lengths import index_lengths as index_lengths
from loader.sources.packing.packed import Packed as Packed
from loader.sources.parquet.parquet_source import ParquetSource as ParquetSource
from loader.sources.source import Source as Source
from loader.sources.subset import Subset as Subset
from loader.sources.tar.tar_source import TarSource as TarSource
from loader.sources.text_lines.json_lines import JSONLinesSource as JSONLinesSource
from loader.sources.text_lines.text_lines import TextLinesSource as TextLinesSource
from loader.sources.tfrecord.example import TFExample as TFExample
from loader.sources.tfrecord.tfrecord_source import TFRecordSource as TFRecordSource
from loader.sources.token_windows import TokenWindows as TokenWindows

if TYPE_CHECKING:
    from loader.sources.tensorstore.tensorstore_source import TensorStoreSource as TensorStoreSource


def __getattr__(name: str) -> Any:
    if name == "TensorStoreSource":  # tensorstore is heavy: imported when it is asked for
        from loader.sources.tensorstore.tensorstore_source import TensorStoreSource

        return TensorStoreSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
