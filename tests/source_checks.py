"""What every source is put through."""

import pickle
from typing import Any

import numpy as np

from loader import DataLoader, Shuffle, Threads
from loader.testing import assert_covers_each_record_once, assert_resumes_exactly, assert_same_batch


def assert_is_a_source_of(
    source: Any, expected: dict[str, np.ndarray], leaf: str, *, pickles: bool = True
) -> None:
    """The source gives these records, whatever the batches, the threads and the restarts.

    `leaf` is the one that tells records apart.
    """

    def loader(data: Any, batch_size: int = 4, threads: int = 0) -> DataLoader:
        workers = Threads(threads)
        return DataLoader(data, batch_size=batch_size, order=Shuffle(1), epochs=2, workers=workers)

    assert_resumes_exactly(lambda: loader(source))
    assert_covers_each_record_once(loader(source), leaf, expected[leaf].ravel())
    for batch_size, threads in ((4, 0), (4, 2), (7, 0), (3, 2)):
        with loader(source, batch_size, threads) as ours, loader(expected, batch_size) as theirs:
            assert ours.batch_spec() == theirs.batch_spec()
            batches = zip(ours.host_batches(), theirs.host_batches(), strict=True)
            for step, (got, want) in enumerate(batches):
                assert_same_batch(got, want, f"batch {step} of size {batch_size}")
    rows = source.gather(np.array([1, 0, 1]))
    first = source[1]
    for key, values in expected.items():
        np.testing.assert_array_equal(rows[key], values[[1, 0, 1]])
        np.testing.assert_array_equal(first[key], values[1])
        rows[key][:] = values[0]  # the rows are the caller's own
        np.testing.assert_array_equal(source[1][key], values[1])
    if pickles:
        again = loader(pickle.loads(pickle.dumps(source)))
        again.set_state(loader(source).get_state())
    assert len(source) == len(expected[leaf])
