"""Rows copied from arrays are those of the arrays."""

import numpy as np

from loader.records.memory import take_rows


def test_rows_are_those_of_the_array_however_it_lies():
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 60000, (400, 6, 8))
    texts = np.array([f"text {n}" for n in range(400)], object)
    arrays = [whole, whole[::2], whole[:, ::-1], np.asfortranarray(whole), whole[..., 0], texts]
    arrays += [whole.astype(">i4"), whole[:, :0], whole.astype(np.float16)]
    for array in arrays:
        for count in (0, 1, 7, 2000):
            indices = rng.integers(0, len(array), count)
            rows = take_rows(array, indices)
            assert rows.dtype == array.dtype
            np.testing.assert_array_equal(rows, array[indices])
