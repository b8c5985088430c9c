"""Writes the data of the configurations in `configs/` into `build/data`.

    python scripts/make_data.py digits waves

digits: scikit-learn's 1797 handwritten digits as ArrayRecord files, every fifth held out.
waves: 20 000 noisy waves of 128 samples, and their frequency, as zarr3 arrays in chunks of 64.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore as ts
from array_record.python.array_record_module import ArrayRecordWriter

from loader import RawArrays

DIGIT = RawArrays(
    {
        "image": jax.ShapeDtypeStruct((8, 8, 1), np.uint8),
        "label": jax.ShapeDtypeStruct((), np.int32),
    }
)
EVERY, FILES = 5, 4


def write_digits(folder: Path) -> None:
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    records = [
        DIGIT.encode({"image": image[..., None], "label": label})
        for image, label in zip(digits.images.astype(np.uint8), digits.target, strict=True)
    ]
    held_out = records[::EVERY]
    del records[::EVERY]
    for number in range(FILES):
        _write_records(folder / f"train-{number}-of-{FILES}.array_record", records[number::FILES])
    _write_records(folder / "test.array_record", held_out)


def _write_records(path: Path, records: list[bytes]) -> None:
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def write_waves(folder: Path) -> None:
    random = np.random.default_rng(0)
    count, samples = 20_000, 128
    frequency = random.uniform(1, 16, count).astype(np.float32)
    phase = random.uniform(0, 2 * np.pi, (count, 1))
    time = np.linspace(0, 1, samples)
    wave = np.sin(2 * np.pi * frequency[:, None] * time + phase)
    wave += 0.3 * random.standard_normal((count, samples))
    for name, array in (("wave", wave.astype(np.float32)), ("frequency", frequency)):
        spec = {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": str((folder / name).absolute())},
            "metadata": {
                "chunk_grid": {
                    "name": "regular",
                    "configuration": {"chunk_shape": [64, *array.shape[1:]]},
                }
            },
        }
        store = ts.open(
            spec, create=True, delete_existing=True, dtype=array.dtype, shape=array.shape
        ).result()
        store.write(array).result()


WRITERS = {"digits": write_digits, "waves": write_waves}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the data of configs/ into build/data.")
    parser.add_argument("names", nargs="+", choices=WRITERS, help="which data")
    for name in parser.parse_args(arguments).names:
        folder = Path("build/data") / name
        folder.mkdir(parents=True, exist_ok=True)
        WRITERS[name](folder)
        print(f"wrote {folder}")


if __name__ == "__main__":
    main()
