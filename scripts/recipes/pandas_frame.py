"""A pandas DataFrame, by its columns."""

import numpy as np
import pandas as pd

from loader import DataLoader, Shuffle

random = np.random.default_rng(0)
frame = pd.DataFrame({"age": random.integers(18, 90, 100), "height": random.random(100)})
frame["id"] = np.arange(100)

total, ids = 0.0, []
with DataLoader(frame, batch_size=16, order=Shuffle(seed=0)) as loader:
    for batch in loader:
        valid = np.asarray(batch["valid_mask"])
        total += float(np.asarray(batch["height"])[valid].sum())
        ids += np.asarray(batch["id"])[valid].tolist()
print(f"mean height {total / len(ids):.4f} of {len(ids)}")
assert sorted(ids) == list(range(100))
np.testing.assert_allclose(total, frame["height"].sum(), rtol=1e-5)
