"""Loaders of every kind, whose state documents are kept in `fixtures/`.

A document that a release has written must restore in every later one. So these files are not
written anew when a test fails: the failure says that the state of every user would be refused.
Where that is meant (a new kind of source, or a new `STATE_VERSION`):

    python -m tests.state.kept_documents          # writes those that are missing
    python -m tests.state.kept_documents --all    # writes all of them
"""

import functools
import importlib
import json
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import grain
import numpy as np
import tensorstore as ts

from loader import (
    ArrayRecordSource,
    BlockShuffle,
    DataLoader,
    DefaultBatcher,
    DevicePrefetcher,
    FilesSource,
    Filtered,
    HuggingFaceSource,
    ImageFolderSource,
    JSONLinesSource,
    Mapped,
    Mask,
    Mixture,
    Msgpack,
    Packed,
    PadBatcher,
    ParquetSource,
    RawArrays,
    Sequential,
    Shuffle,
    Subset,
    TarSource,
    TensorStoreSource,
    TextLinesSource,
    TFExample,
    TFRecordSource,
    TokenWindows,
)
from loader.records.digest import content_key
from operators import (
    AddSpecialTokens,
    Albumentations,
    ByteTokenizer,
    Cast,
    CenterCrop,
    ChatTemplate,
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
    Sequence,
    ShiftTargets,
    SpanCorruption,
    Tokenize,
    TrivialAugment,
    TruncateTokens,
)
from tests.data import RECORD_SPEC, unlike_records, write_array_record, write_raw_records
from tests.sources.formats.plain_tar import pack

FOLDER = Path(__file__).parent / "fixtures"
FORMATS = Path(__file__).parents[1] / "sources" / "formats" / "files"
STEP = 3
IMAGES = np.arange(12 * 8 * 8 * 3).reshape(12, 8, 8, 3) % 251
PICTURES = {"image": IMAGES.astype(np.uint8), "label": np.arange(12, dtype=np.int32) % 5}
DOCUMENTS = [np.arange(n, n + 1 + n % 5, dtype=np.int32) for n in range(20)]
LENGTHS = [len(document) for document in DOCUMENTS]


class Kept(NamedTuple):
    """A loader of which a document is kept, and one that must refuse it, in this field."""

    make: Callable[[Path], DataLoader]
    other: Callable[[Path], DataLoader]
    field: str


def make(source: Any = None, **settings: Any) -> DataLoader:
    source = unlike_records(23) if source is None else source
    return DataLoader(source, **{"batch_size": 4, "epochs": 2, **settings})


def on(source: Any = None, **kept: Any) -> Callable[..., Kept]:
    """`on(source, setting=a)(field, setting=b)`: kept with a, refused with b."""
    return lambda field, **other: Kept(
        lambda folder: make(source, **kept), lambda folder: make(source, **other), field
    )


def of(source: Callable[..., Any], field: str, *changed: Any, **settings: Any) -> Kept:
    """A source made in a folder, and the same with something changed."""
    return Kept(
        lambda folder: make(source(folder), **settings),
        lambda folder: make(source(folder, *changed), **settings),
        field,
    )


# Functions and classes of a user


def first_half(records: list[Any]) -> Any:
    return {"id": np.stack([record["id"] for record in records])}


def doubled(rows: Any) -> Any:
    return {**rows, "twice": rows["id"] * 2}


def noisy(record: Any, generator: np.random.Generator) -> Any:
    return {**record, "noise": np.float32(generator.random())}


def is_odd(record: Any) -> bool:
    return bool(record["id"] % 2)


