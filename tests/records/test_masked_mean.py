from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from loader import DataLoader, masked_mean
from tests.data import unlike_records


def test_it_is_the_mean_of_what_the_mask_says():
    losses = np.arange(24.0).reshape(4, 3, 2) ** 2
    for mask in (np.array([True, False, True, True]), np.arange(12).reshape(4, 3) % 5 > 1):
        assert float(masked_mean(losses, mask)) == pytest.approx(losses[mask].mean())
    weights = np.array([0.25, 0.0, 0.5, 0.0])
    assert float(masked_mean(losses[:, 0, 0], weights)) == pytest.approx(losses[2, 0, 0] * 2 / 3)
    assert float(masked_mean(jnp.ones(4096, jnp.bfloat16), np.ones(4096))) == 1.0


def test_where_nothing_is_valid_it_is_zero_and_so_is_its_gradient():
    losses = jnp.array([1.0, jnp.nan, 3.0])
    assert float(masked_mean(losses, jnp.zeros(3, bool))) == 0.0
    gradient = jax.grad(lambda x: masked_mean(x**2, jnp.zeros(3, bool)))(jnp.arange(3.0))
    np.testing.assert_array_equal(gradient, np.zeros(3))
    # What is masked has no influence, whatever it is.
    assert float(masked_mean(losses, jnp.array([True, False, True]))) == 2.0
    gradient = jax.grad(lambda x: masked_mean(x, jnp.array([True, False, True])))(losses)
    np.testing.assert_array_equal(gradient, [0.5, 0.0, 0.5])


@pytest.mark.parametrize("axes", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("microbatches", [None, 2])
def test_it_works_under_jit_on_a_mesh_for_the_batches_of_a_loader(axes: Any, microbatches: Any):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(axes,) * 2)
    records = unlike_records(25)
    loader = DataLoader(records, batch_size=16, mesh=mesh, microbatches=microbatches)

    def loss(batch: Any) -> Any:
        return masked_mean(batch["x"], batch["valid_mask"])

    step = jax.jit(loss if microbatches is None else jax.vmap(loss))
    for number, batch in enumerate(loader):
        means = np.atleast_1d(np.asarray(step(batch)))
        rows = records["x"][16 * number : 16 * number + 16]
        parts = np.split(rows, [8]) if microbatches else [rows]
        np.testing.assert_allclose(means, [part.mean() if len(part) else 0 for part in parts])
    small = DataLoader(records, batch_size=32, microbatches=4)
    means = jax.vmap(loss)(next(small))
    assert np.isfinite(np.asarray(means)).all()


def test_a_mask_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"it has the shape \(4,\) and the losses \(\)"):
        masked_mean(jnp.zeros(4).mean(), jnp.ones(4))
    with pytest.raises(ValueError, match=r"\(3,\) and the losses \(4, 3\)"):
        masked_mean(jnp.zeros((4, 3)), jnp.ones(3))
