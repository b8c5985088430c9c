"""OneHot: vectors of classes, and labels that are none."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from loader import DataLoader, RowError
from loader.records.stacking import ragged_leaf
from operators import OneHot

LABELS = np.array([[3, 0, 1], [2, 2, 3]], np.uint8)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", jnp.bfloat16])
def test_each_number_becomes_a_row_of_the_unit_matrix(dtype: Any):
    operator = OneHot(("x", "y"), 5, dtype=dtype)
    out = operator({"x": LABELS, "y": ragged_leaf([LABELS[0], LABELS[1, :2]])})
    unit = np.eye(5, dtype=dtype)
    assert out["x"].dtype == unit.dtype
    assert np.array_equal(out["x"], unit[LABELS])
    assert np.array_equal(out["y"][1], unit[[2, 2]])


def test_smoothing_mixes_in_an_even_distribution():
    out = OneHot("x", 4, smoothing=0.2)({"x": LABELS})["x"]
    np.testing.assert_allclose(out, 0.8 * np.eye(4)[LABELS] + 0.05, rtol=1e-6)


def test_a_label_that_is_not_a_class_is_named_on_the_host_and_nan_on_the_device():
    for labels in ([3, 0, 5, 1], [3, 0, -1, 1]):
        data = {"label": np.array(labels, np.int32)}
        with pytest.raises(
            ValueError, match=rf"record 2.*OneHot: leaf 'label' holds {labels[2]}, which is not"
        ):
            next(DataLoader(data, batch_size=4, operators=[OneHot("label", 5)]).host_batches())
        out = np.asarray(OneHot("label", 5, on="device")(data)["label"])
        assert np.isnan(out[2]).all()
        assert np.array_equal(out[[0, 1, 3]], np.eye(5)[[3, 0, 1]])
    few = np.array([3, 250], np.uint8)  # of a dtype that does not hold the number of classes
    for on in ("host", "device"):
        assert OneHot("x", 1000, on=on)({"x": few})["x"].argmax(-1).tolist() == [3, 250]
    with pytest.raises(RowError, match="holds 9, which is not a class: there are 9, from 0 to 8"):
        OneHot("x", 9)({"x": ragged_leaf([LABELS[0], np.array([9], np.uint8)])})


def test_what_it_cannot_do_is_refused():
    make: Any = OneHot
    for settings, message in (
        ({"num_classes": 0}, "num_classes must be a positive int"),
        ({"smoothing": 2}, r"smoothing must lie in \[0, 1\]"),
        ({"smoothing": 0.1, "dtype": "int8"}, "dtype='int8' does not hold .* use a float dtype"),
        ({"dtype": "complex64"}, "dtype='complex64' does not hold"),
        ({"dtype": "int8", "on": "device"}, "not a class by NaN, which int8 does not hold: use a"),
    ):
        with pytest.raises(ValueError, match=message):
            make("x", **{"num_classes": 3, **settings})
    with pytest.raises(ValueError, match=r"leaf 'x' is float32\[\] where class numbers are needed"):
        DataLoader({"x": np.ones(4, np.float32)}, batch_size=2, operators=[make("x", 3)])
