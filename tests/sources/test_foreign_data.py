"""Data as other libraries hold it: taken by columns, or refused with the remedy."""

from collections import UserDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

from loader import ArraySource, DataLoader, Shuffle
from loader.testing import assert_resumes_exactly, assert_same_batch
from operators import DecodeImage, PadTokens, Tokenize
from tests.data import unlike_records

COUNT = 11
RECORDS = unlike_records(COUNT)
TOKENS = [[n, *range(n % 4)] for n in range(COUNT)]
TEXTS = [f"text {n}" + "!" * n for n in range(COUNT)]


class Tensor:
    """An array of another library: numpy can read it, and its dtype is not one of numpy's."""

    dtype = "foreign.float32"

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._values, dtype, copy=bool(copy)) if copy else self._values

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> "Tensor":
        return Tensor(self._values[index])


class Unreadable(Tensor):
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise RuntimeError("cannot call numpy() on a tensor that is elsewhere")


class OnDisk(Unreadable):
    """As arrays of h5py, zarr and dask: too large to be read whole."""

    chunks = (4, 3, 2)

    def __getitem__(self, index: Any) -> Any:
        return self._values[index]


class Samples:
    """A map-style data set, as torch's are."""

    def __init__(self, sample: Callable[[int], Any]) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


class OneBuffer:
    """Fills the same memory for every record."""

    def __init__(self) -> None:
        self.memory = np.zeros(3)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        self.memory[:] = index
        return {"x": Tensor(self.memory)}


class Gathering:
    def __len__(self) -> int:
        return COUNT

    def gather(self, indices: np.ndarray) -> Any:
        return {name: Tensor(leaf[indices]) for name, leaf in RECORDS.items()}


