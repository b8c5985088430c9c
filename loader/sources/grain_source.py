"""Any `grain.MapDataset` or Grain random-access source, as a source of records."""

import sys
from typing import Any

import grain

from loader.records.digest import content_key, qualified_name
from loader.records.integers import Int64s
from loader.sources.reading import sampled_fingerprint, sampled_indices
from loader.sources.source import Source

# Stages of a `grain.MapDataset` in which element i is the same record in every epoch.
_KEEP_THEIR_ELEMENTS = (
    *("Source", "Range", "Map", "RandomMap", "MapWithIndex", "Filter", "Slice", "Repeat"),
    *("Concatenate", "_WithSeed"),
)
# Those that draw anew in each epoch, unless a `.repeat(reseed_each_epoch=False)` follows.
_RANDOM = ("Shuffle", "WindowShuffle", "RandomMap")
_FOR_STREAMS = "place the batches of a stream with DevicePrefetcher(batches, MeshSharder(mesh))"


class GrainSource(Source):
    """Wraps a `grain.MapDataset` or a random-access source.

    A `MapDataset` is asked for `dataset[epoch * length + record]`, so that its own `shuffle` and
    `random_map` are new in each epoch. An element that is None becomes a masked row.

    `varies_by_epoch=False` says of a `MapDataset` that its elements are the same in every epoch, as
    `Packed` and `Mapped` need it. Then it is asked for `dataset[record]` alone. Some elements of
    two epochs are compared at once, and a dataset in which they differ is refused.

    Several threads may read a `MapDataset` at once: Grain itself does that. Of another source,
    `thread_safe=True` says so.
    """

    def __init__(
        self, dataset: Any, *, thread_safe: bool = False, varies_by_epoch: bool | None = None
    ) -> None:
        is_map = isinstance(dataset, grain.MapDataset)
        if varies_by_epoch and not is_map:
            raise ValueError(
                f"only a grain.MapDataset can vary by epoch, and a {type(dataset).__name__} has "
                "the same records in each: leave out varies_by_epoch"
            )
        self.varies_by_epoch = is_map if varies_by_epoch is None else varies_by_epoch
        # A subclass may read in another way, and says it itself.
        own = type(self) is GrainSource and is_map
        self.thread_safe = thread_safe or own or type(self).thread_safe
        if isinstance(dataset, grain.IterDataset):
            raise ValueError(
                f"a grain.IterDataset ({type(dataset).__name__}) can only be read from its start: "
                f"give the grain.MapDataset it was made from, or {_FOR_STREAMS}"
            )
        if is_stream(dataset):
            raise TypeError(
                f"a source needs __len__ and __getitem__, and a {type(dataset).__name__} can only "
                f"be read from its start: give a data set of numbered records, or {_FOR_STREAMS}"
            )
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise TypeError(
                "a source needs __len__ and __getitem__ (a grain.MapDataset, a random-access "
                f"source, a dict of arrays), got {type(dataset).__name__}"
            )
        if is_map:
            _refuse_batched(dataset)
            if len(dataset) == sys.maxsize:
                raise ValueError(
                    "the dataset repeats without end: leave out .repeat() and give "
                    "DataLoader(..., epochs=None)"
                )
        self._dataset: Any = dataset
        if is_map and not self.varies_by_epoch:
            _refuse_varying(dataset)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if hasattr(self._dataset, "__getitems__"):  # a MapDataset has none
            return self._dataset.__getitems__(indices)
        return [self._dataset[index] for index in indices]

    def record_numbers(self, indices: Int64s) -> dict[str, Any]:
        """The numbers of elements; refused if they may be other ones in each epoch."""
        names = _stage_names(self._dataset)
        if others := [name for name in names if name not in _KEEP_THEIR_ELEMENTS]:
            raise ValueError(
                f"with_index has no meaning for a grain.MapDataset with {others[0]}: an element of "
                "it may be another record in each epoch. Leave it out: for a shuffle give "
                "DataLoader(..., order=Shuffle(seed, match_grain=True)), for a mixture Mixture"
            )
        return {"": indices % len(self)}

    def fingerprint(self) -> dict[str, Any]:
        names = [qualified_name(type(stage)) for stage in _stages(self._dataset)]
        kinds = [name for name in names if not name.startswith("grain._")]  # Grain renames those
        return {"kind": kinds, **sampled_fingerprint(self)}

    def __repr__(self) -> str:
        return f"GrainSource({type(self._dataset).__name__}, {len(self)} records)"


def is_stream(data: Any) -> bool:
    """Whether this can only be iterated over. torch's and Hugging Face's classes have that name."""
    if any(kind.__name__ == "IterableDataset" for kind in type(data).__mro__):
        return True
    return isinstance(data, grain.IterDataset) or (
        hasattr(data, "__iter__") and not hasattr(data, "__getitem__")
    )


def _stages(dataset: Any) -> list[Any]:
    """The dataset and all it was made from."""
    parents = dataset.parents if isinstance(dataset, grain.MapDataset) else ()
    return [dataset, *(stage for parent in parents for stage in _stages(parent))]


def _stage_names(dataset: Any) -> list[str]:
    stages = _stages(dataset) if isinstance(dataset, grain.MapDataset) else []
    return [type(stage).__name__.removesuffix("MapDataset") for stage in stages]


def _refuse_varying(dataset: grain.MapDataset) -> None:
    """Raise `ValueError` if this is seen to be another data set in the second epoch."""
    names = _stage_names(dataset)
    random = [name for name in names if name in _RANDOM]
    found = f"it has a {random[0]}" if random and "Repeat" not in names else None
    for index in [] if found else sampled_indices(len(dataset)):
        one, other = (content_key(dataset[at]) for at in (index, len(dataset) + index))
        if one != other:
            found = f"element {index} is another one in the second epoch"
            break
    if found:
        raise ValueError(
            f"varies_by_epoch=False was given, and {found}: leave out what is random, or let "
            ".repeat(1, reseed_each_epoch=False) follow it, which repeats the first epoch"
        )


def _refuse_batched(dataset: Any) -> None:
    batched = type(grain.MapDataset.range(1).batch(1))
    if any(isinstance(stage, batched) for stage in _stages(dataset)):
        raise ValueError(
            "the grain.MapDataset is already batched, so its elements are not records: leave out "
            ".batch(...) and give DataLoader(..., batch_size=...)"
        )
