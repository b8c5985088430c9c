"""Other weights of a mixture at a restart: each component goes on in its own epoch."""

import numpy as np

from loader import DataLoader, Mixture

web = {"id": np.arange(300)}
books = {"id": 1000 + np.arange(200)}


def mixed(web_weight, books_weight):
    mixture = Mixture({"web": (web, web_weight), "books": (books, books_weight)}, seed=0)
    return DataLoader(mixture, batch_size=10, epochs=None)


def ids(loader, batches):
    return [id for _ in range(batches) for id in next(loader)["id"].tolist()]


with mixed(3, 1) as loader:
    seen = ids(loader, 20)
    loader.save("state")

with mixed(1, 1) as loader:
    loader.restore("state", allow_changes={"data.shares"})
    more = ids(loader, 10)
from_books = [sum(id >= 1000 for id in some) for some in (seen, more)]
print(f"{from_books[0]} of 200 records from books, then {from_books[1]} of 100")
assert from_books == [50, 50]
assert len({*seen, *more}) == 300  # nothing is repeated
