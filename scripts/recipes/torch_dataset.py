"""A map-style `torch.utils.data.Dataset`, as it is; its tensors count as arrays."""

import numpy as np
import torch
from torch.utils.data import Dataset

from loader import DataLoader, Shuffle, Threads


class Squares(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return {"x": torch.tensor([index, index + 0.5]), "square": index**2}


seen = {}
with DataLoader(Squares(), batch_size=16, order=Shuffle(seed=0), workers=Threads(2)) as loader:
    for batch in loader:
        valid = np.asarray(batch["valid_mask"])
        numbers = np.asarray(batch["x"])[valid, 0].astype(int).tolist()
        seen.update(zip(numbers, np.asarray(batch["square"])[valid].tolist(), strict=True))
print(f"{len(seen)} records, x {batch['x'].shape}")
assert seen == {n: n**2 for n in range(100)}
