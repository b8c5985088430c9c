"""Predictions written back to the records that they are of, whatever the order and the padding."""

import jax
import numpy as np

from loader import DataLoader, Shuffle

data = {"x": np.linspace(0, 1, 103, dtype=np.float32)}
loader = DataLoader(data, batch_size=16, order=Shuffle(seed=0), with_index="record")
predict = jax.jit(lambda batch: batch["x"] ** 2)

predictions = np.full(103, np.nan, np.float32)
with loader:
    for batch in loader:
        record = np.asarray(batch["record"])  # -1 where a row is padding
        valid = record >= 0
        predictions[record[valid]] = np.asarray(predict(batch))[valid]
np.save("predictions.npy", predictions)
print(f"{np.isfinite(predictions).sum()} predictions")
np.testing.assert_allclose(predictions, data["x"] ** 2, rtol=1e-6)
