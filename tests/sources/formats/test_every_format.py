"""What holds for all formats: workers of each kind, a cache, and packages that are not there."""

import concurrent.futures
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from loader import (
    BlockShuffle,
    DataLoader,
    DiskCache,
    HuggingFaceSource,
    Mixture,
    On,
    ParquetSource,
    Processes,
    Shuffle,
    TarSource,
    TFExample,
    TFRecordSource,
)
from loader.command.config.config import read_config
from loader.command.main import ALL_KINDS, main
from loader.records.optional import optional
from loader.testing import assert_same_batch
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET
from tests.sources.formats.checks import assert_same_rows, rows_of
from tests.sources.formats.plain_tar import pack
from tests.sources.formats.write_files import FILES


def hugging_face(folder: Path) -> HuggingFaceSource:
    datasets.Dataset.from_dict({"id": range(300, 323)}).save_to_disk(folder / "saved")
    return HuggingFaceSource(folder / "saved")


def tar(folder: Path) -> TarSource:
    return TarSource(pack(folder / "a.tar", {f"{n}.id": b"%d" % (n + 200) for n in range(23)}))


EVERY: dict[str, Callable[[Path], Any]] = {
    "parquet": lambda folder: ParquetSource(FILES / "people.parquet", ["id"]),
    "tfrecord": lambda folder: TFRecordSource(FILES / "*.tfrecord", TFExample({"id": "int64"})),
    "tar": tar,
    "hugging face": hugging_face,
}


def test_workers_of_each_kind_make_the_same_batches(tmp_path: Path):
    """All formats at once, for processes take long to start."""
    parts = {name: (make(tmp_path), 1) for name, make in EVERY.items()}
    source = Mixture(parts, seed=0)
    how: Any = {"batch_size": 8, "steps": 12}
    expected = list(DataLoader(source, prefetch=0, **how).host_batches())
    assert len({n for batch in expected for n in batch["id"].tolist()}) > 80  # of each format
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for workers in (Processes(1), On(pool)):
            with DataLoader(source, workers=workers, **how) as ours:
                for got, want in zip(ours.host_batches(), expected, strict=True):
                    assert_same_batch(got, want, f"a batch of {workers}")


@pytest.mark.parametrize("name", EVERY)
def test_any_number_of_hosts_reads_its_rows_of_the_same_batches(name: str, tmp_path: Path):
    source = EVERY[name](tmp_path)
    loader = DataLoader(source, batch_size=12, order=Shuffle(2), epochs=2, prefetch=0)
    for step, batch in enumerate(loader.host_batches()):
        for hosts in (2, 5):
            for rows in np.array_split(np.arange(12), hosts):
                part = DataLoader(source, batch_size=12, order=Shuffle(2), epochs=2).pipeline
                whole = {leaf: values[rows] for leaf, values in batch.items()}
                assert_same_batch(part.batch(step, rows), whole, f"rows {rows} of {step}")


@pytest.mark.parametrize("name", ["parquet", "tfrecord", "tar"])
def test_a_cache_keeps_what_was_read(name: str, store: FakeStore, tmp_path: Path):
    local = EVERY[name](tmp_path)
    files = {Path(path).name: Path(path).read_bytes() for path in local.paths}
    store.put_all(BUCKET, files)
    opened: dict[str, Callable[..., Any]] = {
        "parquet": lambda **how: ParquetSource(f"gs://{BUCKET}/*", ["id"], **how),
        "tfrecord": lambda **how: TFRecordSource(
            f"gs://{BUCKET}/*", TFExample({"id": "int64"}), **how
        ),
        "tar": lambda **how: TarSource(f"gs://{BUCKET}/*", **how),
    }
    cache = DiskCache(tmp_path / "cache", "10MB")
    with DataLoader(opened[name](cache=cache), batch_size=8, order=BlockShuffle(0)) as loader:
        want = list(DataLoader(local, batch_size=8, order=BlockShuffle(0)).host_batches())
        for got, batch in zip(loader.host_batches(), want, strict=True):
            assert_same_batch(got, batch, "a batch")
    with store.logged() as log:
        assert_same_rows(rows_of(opened[name](cache=cache)), rows_of(local))
    assert not log.of("read")


CONFIGURED = {
    "parquet": f'kind = "ParquetSource"\npaths = "{FILES}/people.parquet"\n'
    'columns = ["id", "age"]\nnulls = { age = -1 }\n',
    "tfrecord": f'kind = "TFRecordSource"\npaths = "{FILES}/*.tfrecord"\n'
    'parse = { kind = "TFExample", features = { id = "int64", grid = "float32[2, 3]" } }\n',
    "tar": 'kind = "TarSource"\npaths = "*.tar"\nleaves = ["id"]\n',
    "hugging face": 'kind = "HuggingFaceSource"\ndataset = "saved"\n',
}


@pytest.mark.parametrize("name", EVERY)
def test_a_configuration_names_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    source = EVERY[name](tmp_path)
    text = f"[source]\n{CONFIGURED[name]}\n[loader]\nbatch_size = 23\n"
    (tmp_path / "run.toml").write_text(text)
    (batch,) = read_config("run.toml", ALL_KINDS).loader.host_batches()
    assert batch["id"].tolist() == rows_of(source)["id"].tolist()
    assert main(["check", "run.toml"]) == 0


@pytest.mark.parametrize(
    ("package", "extra", "make"),
    [
        ("pyarrow", "parquet", lambda: ParquetSource(FILES / "people.parquet")),
        ("datasets", "hf", lambda: HuggingFaceSource("folder")),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    package: str, extra: str, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
):
    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    optional.cache_clear()
    message = rf"needs the package {package}.*, which is not installed: pip install .*\[{extra}\]"
    try:
        with pytest.raises(ImportError, match=message):
            make()
    finally:
        optional.cache_clear()


def test_numbers_are_as_the_files_have_them(tmp_path: Path):
    for make in EVERY.values():
        ids = rows_of(make(tmp_path))["id"]
        assert ids.dtype == np.int64
        assert len(set(ids.tolist())) == 23
