"""What every source of a format that others have made is put through, beside `source_checks`."""

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from loader import DataLoader, Mask, Shuffle
from loader.records.digest import content_key
from loader.records.stacking import zero_rows
from loader.sources.reading import fingerprint
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET

Open = Callable[[str], Any]


def rows_of(source: Any) -> Any:
    return source.gather(np.arange(len(source)))


def assert_same_rows(got: Any, want: Any) -> None:
    assert content_key(got) == content_key(want), f"{got}\n\nis not\n\n{want}"


def assert_the_spec_is_of_the_rows(source: Any) -> None:
    """Zeros of the spec are of the same dtypes and axes as the rows."""
    pairs = zip(
        jax.tree.leaves(zero_rows(source.record_spec(), 2)),
        jax.tree.leaves(source.gather(np.array([0, 1]))),
        strict=True,
    )
    for zeros, rows in pairs:
        assert zeros.dtype == rows.dtype
        assert [getattr(x, "ndim", 0) for x in zeros] == [getattr(x, "ndim", 0) for x in rows]


def assert_reads_from_a_store(store: FakeStore, files: list[Path], opened: Open) -> None:
    """The same files in a bucket are the same source; what a read needs is known beforehand."""
    store.put_all(BUCKET, {f"deep/{file.name}": file.read_bytes() for file in files})
    pattern = f"*{files[0].suffix}"
    local, far = opened(str(files[0].parent / pattern)), opened(f"gs://{BUCKET}/deep/{pattern}")
    assert_same_rows(rows_of(far), rows_of(local))
    assert fingerprint(far) == fingerprint(local)
    assert f"gs://{BUCKET}/deep/" in far.locate(len(far) - 1)
    far = pickle.loads(pickle.dumps(far))
    with store.logged() as nothing:
        ((stored, pieces),) = far.stored_pieces(np.arange(len(far)))
        ((_, last),) = far.stored_pieces(np.array([len(far) - 1]))
    assert not nothing
    assert pieces.tolist() == list(range(stored.num_pieces))
    assert last.tolist() == [stored.num_pieces - 1]
    with store.logged() as log:
        far.gather(np.array([0, len(far) - 1]))
    assert len(log) == len(files) == 2
    state = DataLoader(local, batch_size=4, order=Shuffle(1)).get_state()
    DataLoader(far, batch_size=4, order=Shuffle(1)).set_state(state)
    store.put(BUCKET, f"deep/{files[0].name}", files[0].read_bytes() + b"!")
    with np.testing.assert_raises_regex(ValueError, "replaced since the source was made"):
        rows_of(pickle.loads(pickle.dumps(far)))


def seeds(full: bool) -> range:
    """One for each damage that is tried."""
    return range(1000 if full else 25)


def damaged(content: bytes, seed: int) -> bytes:
    """The content with some bytes changed, taken out, put in, doubled, or cut off."""
    draw = random.Random(seed)
    data, at = bytearray(content), draw.randrange(len(content))
    length = draw.choice([1, 1, 1, 2, 4, 40])
    match draw.choice(["flip", "flip", "flip", "set", "out", "in", "double", "cut"]):
        case "flip":
            data[at] ^= 1 << draw.randrange(8)
        case "set":
            data[at : at + length] = draw.randbytes(len(data[at : at + length]))
        case "out":
            del data[at : at + length]
        case "in":
            data[at:at] = draw.randbytes(length)
        case "double":
            data[at:at] = data[at : at + length]
        case _:
            del data[at:]
    return bytes(data)


def outcome(path: Path, content: bytes, opened: Open, right: list[str]) -> str:
    """What comes of a damaged file: "right", "masked", "refused" or "wrong".

    Its records are read one by one, as `Mask` does that leaves out those that cannot be read.
    """
    path.write_bytes(content)
    try:
        source = opened(str(path))
        loader = DataLoader(source, batch_size=64, on_error=Mask(log=None), prefetch=0)
        batches = list(loader.host_batches())
    except ValueError as error:
        message = str(error)
        return "refused" if path.name in message else f"refused without its name: {message}"
    if len(source) != len(right):
        return "wrong"
    place, found = 0, "right"
    for batch in batches:
        valid = batch.pop("valid_mask")
        for row in range(min(64, len(source) - place)):
            if not valid[row]:
                found = "masked"
            elif content_key(jax.tree.map(lambda leaf, row=row: leaf[row], batch)) != right[place]:
                return "wrong"
            place += 1
    return found


def keys_of(source: Any) -> list[str]:
    rows = rows_of(source)
    records = [jax.tree.map(lambda leaf, n=n: leaf[n], rows) for n in range(len(source))]
    return [content_key(record) for record in records]