class IterableDataset:
    """As torch's and Hugging Face's: a stream, which may also have a length."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return iter(range(COUNT))


def batches(data: Any, **options: Any) -> list[Any]:
    return list(DataLoader(data, batch_size=4, order=Shuffle(3), **options).host_batches())


def assert_same_batches(data: Any, expected: Any, **options: Any) -> None:
    """The data gives the batches that plain arrays or records give, and it can be saved."""
    for got, want in zip(batches(data, **options), batches(expected, **options), strict=True):
        assert_same_batch(got, want, "a batch")
    assert_resumes_exactly(lambda: DataLoader(data, batch_size=4, epochs=2, **options))


def rows_of(arrays: Any, kind: Any = lambda leaf: leaf) -> list[Any]:
    return [{name: kind(leaf[n]) for name, leaf in arrays.items()} for n in range(COUNT)]


# Arrays of other libraries


@pytest.mark.parametrize(
    "data",
    [
        {name: Tensor(leaf) for name, leaf in RECORDS.items()},
        rows_of(RECORDS, Tensor),
        Gathering(),
        UserDict(RECORDS),
    ],
    ids=["arrays", "records", "gathered", "mapping"],
)
def test_whatever_numpy_can_read_is_an_array(data: Any):
    assert_same_batches(data, RECORDS)
    placed = next(DataLoader(data, batch_size=4))
    np.testing.assert_array_equal(placed["x"], RECORDS["x"][:4])


def test_an_array_of_another_library_needs_no_name():
    assert_same_batches(Tensor(RECORDS["x"]), RECORDS["x"])
    assert_same_batches(
        (Tensor(RECORDS["x"]), Tensor(RECORDS["id"])), (RECORDS["x"], RECORDS["id"])
    )


def test_an_array_on_a_disk_is_read_row_by_row():
    assert_same_batches(OnDisk(RECORDS["x"]), RECORDS["x"])


def test_samples_that_are_pairs_of_tensors_stay_pairs():
    data = Samples(lambda n: (Tensor(RECORDS["x"][n]), Tensor(n)))
    assert_same_batches(data, (RECORDS["x"], np.arange(COUNT)))


def test_a_buffer_that_is_filled_anew_is_seen_in_a_tensor_too():
    batch = next(DataLoader(OneBuffer(), batch_size=4).host_batches())
    assert batch["x"].tolist() == [[n] * 3 for n in range(4)]


def test_an_operator_may_return_tensors():
    def halved(rows: Any) -> Any:
        return {**rows, "x": Tensor(np.asarray(rows["x"]) / 2)}

    def numbers(rows: Any) -> Any:
        return {**rows, "x": rows["x"] / 2}

    for got, want in zip(
        batches(RECORDS, operators=[halved]), batches(RECORDS, operators=[numbers]), strict=True
    ):
        np.testing.assert_array_equal(got["x"], want["x"])
    assert DataLoader(RECORDS, batch_size=4, operators=[halved]).batch_spec()["x"].shape == (
        4,
        3,
        2,
    )


def test_a_tensor_that_numpy_cannot_read_is_named_with_the_remedy():
    message = r"leaf 'x'.* is a Unreadable.*that is elsewhere.*tensor\.detach\(\)\.cpu\(\)\.numpy"
    with pytest.raises(ValueError, match=message):
        DataLoader({"x": Unreadable(RECORDS["x"])}, batch_size=4)
    with pytest.raises(ValueError, match=message):
        next(DataLoader(Samples(lambda n: {"x": Unreadable([n])}), batch_size=4))


# Texts and images


def test_numpy_strings_are_texts_whatever_their_lengths():
    operators = [Tokenize(), PadTokens("tokens", 24)]
    plain = [{"text": text} for text in TEXTS]
    for data in (
        [{"text": np.str_(text)} for text in TEXTS],
        [{"text": np.array(text)} for text in TEXTS],
        {"text": np.array(TEXTS)},
        {"text": Tensor(np.array(TEXTS))},
    ):
        assert_same_batches(data, plain, operators=operators)


def test_an_image_of_bytes_and_a_path_is_its_bytes(tmp_path: Path):
    cv2 = pytest.importorskip("cv2")
    pixels = [np.full((4, 4, 3), 9 * n, np.uint8) for n in range(COUNT)]
    pngs = [cv2.imencode(".png", image)[1].tobytes() for image in pixels]
    (tmp_path / "0.png").write_bytes(pngs[0])
    images: list[Any] = [{"bytes": png, "path": f"{n}.png"} for n, png in enumerate(pngs)]
    images[0] = {"bytes": None, "path": str(tmp_path / "0.png")}
    images[1]["path"] = None
    rows = [{"image": image, "label": n} for n, image in enumerate(images)]
    expected = {"image": np.stack(pixels), "label": np.arange(COUNT)}
    columns = {"image": images, "label": list(range(COUNT))}
    for data in (rows, columns):
        assert batches(data)[0]["image"].dtype == object
        decoded = batches(data, operators=[DecodeImage("image", size=(4, 4))])
        for got, want in zip(decoded, batches(expected), strict=True):
            np.testing.assert_array_equal(got["image"], want["image"])
    rows[5]["image"] = {"bytes": None, "path": None}
    with pytest.raises(ValueError, match=r"leaf 'image' of record 5 has neither bytes nor a path"):
        batches(rows)
    rows[5]["image"] = {"bytes": None, "path": str(tmp_path / "gone.png")}
    with pytest.raises(ValueError, match=r"leaf 'image' of record 5 .*gone\.png.* cannot be read"):
        batches(rows)


# Columns


def test_columns_may_be_python_lists():
    lists = {name: leaf.tolist() for name, leaf in RECORDS.items()}
    assert_same_batches(lists, {name: np.array(leaf) for name, leaf in lists.items()})
    operators = [Tokenize(), PadTokens("tokens", 24)]
    assert_same_batches({"text": TEXTS}, [{"text": t} for t in TEXTS], operators=operators)


def ragged(kind: Any) -> np.ndarray:
    leaf = np.empty(COUNT, object)
    leaf[:] = [kind(tokens) for tokens in TOKENS]
    return leaf


@pytest.mark.parametrize("column", [TOKENS, ragged(list), ragged(np.array)])
def test_a_column_of_lists_of_different_lengths_is_ragged(column: Any):
    data = {"tokens": column, "id": list(range(COUNT))}
    expected = [{"tokens": tokens, "id": n} for n, tokens in enumerate(TOKENS)]
    assert_same_batches(data, expected, operators=[PadTokens("tokens", 8)])
    source = ArraySource(data)
    assert source.record_spec()["tokens"].shape == (None,)
    source.gather(np.array([2]))["tokens"][0][:] = -1
    assert source[2]["tokens"].tolist() == TOKENS[2]  # the rows are the caller's own


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1, None, 3], r"column 'x' has nothing \(None\) in record 1: .*fill it"),
        (["a", None, "c"], r"column 'x' has nothing \(None\) in record 1: .*fill it"),
        (["a", "b", 3], r"column 'x' has a int in record 2 and a str in record 0: "),
        ([1, 2, "c"], r"column 'x' has a str in record 2 and a int in record 0: "),
        ([[1], [[2]], [3]], r"column 'x' has int64\[1, 1\] in record 1 and int64\[1\] in record 0"),
        ([{"a": 1}, {"a": 2}], r"column 'x' has a dict in record 0.*a list of records"),
        ([2**70, 1, 2], r"column 'x' has a int in record 0"),
    ],
)
def test_a_column_that_makes_no_array_is_named_with_the_record(column: Any, message: str):
    with pytest.raises(ValueError, match=message):
        DataLoader({"x": column}, batch_size=2)


def test_a_list_of_arrays_is_still_several_leaves():
    pair = [np.arange(5), np.arange(5) * 2.0]
    batch = next(DataLoader({"pair": pair}, batch_size=5).host_batches())
    np.testing.assert_array_equal(batch["pair"][1], pair[1])
    with pytest.raises(ValueError, match=r"different numbers of rows.*'tokens/1': 3.*list of rec"):
        DataLoader({"tokens": [np.arange(2), np.arange(3)]}, batch_size=2)


# What cannot be read by record numbers


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (IterableDataset(), TypeError),
        (iter([1, 2]), TypeError),
        (grain.MapDataset.range(5).to_iter_dataset(), ValueError),
    ],
)
def test_a_stream_is_refused_with_the_remedy(stream: Any, error: type[Exception]):
    message = r"only be read from its start.*DevicePrefetcher\(batches, MeshSharder\(mesh\)\)"
    with pytest.raises(error, match=message) as caught:
        DataLoader(stream, batch_size=2)
    assert type(stream).__name__ in str(caught.value)
    assert "\n" not in str(caught.value)


def test_several_data_sets_are_refused_with_the_remedy():
    class Splits(dict[str, Any]):
        """As `datasets.DatasetDict`."""

    splits = {"train": Samples(lambda n: {"x": n}), "valid": Samples(lambda n: {"x": -n})}
    for data in (splits, Splits(splits)):
        message = r"leaf 'train' is a Samples, which is not an array: .*data\['train'\].*Mixture"
        with pytest.raises(ValueError, match=message):
            DataLoader(data, batch_size=2)


# The libraries themselves


def test_a_data_frame_is_taken_by_columns():
    pd = pytest.importorskip("pandas")
    columns = {"id": RECORDS["id"], "text": TEXTS, "tokens": TOKENS}
    frame = pd.DataFrame({**columns, "kind": pd.Categorical(["a", "b"] * 5 + ["a"])})
    frame["count"] = pd.array(range(COUNT), dtype="Int64")
    expected = [
        {"id": RECORDS["id"][n], "text": TEXTS[n], "tokens": TOKENS[n], "kind": "ab"[n % 2]}
        | {"count": n}
        for n in range(COUNT)
    ]
    operators = [PadTokens("tokens", 8)]
    assert_same_batches(frame, expected, operators=operators)
    # A part of it has an index that does not begin at 0.
    part = next(
        DataLoader(frame[frame["id"] > 4], batch_size=6, operators=operators).host_batches()
    )
    assert part["id"].tolist() == [5, 6, 7, 8, 9, 10]
    assert next(DataLoader(frame["id"][6:], batch_size=2).host_batches())["data"].tolist() == [6, 7]
    frame.loc[3, "count"] = pd.NA
    with pytest.raises(ValueError, match="column 'count' has 1 missing values: fill them"):
        DataLoader(frame, batch_size=2)
    with pytest.raises(ValueError, match=r"keys of records must be texts, got \[0, 1\]"):
        DataLoader(pd.DataFrame(np.zeros((3, 2))), batch_size=2)
    with pytest.raises(ValueError, match="two columns are called 'a'"):
        DataLoader(pd.DataFrame([[1, 2]], columns=["a", "a"]), batch_size=2)


def test_an_arrow_table_is_taken_by_columns():
    pa = pytest.importorskip("pyarrow")
    images = [{"bytes": b"image %d" % n, "path": None} for n in range(COUNT)]
    grids = [[n, n + 0.5] for n in range(COUNT)]
    table = pa.table(
        {"id": RECORDS["id"], "text": TEXTS, "tokens": TOKENS, "image": images}
        | {"grid": pa.array(grids, pa.list_(pa.float32(), 2))}
    )
    expected = [
        {"id": RECORDS["id"][n], "text": TEXTS[n], "tokens": TOKENS[n]}
        | {"image": b"image %d" % n, "grid": np.array(grids[n], np.float32)}
        for n in range(COUNT)
    ]
    operators = [PadTokens("tokens", 8)]
    chunked = pa.concat_tables([table[:4], table[4:]])
    for data in (table, chunked, table.combine_chunks().to_batches()[0]):
        assert_same_batches(data, expected, operators=operators)
    assert_same_batches(chunked["id"], RECORDS["id"])
    with pytest.raises(ValueError, match=r"column 'id' has 2 missing values: fill them"):
        DataLoader(pa.table({"id": [1, None, None]}), batch_size=2)


def test_torch_data_sets_and_tensors_are_taken_as_they_are():
    torch = pytest.importorskip("torch")
    arrays = {name: torch.from_numpy(leaf.copy()) for name, leaf in RECORDS.items()}
    assert_same_batches(arrays, RECORDS)
    assert_same_batches(arrays["x"], RECORDS["x"])
    pairs = torch.utils.data.TensorDataset(arrays["x"], arrays["id"])
    assert_same_batches(pairs, (RECORDS["x"], RECORDS["id"]))
    subset = torch.utils.data.Subset(rows_of(arrays), list(range(COUNT)))
    assert_same_batches(subset, RECORDS)
    with pytest.raises(ValueError, match=r"leaf 'x' is a Tensor.*detach\(\)"):
        DataLoader({"x": torch.ones(3, requires_grad=True)}, batch_size=2)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    for stream in (Stream(), torch.utils.data.DataLoader(pairs)):
        with pytest.raises(TypeError, match="DevicePrefetcher"):
            DataLoader(stream, batch_size=2)


def test_hugging_face_data_sets_are_taken_as_they_are():
    datasets = pytest.importorskip("datasets")
    columns = {"id": RECORDS["id"].tolist(), "text": TEXTS, "tokens": TOKENS}
    data = datasets.Dataset.from_dict(columns)
    expected = [{name: leaf[n] for name, leaf in columns.items()} for n in range(COUNT)]
    operators = [PadTokens("tokens", 8)]
    for form in (None, "numpy", "torch"):
        if form != "torch" or pytest.importorskip("torch"):
            assert_same_batches(data.with_format(form), expected, operators=operators)
    assert_same_batches(data[:], expected, operators=operators)
    assert_same_batches({"id": data["id"]}, {"id": np.arange(COUNT)})
    images = datasets.Dataset.from_dict(
        {"image": [{"bytes": b"%d" % n, "path": None} for n in range(COUNT)]},
        features=datasets.Features({"image": datasets.Image(decode=False)}),
    )
    assert_same_batches(images, [{"image": b"%d" % n} for n in range(COUNT)])
    with pytest.raises(ValueError, match=r"'train' is a Dataset.*data\['train'\]"):
        DataLoader(datasets.DatasetDict({"train": data}), batch_size=2)
    with pytest.raises(TypeError, match=r"IterableDataset.*DevicePrefetcher"):
        DataLoader(data.to_iterable_dataset(), batch_size=2)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ([["a", 1], ["b", "c"]], "leaf 't' of record 0 holds texts and numbers"),
        ([[2**63 + 1], [1]], "column 't' has"),
        ([[0.5], [2**53 + 1]], "column 't' has"),
        ([2**63 + 1, -1], "column 't' has a int in record 0"),
    ],
)
def test_values_that_one_dtype_cannot_hold_are_refused(column: Any, words: str):
    with pytest.raises(ValueError, match=words):
        DataLoader({"t": column}, batch_size=2)


def test_whole_numbers_beside_others_stay_as_they_are():
    batch = next(DataLoader({"t": [[1, 2], [0.5, 3]]}, batch_size=2).host_batches())
    assert batch["t"].tolist() == [[1, 2], [0.5, 3]]


def test_a_value_that_is_missing_inside_a_list_of_arrow_is_refused():
    pa = pytest.importorskip("pyarrow")
    pd = pytest.importorskip("pandas")
    lists = pa.array([[1, None], [2, 3]])
    fixed = pa.array([[1, None], [2, 3]], pa.list_(pa.int64(), 2))
    for column in (lists, fixed, pa.array([[[1], [None]], [[2]]])):
        with pytest.raises(ValueError, match="column 't' has 1 missing values"):
            DataLoader(pa.table({"t": column}), batch_size=2)
        frame = pd.DataFrame(
            {"t": pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([column])))}
        )
        with pytest.raises(ValueError, match="column 't' has 1 missing values"):
            DataLoader(frame, batch_size=2)
