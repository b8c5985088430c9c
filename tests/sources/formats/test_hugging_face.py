"""Data sets of Hugging Face as records."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from loader import DataLoader, HuggingFaceSource, Mask, Shuffle
from loader.records.optional import installed
from loader.sources.as_source import as_source
from loader.sources.reading import blocks
from loader.testing import assert_same_batch
from operators import DecodeImage
from tests.source_checks import assert_is_a_source_of
from tests.sources.formats.checks import (
    assert_same_rows,
    assert_the_spec_is_of_the_rows,
    damaged,
    keys_of,
    rows_of,
    seeds,
)

COUNT = 23
Features: Any = datasets.Features
Value: Any = datasets.Value
ARRAYS = {
    "id": np.arange(COUNT, dtype=np.int32),
    "odd": np.arange(COUNT) % 2 == 1,
    "x": np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 6),  # 24 bytes: chunks begin at 64
    "grid": np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 2, 3),
    "label": np.arange(COUNT) * 2 % 3,
}
TEXTS = [f"naïve {n} ☕" for n in range(COUNT)]
LISTS = [list(range(n % 4)) for n in range(COUNT)]
FEATURES = Features(
    {
        "id": Value("int32"),
        "odd": Value("bool"),
        "x": datasets.Sequence(Value("float32"), length=6),
        "grid": datasets.Array2D((2, 3), "float32"),
        "label": datasets.ClassLabel(names=["a", "b", "c"]),
        "text": Value("string"),
        "tokens": datasets.Sequence(Value("int16")),
        "pair": {"it": Value("string"), "n": Value("uint8")},
    }
)


def columns() -> dict[str, Any]:
    pairs = [{"it": f"{n} volte", "n": n} for n in range(COUNT)]
    return {**ARRAYS, "text": TEXTS, "tokens": LISTS, "pair": pairs}


@pytest.fixture(scope="module")
def plain() -> Any:
    return datasets.Dataset.from_dict(columns(), features=FEATURES)


@pytest.fixture(scope="module")
def folder(plain: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files, each with several chunks."""
    folder = tmp_path_factory.mktemp("saved")
    parts = [plain.select(range(begin, min(begin + 4, COUNT))) for begin in range(0, COUNT, 4)]
    datasets.concatenate_datasets(parts).save_to_disk(folder, num_shards=2)
    return folder


def one_of_each(plain: Any, folder: Path) -> dict[str, Any]:
    loaded: Any = datasets.load_from_disk(folder)
    return {
        "in memory": plain,
        "mapped": loaded,
        "shuffled": loaded.shuffle(seed=3),
        "chosen": loaded.select([5, 3, 3, 20, 1]),
        "a stretch": loaded.select(range(3, 19)),
        "some columns": loaded.with_format("numpy", columns=["id", "grid"]),
        "joined": datasets.concatenate_datasets([loaded, plain]),
        "joined by columns": datasets.concatenate_datasets(
            [loaded.select_columns(["id"]), plain.select_columns(["text", "grid"])], axis=1
        ),
    }


def test_a_saved_data_set_is_a_source(folder: Path):
    expected = {name: ARRAYS[name] for name in ("id", "odd", "x", "grid", "label")}
    source = HuggingFaceSource(folder, [*expected, "text"])
    assert_is_a_source_of(source, {**expected, "text": np.array(TEXTS, object)}, "id")
    assert source.locate(9) == f"row 9 of {folder}"
    found = blocks(source)
    assert found is not None
    assert found.tolist() == [0, 12]


def test_every_column_of_every_data_set_is_what_datasets_gives(plain: Any, folder: Path):
    for name, dataset in one_of_each(plain, folder).items():
        source = HuggingFaceSource(dataset)
        rows, columns = rows_of(source), dataset.with_format(None)
        assert set(rows) == set(dataset.format["columns"]), name
        for n, want in enumerate(columns):
            for leaf, values in rows.items():
                got = {k: v[n] for k, v in values.items()} if leaf == "pair" else values[n]
                got = got.tolist() if isinstance(got, np.ndarray) else got
                assert got == want[leaf], (name, leaf, n)
        for leaf in set(rows) & set(ARRAYS):
            assert rows[leaf].dtype == ARRAYS[leaf].dtype
        assert_the_spec_is_of_the_rows(source)


