"""Files of random bytes in a bucket, and spans of them."""

import numpy as np

from loader.sources.storage.paths import stored_files
from loader.sources.storage.stored_files import StoredFiles
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET

FILE_BYTES = 300_000


def put(store: FakeStore, count: int = 5) -> dict[str, bytes]:
    contents = {f"d/{n}.bin": np.random.default_rng(n).bytes(FILE_BYTES + n) for n in range(count)}
    store.put_all(BUCKET, contents)
    return contents


def far(store: FakeStore, count: int = 5, scheme: str = "gs") -> StoredFiles:
    put(store, count)
    return stored_files(f"{scheme}://{BUCKET}/d/*.bin", "data")


def spans(files: StoredFiles, count: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    random_ = np.random.default_rng(seed)
    numbers = random_.integers(0, len(files), count)
    begins = random_.integers(0, FILE_BYTES - 3000, count)
    return numbers, begins, begins + random_.integers(0, 3000, count)


def wanted(store: FakeStore, files: StoredFiles, *asked: np.ndarray) -> list[bytes]:
    contents = [store.buckets[BUCKET][path.split("/", 3)[3]].content for path in files.paths]
    return [contents[file][begin:end] for file, begin, end in zip(*asked, strict=True)]
