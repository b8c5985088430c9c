"""Pipelines by name: tables of kinds, a `Case` of plain values, and the loader and oracle of it.

A new order, operator, batcher or place is one line in its table; a source is one in `sources.py`.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from loader import (
    BatcherModule,
    BlockShuffle,
    DataLoader,
    DefaultBatcher,
    Mask,
    MeshSharder,
    On,
    PadBatcher,
    Processes,
    Sequential,
    Shuffle,
    Threads,
)
from loader.runtime.workers.kinds import WorkerKind
from operators import (
    AddSpecialTokens,
    Albumentations,
    Cast,
    CenterCrop,
    Choice,
    ColorJitter,
    Constant,
    CropImage,
    CropTokens,
    CutMix,
    DecodeImage,
    Filter,
    GaussianBlur,
    Grayscale,
    Map,
    MapBatch,
    MaskTokens,
    MixUp,
    Normalize,
    OneHot,
    PadImage,
    PadTokens,
    RandAugment,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
    Rename,
    Resize,
    Select,
    ShiftTargets,
    SpanCorruption,
    Tokenize,
    TrivialAugment,
    TruncateTokens,
)
from operators import Sequence as InSequence
from tests.attack import oracle, plain_augment, plain_tokens
from tests.attack import plain_operators as plain
from tests.attack.oracle import Record, Rows, Run
from tests.attack.sources import FIRST_OPERATORS, SOURCES, oracle_epochs

Move = tuple[str, int]


@dataclasses.dataclass(frozen=True)
class Case:
    """A pipeline and what is done to it, in plain values: printed, it is a program."""

    seed: int = 0
    source: str = "arrays"
    count: int = 5
    order: str = "sequential"
    remainder: Any = "pad"
    epochs: int | None = 1
    steps: int | None = None
    batch_size: int = 2
    microbatches: int | None = None
    operators: tuple[str, ...] = ()
    batcher: str = "pad"
    place: str = "none"
    workers: str = "one"
    masks: bool = False  # bad records become masked rows
    prefetch: int = 2
    moves: tuple[Move, ...] = ()


@dataclasses.dataclass(frozen=True)
class Rotated:
    """An order of a user's: each epoch begins one record later."""

    def records(self, positions: np.ndarray, num_records: int) -> np.ndarray:
        return (positions + positions // num_records) % num_records


ORDERS: dict[str, Callable[[int], Any]] = {
    "sequential": lambda seed: Sequential(),
    "shuffle": Shuffle,
    "grain_shuffle": lambda seed: Shuffle(seed, match_grain=True),
    "blocks": lambda seed: BlockShuffle(seed, 1 + seed % 5, 1 + seed % 3),
    "own_blocks": lambda seed: BlockShuffle(seed, window=1 + seed % 3),
    "rotated": lambda seed: Rotated(),
}
REMAINDERS = ("pad", "drop", "carry")


def double(rows: Any) -> Any:
    return {**rows, "twice": rows["id"] * 2}


def halve(record: Any) -> Any:
    return {**record, "half": record["id"] // 2}


def add_noise(record: Any, generator: np.random.Generator) -> Any:
    return {**record, "noise": np.float32(generator.random())}


def keep(record: Any) -> bool:
    return bool(record["id"] % 3 != 1)


def refuse(rows: Any) -> Any:
    """Some records are bad: the whole batch fails."""
    if (rows["id"] % 5 == 2).any():
        raise LookupError("there is a bad record")
    return rows


@dataclasses.dataclass(frozen=True)
class OperatorKind:
    make: Callable[[int], Any]  # of a seed
    plain: Any  # on one record; on a batch if it mixes rows
    needs: str  # the leaf it works on
    on: str = "host"
    mixes: bool = False


def _crop_and_flip(seed: int) -> Any:
    return InSequence([RandomCrop("image", 3, padding=1), RandomFlip("image")], seed=seed)


def _in_colours(rows: Any) -> Any:
    grey = rows["image"]
    return {**rows, "image": np.concatenate([grey, 255 - grey, grey // 2], axis=-1)}


_in_colours.thread_safe = True  # pyright: ignore[reportFunctionMemberAccess]


def _grey(seed: int) -> Any:
    return InSequence([MapBatch(_in_colours), Grayscale("image", channels=1)])


def _augmented(operator: Any, seed: int) -> Any:
    """By `nearest`; of three pixels by three, none lies between two when it is turned."""
    window = CropImage("image", 0, 0, 3, 3)
    return InSequence([window, operator("image", method="nearest")], seed=seed)


def _albumentations(seed: int) -> Any:
    library = importlib.import_module("albumentations")
    return Albumentations(
        library.Compose([library.HorizontalFlip(), library.GaussNoise()]), seed=seed
    )


OPERATORS: dict[str, OperatorKind] = {
    "double": OperatorKind(lambda seed: MapBatch(double), plain.doubled, "id"),
    "halve": OperatorKind(lambda seed: Map(halve), plain.halved, "id"),
    "noise": OperatorKind(lambda seed: Map(add_noise, random=True, seed=seed), plain.noisy, "id"),
    "keep": OperatorKind(lambda seed: Filter(keep), plain.kept, "id"),
    "refuse": OperatorKind(lambda seed: MapBatch(refuse), plain.not_refused, "id"),
    "select": OperatorKind(lambda seed: Select("id"), plain.selected, "id"),
    "rename": OperatorKind(lambda seed: Rename({"id": "number"}), plain.renamed, "id"),
    "constant": OperatorKind(
        lambda seed: Constant("weight", np.float32(1.5)), plain.with_constant, ""
    ),
    "cast": OperatorKind(lambda seed: Cast("id", np.int64), plain.cast, "id"),
    "normalize": OperatorKind(lambda seed: Normalize("x", 3.5, 2.0), plain.normalized, "x"),
    "decode": OperatorKind(
        lambda seed: DecodeImage("image", channels=1, size=(4, 4)), plain.decoded, "file"
    ),
    "flip": OperatorKind(lambda seed: RandomFlip("image", seed=seed), plain.flipped, "image"),
    "choice": OperatorKind(
        lambda seed: Choice([RandomFlip("image"), None], seed=seed), plain.flipped_or_not, "image"
    ),
    "center": OperatorKind(lambda seed: CenterCrop("image", 3), plain.center, "image"),
    "crop": OperatorKind(
        lambda seed: RandomCrop("image", 3, padding=1, seed=seed), plain.cropped, "image"
    ),
    "resize": OperatorKind(
        lambda seed: Resize("image", (6, 5), method="nearest"), plain.resized, "image"
    ),
    "region": OperatorKind(
        lambda seed: RandomResizedCrop("image", 4, method="nearest", seed=seed),
        plain.region,
        "image",
    ),
    "jitter": OperatorKind(
        lambda seed: ColorJitter("image", brightness=0.5, contrast=0.5, seed=seed),
        plain.jittered,
        "image",
    ),
    "blur": OperatorKind(
        lambda seed: GaussianBlur("image", sigma=0.7, probability=0.5, seed=seed),
        plain.blurred,
        "image",
    ),
    "grey": OperatorKind(_grey, plain.greyed, "image"),
    "rand_augment": OperatorKind(
        functools.partial(_augmented, RandAugment), plain_augment.rand_augmented, "image"
    ),
    "trivial_augment": OperatorKind(
        functools.partial(_augmented, TrivialAugment), plain_augment.trivially_augmented, "image"
    ),
    "move": OperatorKind(
        lambda seed: RandomAffine("image", translate=(0.5, 0.4), fill=7, seed=seed),
        plain.moved,
        "image",
    ),
    "erase": OperatorKind(
        lambda seed: RandomErasing("image", scale=(0.1, 0.6), value=9, seed=seed),
        plain.erased,
        "image",
    ),
    "window": OperatorKind(lambda seed: CropImage("image", 0, 0, 3, 3), plain.window, "image"),
    "canvas": OperatorKind(
        lambda seed: PadImage("image", (6, 7), value=3, mask="real"), plain.on_canvas, "image"
    ),
    "one_hot": OperatorKind(lambda seed: OneHot("label", plain.CLASSES), plain.one_hot, "label"),
    "albumentations": OperatorKind(_albumentations, plain.albumented, "image"),
    "crop_and_flip": OperatorKind(_crop_and_flip, plain.cropped_and_flipped, "image"),
    "tokenize": OperatorKind(lambda seed: Tokenize(), plain.tokenized, "text"),
    "pad_tokens": OperatorKind(lambda seed: PadTokens("tokens", 24), plain.padded_tokens, "tokens"),
    "crop_tokens": OperatorKind(
        lambda seed: CropTokens("tokens", 4, random=True, seed=seed), plain.cropped_tokens, "tokens"
    ),
    "shift": OperatorKind(lambda seed: ShiftTargets(), plain.shifted, "tokens"),
    "truncate": OperatorKind(
        lambda seed: TruncateTokens("tokens", 3, side="left"), plain_tokens.truncated, "tokens"
    ),
    "add_tokens": OperatorKind(
        lambda seed: AddSpecialTokens(begin=plain_tokens.BEGIN, end=plain_tokens.END),
        plain_tokens.with_ends,
        "tokens",
    ),
    "mask_tokens": OperatorKind(
        lambda seed: MaskTokens(
            mask_token=plain_tokens.MASK,
            vocab_size=plain_tokens.VOCABULARY,
            special=plain_tokens.SPECIAL,
            probability=0.4,
            seed=seed,
        ),
        plain_tokens.masked,
        "tokens",
    ),
    "spans": OperatorKind(
        lambda seed: SpanCorruption(
            sentinels=plain_tokens.SENTINEL, length=30, noise_density=0.4, mean_span=2, seed=seed
        ),
        plain_tokens.spans_cut_out,
        "tokens",
    ),
    "double_there": OperatorKind(
        lambda seed: MapBatch(double, on="device"), plain.doubled, "id", "device"
    ),
    "normalize_there": OperatorKind(
        lambda seed: Normalize("x", 3.5, 2.0, on="device"), plain.normalized, "x", "device"
    ),
    "flip_there": OperatorKind(
        lambda seed: RandomFlip("image", seed=seed, on="device"), plain.flipped, "image", "device"
    ),
    "jitter_there": OperatorKind(
        lambda seed: ColorJitter("image", brightness=0.5, contrast=0.5, seed=seed, on="device"),
        plain.jittered,
        "image",
        "device",
    ),
    "cutmix": OperatorKind(
        lambda seed: CutMix(num_classes=plain.CLASSES, seed=seed),
        plain.cut_mixed,
        "label",
        "device",
        mixes=True,
    ),
    "mixup": OperatorKind(
        lambda seed: MixUp(num_classes=plain.CLASSES, seed=seed),
        plain.mixed_up,
        "label",
        "device",
        mixes=True,
    ),
}


class ByProcess(BatcherModule):
    """A batcher of a user's that has only `process`: rows at the front, zeros after them."""

    def process(self, elements: Any, *args: Any, batch_size: int, **options: Any) -> Any:
        records = list(elements)
        valid = np.arange(batch_size) < len(records)
        rows = jax.tree.map(lambda *leaves: np.stack(leaves), *records)
        yield PadBatcher().collate(rows, valid)


@dataclasses.dataclass(frozen=True)
class BatcherKind:
    make: Callable[[], BatcherModule]
    plain: Callable[[Sequence[Record | None], Record, int], Record]


BATCHERS: dict[str, BatcherKind] = {
    "pad": BatcherKind(PadBatcher, oracle.padded),
    "default": BatcherKind(DefaultBatcher, oracle.unpadded),
    "process": BatcherKind(ByProcess, oracle.compacted),
}


@functools.lru_cache(32)
def mesh_of(shape: tuple[int, ...], names: tuple[str, ...], auto: bool) -> jax.sharding.Mesh:
    kind = AxisType.Auto if auto else AxisType.Explicit
    return jax.make_mesh(
        shape, names, axis_types=(kind,) * len(names), devices=jax.devices()[: int(np.prod(shape))]
    )


@dataclasses.dataclass(frozen=True)
class PlaceKind:
    """`rows` is what splits the rows; `by` how many parts that makes."""

    mesh: Callable[[], jax.sharding.Mesh] | None = None
    rows: Any = None
    by: int = 1
    rules: tuple[tuple[str, P], ...] | None = None

    def settings(self) -> dict[str, Any]:
        if self.mesh is None:
            return {}
        if self.rules is None:
            return {"mesh": self.mesh()}
        return {"sharder": MeshSharder(self.mesh(), rules=self.rules)}

    def sharding(self, microbatches: int | None) -> NamedSharding | None:
        front = () if microbatches is None else (None,)
        return None if self.mesh is None else NamedSharding(self.mesh(), P(*front, self.rows))


PLACES: dict[str, PlaceKind] = {
    "none": PlaceKind(),
    "one": PlaceKind(lambda: mesh_of((1,), ("data",), False), "data"),
    "eight": PlaceKind(lambda: mesh_of((8,), ("data",), False), "data", 8),
    "four_two": PlaceKind(lambda: mesh_of((4, 2), ("data", "model"), True), "data", 4),
    "two_two_two": PlaceKind(
        lambda: mesh_of((2, 2, 2), ("data", "fsdp", "model"), False), ("data", "fsdp"), 4
    ),
    "all_alike": PlaceKind(
        lambda: mesh_of((2, 4), ("data", "model"), False), None, 1, ((".*", P()),)
    ),
    "by_rule": PlaceKind(
        lambda: mesh_of((2, 4), ("model", "data"), True), "data", 4, ((".*", P("data")),)
    ),
}


_EXECUTOR = ThreadPoolExecutor(3, "attack-executor")
WORKERS: dict[str, Callable[[], WorkerKind]] = {
    "none": lambda: Threads(0),
    "one": lambda: Threads(1),
    "two": lambda: Threads(2),
    "three": lambda: Threads(3),
    "executor": lambda: On(_EXECUTOR, ahead=3),
    "processes": lambda: Processes(1),
}
REMOTE = {"executor", "processes"}  # they have a copy of the source, and need prefetch


class Built:
    """The loaders of a case, and what its batches must be."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        given = SOURCES[case.source](case.count, folder, case.seed)
        self.source = given.source
        fresh = self.loader(prefetch=0, workers="one", place="none")
        self.length = fresh.plan.num_records
        self.run = Run(self.length, case.batch_size, case.epochs, case.remainder, case.steps)
        positions = np.arange(self.length * oracle_epochs(self.length))
        order = fresh.pipeline.order.records(positions, self.length).reshape(-1, self.length)
        oracle.check_order(order)
        kinds = [OPERATORS[name] for name in case.operators]
        draws = [_draws(place, op, positions) for place, op in enumerate(fresh.operators)]
        stages = list(zip(kinds, draws, strict=True))
        by_row = [(kind.plain, own) for kind, own in stages if not kind.mixes]
        on_host = sum(kind.on == "host" for kind in kinds)
        self.host_rows = Rows(given.record_at, order, by_row[:on_host])
        on_device = on_host < len(kinds)
        self.rows = Rows(given.record_at, order, by_row) if on_device else self.host_rows
        self.mixing = next((stage for stage in stages if stage[0].mixes), None)

    def loader(self, **changes: Any) -> DataLoader:
        """A loader of the case, with some settings changed."""
        case = dataclasses.replace(self.case, **changes)
        return DataLoader(
            self.source,
            batch_size=case.batch_size,
            order=ORDERS[case.order](case.seed),
            epochs=case.epochs,
            remainder=case.remainder,
            steps=case.steps,
            microbatches=case.microbatches,
            operators=[OPERATORS[name].make(case.seed) for name in case.operators],
            batcher=BATCHERS[case.batcher].make(),
            workers=WORKERS[case.workers](),
            on_error=Mask(most=10**6, log=None) if case.masks else "raise",
            prefetch=case.prefetch,
            **PLACES[case.place].settings(),
        )

    def in_reach(self, run: Run, step: int) -> bool:
        """Whether the tables reach so far."""
        return not run.ended(step) and run.span(step)[1] + run.batch_size <= self.rows.reach

    def batch(self, run: Run, step: int, *, placed: bool, parts: int | None) -> Record:
        """What the batch of a step must be."""
        start, stop = run.span(step)
        table = self.rows if placed else self.host_rows
        rows = [table[position] for position in range(start, stop)]
        batch = BATCHERS[self.case.batcher].plain(rows, table.like, run.batch_size)
        if placed:
            batch = {name: oracle.on_device(leaf) for name, leaf in batch.items()}
            if self.mixing is not None:
                kind, draws = self.mixing
                assert draws is not None, "what mixes rows draws"
                batch = kind.plain(batch, draws[start : start + run.batch_size])
        return oracle.in_parts(batch, parts)


def _draws(place: int, operator: Any, positions: np.ndarray) -> np.ndarray | None:
    """The random numbers of an operator at all positions."""
    bound = operator.bound(place)
    draws = bound.draw(positions)
    if draws is not None:
        parts = [bound.draw(part) for part in np.array_split(positions[::-1], 3)]
        oracle.check_draws(draws, np.concatenate(parts)[::-1])
    return draws


def first_operators(source: str) -> tuple[str, ...]:
    return FIRST_OPERATORS.get(source, ())