def test_a_data_set_given_to_a_loader_is_read_from_its_table(plain: Any, folder: Path):
    kept = ["id", "grid", "label"]
    expected = {name: ARRAYS[name] for name in kept}
    formats = ["numpy", *["torch"][: installed("torch") is not None]]
    for dataset in (
        plain.select_columns(kept),
        datasets.load_from_disk(folder).select_columns(kept),
    ):
        for given in (dataset, *map(dataset.with_format, formats)):
            assert isinstance(as_source(given), HuggingFaceSource)
            ours = DataLoader(given, batch_size=4, order=Shuffle(1), prefetch=0)
            theirs = DataLoader(expected, batch_size=4, order=Shuffle(1), prefetch=0)
            for got, want in zip(ours.host_batches(), theirs.host_batches(), strict=True):
                assert_same_batch(got, want, "a batch")
            state = DataLoader(
                plain.select_columns(kept), batch_size=4, order=Shuffle(1)
            ).get_state()
            ours.set_state(state)


def test_a_data_set_with_a_transform_is_read_record_by_record(plain: Any):
    def doubled(batch: Any) -> Any:
        return {"twice": [2 * n for n in batch["id"]]}

    dataset = plain.with_transform(doubled)
    (batch,) = DataLoader(dataset, batch_size=COUNT).host_batches()
    assert batch["twice"].tolist() == [2 * n for n in range(COUNT)]
    with pytest.raises(ValueError, match=r"has a transform \(set_transform\).* give it to DataLo"):
        HuggingFaceSource(dataset)


def test_images_are_bytes_to_decode(tmp_path: Path):
    import cv2

    pictures = [np.full((5, 4, 3), 9 * n, np.uint8) for n in range(COUNT)]
    blobs = [cv2.imencode(".png", picture)[1].tobytes() for picture in pictures]
    (tmp_path / "0.png").write_bytes(blobs[0])
    images = [{"bytes": None, "path": str(tmp_path / "0.png")}]
    images += [{"bytes": blob, "path": None} for blob in blobs[1:]]
    dataset = datasets.Dataset.from_dict(
        {"image": images}, features=Features({"image": datasets.Image()})
    )
    assert rows_of(HuggingFaceSource(dataset))["image"].tolist() == blobs
    loader = DataLoader(dataset, batch_size=COUNT, operators=[DecodeImage(size=(5, 4))])
    (batch,) = loader.host_batches()
    np.testing.assert_array_equal(batch["image"], np.stack(pictures))


def test_nothing_in_a_column_is_refused_or_filled_as_asked():
    holes: dict[str, Any] = {
        "age": [None if n == 7 else n for n in range(COUNT)],
        "name": [None if n == 7 else str(n) for n in range(COUNT)],
        "grid": [None if n == 7 else ARRAYS["grid"][n].tolist() for n in range(COUNT)],
    }
    features = Features({"age": Value("int64"), "name": Value("string"), "grid": FEATURES["grid"]})
    dataset = datasets.Dataset.from_dict(holes, features=features).select(range(COUNT - 1, -1, -1))
    for name in holes:
        source = HuggingFaceSource(dataset, [name])
        message = rf"record 15 \(row 15 of the data set\) has nothing \(null\) in '{name}'"
        with pytest.raises(ValueError, match=message):
            rows_of(source)
        (batch,) = DataLoader(source, batch_size=COUNT, on_error=Mask(log=None)).host_batches()
        assert np.flatnonzero(~batch["valid_mask"]).tolist() == [15]
    rows = rows_of(HuggingFaceSource(dataset, nulls={"age": -1, "name": "", "grid": 3}))
    assert (rows["age"][15], rows["name"][15], rows["grid"][15].tolist()) == (-1, "", [[3] * 3] * 2)
    assert rows["grid"][14].tolist() == ARRAYS["grid"][8].tolist()


