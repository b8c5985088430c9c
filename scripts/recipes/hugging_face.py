"""A Hugging Face data set, as it is: any record by number, in an order of our own."""

import datasets
import numpy as np

from loader import DataLoader, Shuffle
from operators import PadTokens, Select, Tokenize

# Or datasets.load_dataset(name, split="train"). Leave out its shuffle: it makes reading slow.
data = datasets.Dataset.from_dict(
    {"text": [f"text {n}" + "!" * (n % 5) for n in range(100)], "label": list(range(100))}
)
loader = DataLoader(
    data,
    batch_size=16,
    order=Shuffle(seed=0),
    operators=[Tokenize("text"), PadTokens("tokens", 16), Select("tokens", "loss_mask", "label")],
)
seen = []
with loader:
    for batch in loader:
        seen += np.asarray(batch["label"])[np.asarray(batch["valid_mask"])].tolist()
print(f"{len(seen)} records, tokens {batch['tokens'].shape}")
assert sorted(seen) == list(range(100))
assert seen != sorted(seen)
