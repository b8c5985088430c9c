"""Data sources of TFDS and files of Bagz, which are sequences already, are taken as they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, Shuffle

COUNT = 23


def assert_gives_each_record_as_it_does(data: Any, leaf: str | None) -> None:
    """Two epochs hold the sequence's own records, and a restart loses none."""

    def make() -> DataLoader:
        return DataLoader(data, batch_size=5, order=Shuffle(0), epochs=2, with_index="n")

    seen: list[int] = []
    for batch in make().host_batches():
        for row in np.flatnonzero(batch["valid_mask"]).tolist():
            n = int(batch["n"][row])
            expected = data[n] if leaf is None else data[n][leaf]
            np.testing.assert_array_equal(batch[leaf or "data"][row], expected)
            seen.append(n)
    assert sorted(seen) == sorted([*range(COUNT)] * 2)


def test_a_file_of_bagz_is_a_source(tmp_path: Path):
    bagz = pytest.importorskip("bagz", reason="bagz is not part of the test extra")
    writer = bagz.Writer(str(tmp_path / "a.bag"))
    for n in range(COUNT):
        writer.write(b"record %d" % n)
    writer.close()
    assert_gives_each_record_as_it_does(bagz.Reader(str(tmp_path / "a.bag")), None)


def test_a_data_source_of_tfds_is_a_source(tmp_path: Path):
    words = "tensorflow-datasets is not part of the test extra"
    tfds = pytest.importorskip("tensorflow_datasets", reason=words)

    class Small(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            image = tfds.features.Tensor(shape=(2, 3), dtype=np.uint8)
            features = {"id": np.int64, "image": image, "text": tfds.features.Text()}
            features = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, _: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Any:
            for n in range(COUNT):
                yield n, {"id": n, "image": np.full((2, 3), n, np.uint8), "text": f"text {n}"}

    builder = Small(data_dir=str(tmp_path), file_format="array_record")
    builder.download_and_prepare()
    data = builder.as_data_source("train")
    for leaf in ("id", "image", "text"):
        assert_gives_each_record_as_it_does(data, leaf)
