"""What a source is: the contract between where records come from and the loader."""

import operator
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from loader.records.showing import call, records_in_words


class Source:
    """Records that are found by their numbers. Derive from it, or write a class of the same form.

    Whatever has `__len__` and `__getitem__(int)`, which is Grain's protocol, is a source: it need
    not derive from this class. The attributes below are the defaults for those that do not say
    otherwise. A subclass has `__len__`, and `__getitem__` or `gather`.

    These methods are optional. A loader looks for them by name, and this class does not have them:

    - `gather(indices: int64 array) -> tree`: the rows at these indices, stacked leaf by leaf. This
      is the fastest way to read. Nobody may write into these arrays again, for JAX may keep them.
      Views are copied by the loader; it cannot see a buffer that is filled anew for each call.
    - `__getitems__(indices: list[int]) -> list`: several records. None is a record that was
      filtered out.
    - `read_rows(indices, *, ragged) -> (tree or None, mask or None)`, for a source made of other
      sources: as `loader.sources.reading.read_rows`.
    - `record_spec() -> tree of jax.ShapeDtypeStruct`: what a record looks like, known without
      reading one.
    - `fingerprint() -> dict` of a few values that tell these records from others. By default it is
      the length, the spec and a digest of some records.
    - `record_numbers(indices) -> dict`, for a source made of other sources: as
      `loader.sources.reading.record_numbers`.
    - `blocks() -> int64 array or None`: the first record of each file, chunk or row group that the
      records are stored in, ascending from 0. `BlockShuffle(seed)` shuffles those.
    - `stored_pieces(indices) -> list`, for a source of files: the pieces of them that a read of
      these records needs, as `loader.sources.reading.stored_pieces`. A cache fetches them ahead.
    - `stored_spans(indices) -> tuple or None`, where each record is some bytes of a file: as
      `loader.sources.reading.stored_spans`. With it, `gristmill plan` takes a fraction of the time.
    - `locate(record: int) -> str`: where a record comes from, in words, for messages.

    A source without `gather` and `__getitems__` is read record by record.
    """

    thread_safe: bool | Literal["in turns"] = False
    """Any thread may read at any time, beside others, under any settings of JAX and numpy, and a
    read may be broken off. Without it, the source is read by one thread at a time, whatever asks:
    a lock is held for each read. "in turns" says that it may be another thread each time, which
    `workers="auto"` must know. A subclass says this anew: it may have changed how records are
    read. For a class that is not yours there is `GrainSource(source, thread_safe=True)`."""

    made_of_sources: ClassVar[bool] = False
    """It reads other sources, by `loader.sources.reading`, which guards each of them. So it needs
    no guard itself."""

    owned_rows: bool = False
    """`gather` gives rows in memory made for that call. The loader then does not look whether they
    are views of something else."""

    varies_by_epoch: bool = False
    """A record is another one in each epoch. It is asked for as `epoch * len(source) + record`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.thread_safe = cls.__dict__.get("thread_safe", False)
        cls.made_of_sources = cls.__dict__.get("made_of_sources", False)

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no __len__: a source needs one")

    def __getitem__(self, index: int, /) -> Any:
        """One record: by default the only row of what `gather` gives."""
        gather = getattr(self, "gather", None)
        if gather is None:
            raise NotImplementedError(
                f"{type(self).__name__} has neither __getitem__ nor gather: a source needs one"
            )
        return jax.tree.map(lambda leaf: leaf[0], gather(np.array([operator.index(index)])))


def in_words(source: Any) -> str:
    """The source on one line: as it shows itself, if it is one of ours. A list shows all it has."""
    if isinstance(source, Source) and type(source).__repr__ is not object.__repr__:
        return repr(source)
    return call(type(source).__name__, [records_in_words(len(source))])