class Halved(grain.transforms.Map):
    def map(self, element: Any) -> Any:
        return {**element, "half": element["id"] // 2}


class Texts:
    """A source that has no more than the least."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return {"text": "line " + "x" * index}


class Tokens(Texts):
    def __getitem__(self, index: int) -> Any:
        return {"tokens": DOCUMENTS[index]}


class Chats(Texts):
    def __getitem__(self, index: int) -> Any:
        said = [("user", "why " + "x" * index), ("assistant", f"because {index}")]
        return {"messages": json.dumps([{"role": role, "content": text} for role, text in said])}


# Sources in a folder


def records(folder: Path, counts: tuple[int, ...] = (9, 14)) -> ArrayRecordSource:
    return ArrayRecordSource(write_raw_records(folder, list(counts)), RawArrays(RECORD_SPEC))


def packed_maps(folder: Path, more: int = 0) -> ArrayRecordSource:
    blobs = [Msgpack().encode({"id": np.int32(n + more), "w": n / 4}) for n in range(13)]
    return ArrayRecordSource(write_array_record(folder / "maps.array_record", blobs), Msgpack())


def lines(folder: Path, last: str = "the end") -> TextLinesSource:
    path = folder / "lines.txt"
    path.write_text("\n".join([f"line {n} " + "y" * n for n in range(15)] + [last]))
    return TextLinesSource(path, index=folder / "index")


def json_lines(folder: Path, dtype: str = "int32") -> JSONLinesSource:
    path = folder / "lines.jsonl"
    texts = [{"text": "z" * n, "id": n, "w": [n / 4, 1]} for n in range(17)]
    path.write_text("".join(json.dumps(line) + "\n" for line in texts))
    return JSONLinesSource(path, {"text": str, "id": dtype, "w": "float32"})


def windows(folder: Path, stride: int = 3) -> TokenWindows:
    np.save(folder / "tokens.npy", np.arange(100, dtype=np.uint16) ** 2 % 251)
    return TokenWindows(folder / "tokens.npy", 5, stride)


def zarr(folder: Path, more: int = 0) -> TensorStoreSource:
    paths = {}
    for name, array in unlike_records(17).items():
        paths[name] = str(folder / f"{name}.zarr")
        store = {"driver": "file", "path": paths[name]}
        ts.open(
            {"driver": "zarr3", "kvstore": store},
            create=True,
            dtype=array.dtype,
            shape=array.shape,
        ).result().write(array + more).result()
    return TensorStoreSource(paths)


def files(folder: Path, shift: int = 0) -> FilesSource:
    for number, image in enumerate(IMAGES.astype(np.uint8)):
        (folder / f"{number:02}.png").write_bytes(_png(image + np.uint8(shift)))
    return FilesSource(str(folder / "*.png"), leaf="image", text=False)


def image_folder(folder: Path, last: str = "dog") -> ImageFolderSource:
    for number, image in enumerate(IMAGES.astype(np.uint8)):
        path = folder / ("cat" if number < 5 else last) / f"{number:02}.PNG"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(_png(image))
    return ImageFolderSource(folder)


def _png(image: np.ndarray) -> bytes:
    """The image as a PNG file, not compressed: the same bytes with every library."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    height, width, _ = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row.tobytes() for row in image), 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def parquet(folder: Path, age: int = -1) -> ParquetSource:
    return ParquetSource(FORMATS / "people.parquet", ["id", "age"], nulls={"age": age})


def tfrecord(folder: Path, rare: int = -7) -> TFRecordSource:
    parse = TFExample({"id": "int64", "image": bytes, "rare": "int32"}, {"rare": rare})
    return TFRecordSource(FORMATS / "*.tfrecord", parse)


def tar(folder: Path, last: int = 22) -> TarSource:
    numbers = [*range(22), last]
    return TarSource(pack(folder / "a.tar", {f"{n}.cls": b"%d" % n for n in numbers}))


def hugging_face(folder: Path, last: int = 22) -> HuggingFaceSource:
    numbers = [*range(22), last]
    texts = [f"text {n}" for n in numbers]
    return HuggingFaceSource(datasets.Dataset.from_dict({"id": numbers, "text": texts}))


def grain_dataset(folder: Path, seed: int = 5) -> grain.MapDataset:
    rows = [{"id": np.int32(n)} for n in range(19)]
    return grain.MapDataset.source(rows).seed(seed).shuffle().map(doubled)


def mixture(folder: Path, weight: float = 3) -> Mixture:
    parts = {name: {"id": np.arange(n) + n} for name, n in (("web", 30), ("books", 7))}
    return Mixture({"web": (parts["web"], weight), "books": (parts["books"], 1)}, seed=2)


def reweighted(folder: Path) -> DataLoader:
    """A run whose weights were changed after two batches."""
    before, after = make(mixture(folder, 5)), make(mixture(folder))
    before.seek(2)
    after.set_state(before.get_state(), allow_changes={"data.shares"})
    return after


def packed(folder: Path, seed: int = 4) -> Packed:
    return Packed(Tokens(), LENGTHS, 8, seed, pad_value=-1)


def cut(positions: Any = "row", **how: Any) -> Callable[..., Packed]:
    """Rows that cut records; the change is how positions are counted."""
    other: Any = {"row": "record", "record": "row"}[positions]
    return lambda folder, changed=False: Packed(
        Tokens(), LENGTHS, 2, positions=other if changed else positions, **how
    )


def few_segments(folder: Path, most: int = 2) -> Packed:
    return Packed(Tokens(), LENGTHS, 8, most_segments=most)


def subset(folder: Path, first: int = 3) -> Subset:
    return Subset(PICTURES, [first, 0, 11, 7, 9, 5])


def at_most(limit: int, record: Any) -> bool:
    return record["label"] <= limit


def filtered(folder: Path, limit: int = 3) -> Filtered:
    return Filtered(PICTURES, functools.partial(at_most, limit))


def mapped(folder: Path, bos: bool = True) -> Mapped:
    return Mapped(Texts(), [Tokenize(tokenizer=ByteTokenizer(bos=bos))])


# All of them


def images(padding: int = 1) -> list[Any]:
    crop = RandomCrop("image", 6, padding=padding, seed=1)
    flip = RandomFlip("image", direction="vertical", probability=0.25, seed=2)
    return [crop, flip, Resize("image", 5), CenterCrop("image", 4), Normalize("image", 3.5, 2.0)]


def regions(scale: float = 0.2) -> list[Any]:
    decode = DecodeImage(least=(4, 4), upright=True)  # of PNG files, of which it asks for nothing
    return [decode, RandomResizedCrop("image", 5, scale=(scale, 0.9), seed=1)]


def warps(degrees: float = 20.0) -> list[Any]:
    settings: Any = {"translate": (0.1, 0.2), "scale": (0.5, 2), "shear": 5, "fill": (1, 2, 3)}
    # By "nearest": of what "linear" gives, another processor may round a value differently.
    affine = RandomAffine("image", degrees=degrees, method="nearest", seed=1, **settings)
    canvas = PadImage("image", (9, 10), value=4, where="corner", mask="real")
    erase = RandomErasing("image", scale=(0.1, 0.5), ratio=(0.5, 2), value="random", seed=2)
    window = CropImage("image", 1, 2, 7, 6)
    return [affine, canvas, erase, window, OneHot("label", 5, smoothing=0.1)]


def colours(brightness: float = 0.4) -> list[Any]:
    jitter = ColorJitter("image", brightness=brightness, saturation=0.4, probability=0.8, seed=1)
    grey, blur = Grayscale("image", probability=0.2, seed=1), GaussianBlur("image", seed=1)
    augment = RandAugment("image", method="nearest", seed=1)
    return [jitter, grey, blur, augment, TrivialAugment("image", method="nearest", seed=1)]


def albumented(chance: float = 0.5) -> list[Any]:
    library = importlib.import_module("albumentations")
    steps = [library.RandomCrop(6, 6), library.D4(p=chance), library.GaussNoise()]
    return [Albumentations(library.Compose(steps), seed=1)]


def composed(chance: float = 0.5) -> list[Any]:
    choice = Choice([RandomFlip("image"), None], [chance, 1 - chance])
    return [Sequence([RandomCrop("image", 6), choice, Cast("image", np.float32)], seed=3)]


def texts(length: int = 12) -> list[Any]:
    crop = CropTokens("tokens", length, random=True, seed=4)
    return [Tokenize(), crop, PadTokens("tokens", 16), ShiftTargets()]


def hidden(probability: float = 0.3) -> list[Any]:
    ends = AddSpecialTokens(begin=260, end=[261, 262])
    some: Any = {"mask_token": 259, "vocab_size": 300, "special": range(260, 263), "ignore": -1}
    mask = MaskTokens(**some, probability=probability, seed=1)
    return [
        Tokenize(),
        TruncateTokens("tokens", 12, side="left"),
        ends,
        PadTokens("tokens", 16),
        mask,
    ]


def spans(density: float = 0.4) -> list[Any]:
    how: Any = {"noise_density": density, "mean_span": 2.5, "end": 1}
    return [Tokenize(), SpanCorruption(sentinels=400, length=25, **how, seed=1)]


def chats(answers: str = "assistant") -> list[Any]:
    template = {"user": "U:{content}\n", "assistant": "A:{content|trim}!\n"}
    chat = ChatTemplate(template=template, begin="^", answers=answers)
    return [chat, PadTokens(["tokens", "loss_mask"], 64)]


def fields(value: float = 1.5) -> list[Any]:
    rename = Rename({"x": "pixels/x"})
    return [Select("id", "x"), rename, Constant("weight", value), Cast({"id": np.int64})]


def functions(seed: int = 6) -> list[Any]:
    return [
        doubled,
        Halved(),
        Filter(is_odd),
        MapBatch(doubled),
        Map(noisy, random=True, seed=seed),
    ]


def stream() -> DevicePrefetcher[Any]:
    """A stream, whose document is one of a process: it is kept in a folder of its own."""
    records = grain.MapDataset.range(33).map(lambda n: {"id": n * n}).to_iter_dataset()
    return DevicePrefetcher(iter(records.batch(4)))


KEPT: dict[str, Kept] = {
    "order-sequential": on(order=Sequential())("order", order=Shuffle(7)),
    "order-shuffle": on(order=Shuffle(7))("order.seed", order=Shuffle(8)),
    "order-match-grain": on(order=Shuffle(7, match_grain=True))("order", order=Shuffle(7)),
    "order-blocks": on(order=BlockShuffle(7, 4, 2))("order", order=BlockShuffle(7, 4, 3)),
    "order-own-blocks": Kept(
        lambda folder: make(records(folder, (3, 9, 1, 7)), order=BlockShuffle(7, window=2)),
        lambda folder: make(records(folder, (3, 9, 1, 7)), order=BlockShuffle(7, window=3)),
        "order",
    ),
    "batcher-pad": on(batcher=PadBatcher(), remainder="drop")(
        "batcher", batcher=DefaultBatcher(), remainder="drop"
    ),
    "batcher-default": on(batcher=DefaultBatcher(collate_fn=first_half), remainder="drop")(
        "batcher", batcher=DefaultBatcher(), remainder="drop"
    ),
    "on-error-mask": on(on_error=Mask(log=None))("on_error", on_error="raise"),
    "source-arrays": of(lambda folder, count=23: unlike_records(count), "data.length", 24),
    "source-array-record": of(records, "data.length", (9, 13)),
    "source-msgpack": of(packed_maps, "data.sample", 1),
    "source-lines": of(lines, "data.files", "the very end"),
    "source-json-lines": of(json_lines, "data.leaves", "int64"),
    "source-windows": of(windows, "data.stride", 4),
    "source-zarr": of(zarr, "data.sample", 1),
    "source-files": of(files, "data.sample", 1, operators=[DecodeImage(size=(8, 8))]),
    "source-image-folder": of(
        image_folder, "data.classes", "elk", operators=[DecodeImage(size=(8, 8))]
    ),
    "source-parquet": of(parquet, "data.nulls", -2),
    "source-tfrecord": of(tfrecord, "data.parse", -8, operators=[Select("id", "rare")]),
    "source-tar": of(tar, "data.sample", 23),
    "source-hugging-face": of(hugging_face, "data.sample", 23, operators=[Select("id")]),
    "source-grain": of(grain_dataset, "data.sample", 6),
    "source-of-a-user": on(Texts())("operators", operators=[Tokenize(), PadTokens("tokens", 25)]),
    "source-mixture": of(mixture, "data.shares", 4),
    "source-mixture-weights": of(mixture, "data.shares", 4),
    "source-mixture-changed": Kept(
        reweighted, lambda folder: make(mixture(folder, 4)), "data.shares"
    ),
    "source-packed": of(packed, "data.pack", 5),
    # Written when positions always went on over the pieces of a record.
    "source-packed-split": of(cut("record", long="split"), "data.pack.positions", True),
    "source-packed-split-rows": of(cut(long="split"), "data.pack.positions", True),
    "source-packed-concat": of(cut(mode="concat"), "data.pack.positions", True),
    "source-packed-segments": of(few_segments, "data.pack", 3),
    "source-subset": of(subset, "data.subset", 4),
    "source-filtered": of(filtered, "data.filtered", 2),
    "source-mapped": of(mapped, "data.mapped", False, operators=[PadTokens("tokens", 32)]),
    "operators-images": on(PICTURES, operators=images())("operators", operators=images(2)),
    "operators-regions": Kept(
        lambda folder: make(files(folder), operators=regions()),
        lambda folder: make(files(folder), operators=regions(0.3)),
        "operators",
    ),
    "operators-colours": on(PICTURES, operators=colours())("operators", operators=colours(0.3)),
    "operators-albumentations": Kept(
        lambda folder: make(PICTURES, operators=albumented()),
        lambda folder: make(PICTURES, operators=albumented(0.3)),
        "operators",
    ),
    "operators-composed": on(PICTURES, operators=composed())("operators", operators=composed(0.3)),
    "operators-mixup": on(PICTURES, operators=[MixUp(num_classes=5, seed=1)])(
        "operators", operators=[MixUp(num_classes=5, seed=1, alpha=0.3)]
    ),
    "operators-warps": on(PICTURES, operators=warps())("operators", operators=warps(21.0)),
    "operators-cutmix": on(PICTURES, operators=[CutMix(num_classes=5, seed=1)])(
        "operators", operators=[CutMix(num_classes=5, seed=1, alpha=0.3)]
    ),
    "operators-texts": on(Texts(), operators=texts())("operators", operators=texts(11)),
    "operators-hidden-tokens": on(Texts(), operators=hidden())("operators", operators=hidden(0.2)),
    "operators-spans": on(Texts(), operators=spans())("operators", operators=spans(0.5)),
    "operators-chats": on(Chats(), operators=chats())("operators", operators=chats("user")),
    "operators-fields": on(operators=fields())("operators", operators=fields(2.5)),
    "operators-functions": on(operators=functions())("operators", operators=functions(7)),
}


def document_of(loader: DataLoader) -> dict[str, Any]:
    """The document at a step, and a digest of the batch that comes next."""
    loader.seek(STEP)
    return {"state": loader.get_state(), "next_batch": content_key(loader.host_batch_at(STEP))}


def write(again: bool) -> None:
    for name, kept in KEPT.items():
        path = FOLDER / f"{name}.json"
        if again or not path.exists():
            with tempfile.TemporaryDirectory() as folder:
                path.write_text(json.dumps(document_of(kept.make(Path(folder))), indent=1) + "\n")
                print(f"wrote {path.name}")
    path = FOLDER / "stream" / "stream-0-of-1.json"
    if again or not path.exists():
        path.parent.mkdir(exist_ok=True)
        with stream() as batches:
            for _ in range(STEP):
                next(batches)
            path.write_text(batches.file_for_checkpoint()[1])
        print(f"wrote {path.name}")


if __name__ == "__main__":
    # Imported, so that the functions above have the name of this module and not `__main__`.
    from tests.state.kept_documents import write as write_documents

    write_documents(again=sys.argv[1:] == ["--all"])