def test_a_stretch_of_rows_with_holes_is_read_from_its_place():
    lists = [None if n == 7 else [n, n / 2] for n in range(COUNT)]
    features = Features({"pair": datasets.Sequence(Value("float32"), length=2)})
    whole = datasets.Dataset.from_dict({"pair": lists}, features=features)
    rows = rows_of(HuggingFaceSource(whole.select(range(3, 19)), nulls={"pair": 5}))
    assert rows["pair"].tolist() == [[5, 5] if n == 7 else [n, n / 2] for n in range(3, 19)]


def test_what_is_not_a_data_set_is_refused_with_the_remedy(
    plain: Any, folder: Path, tmp_path: Path
):
    with pytest.raises(TypeError, match=r"only be read from its start: place .* DevicePrefetcher"):
        HuggingFaceSource(plain.to_iterable_dataset())
    with pytest.raises(TypeError, match="DevicePrefetcher"):
        DataLoader(plain.to_iterable_dataset(), batch_size=4)
    with pytest.raises(TypeError, match=r"DatasetDict of 'train': give one .* data\['train'\]"):
        HuggingFaceSource(datasets.DatasetDict({"train": plain}))
    with pytest.raises(TypeError, match=r"a datasets\.Dataset or its folder is needed, got a list"):
        HuggingFaceSource([1])
    with pytest.raises(ValueError, match=r"is not a folder that Dataset\.save_to_disk has written"):
        HuggingFaceSource(tmp_path)
    with pytest.raises(ValueError, match="gs://bucket/x is not on this machine"):
        HuggingFaceSource("gs://bucket/x")
    with pytest.raises(ValueError, match="there is no column 'ids'"):
        HuggingFaceSource(folder, ["ids"])
    with pytest.raises(ValueError, match="the source is empty"):
        HuggingFaceSource(plain.select([]))
    odd = datasets.Dataset.from_dict({"a": [[{"b": 1}], []]})
    with pytest.raises(ValueError, match=r"column 'a'.* leave it out, by columns"):
        HuggingFaceSource(odd)
    assert as_source(odd) is odd  # record by record, as long as nobody asks for it


def test_a_document_goes_from_memory_to_disk(plain: Any, folder: Path):
    first = DataLoader(plain, batch_size=4, order=Shuffle(1)).get_state()
    DataLoader(HuggingFaceSource(folder), batch_size=4, order=Shuffle(1)).set_state(first)
    with pytest.raises(ValueError, match=r"data\.sample"):
        DataLoader(plain.shuffle(seed=0), batch_size=4, order=Shuffle(1)).set_state(first)


def test_a_damaged_file_gives_right_records_or_an_error(full: bool, plain: Any, tmp_path: Path):
    """Arrow files have no checksum: nothing may crash, and errors must name it."""
    plain.select_columns(["id", "x", "text"]).save_to_disk(tmp_path / "data")
    (path,) = (tmp_path / "data").glob("*.arrow")
    content, right = path.read_bytes(), keys_of(HuggingFaceSource(tmp_path / "data"))
    found: set[str] = set()
    for seed in seeds(full):
        path.unlink()
        path.write_bytes(damaged(content, seed))
        try:
            source = HuggingFaceSource(tmp_path / "data")
            found.add("right" if keys_of(source) == right else "other values")
        except ValueError as error:
            named = str(tmp_path / "data") in str(error)
            found.add("refused" if named else f"refused without its name: {error}")
    assert found <= {"right", "other values", "refused"}
    assert "refused" in found
    path.write_bytes(content[:-700])
    with pytest.raises(ValueError, match="not a whole one: "):
        HuggingFaceSource(tmp_path / "data")


def test_rows_far_apart_in_memory_are_read(plain: Any):
    parts = [
        plain.select_columns(["x"]).select(range(n, min(n + 2, COUNT))) for n in range(0, COUNT, 2)
    ]
    copies = [datasets.Dataset.from_dict(part[:], features=part.features) for part in parts]
    assert_same_rows(
        rows_of(HuggingFaceSource(datasets.concatenate_datasets(copies))), {"x": ARRAYS["x"]}
    )
