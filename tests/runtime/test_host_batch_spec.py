from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from loader import DataLoader, Shuffle
from loader.records.spec import spec_of
from tests.data import unlike_records
from tests.processes import run_processes

SCRIPT = """
import numpy as np
from loader import DataLoader, MeshSharder
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",))
data = {"x": np.arange(74.0).reshape(37, 2), "id": np.arange(37)}
found = []
for microbatches, rules in ((None, None), (2, None), (None, [(".*", P())])):
    loader = DataLoader(
        data, batch_size=16, microbatches=microbatches, sharder=MeshSharder(mesh, rules)
    )
    spec, whole = loader.host_batch_spec(), loader.batch_spec()
    given = [
        {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in batch.items()}
        for batch in loader.host_batches()
    ]
    said = {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in spec.items()}
    assert given == [said] * 3, (given, said)
    found.append([said["x"], list(whole["x"].shape)])
report(found)
jax.distributed.shutdown()
"""


def test_on_two_processes_it_is_of_the_rows_of_each(tmp_path: Path):
    half, cut, whole = [[8, 2], "float64"], [[2, 4, 2], "float64"], [[16, 2], "float64"]
    expected = [[half, [16, 2]], [cut, [2, 8, 2]], [whole, [16, 2]]]
    assert run_processes(SCRIPT, count=2, devices=2, folder=tmp_path) == [expected] * 2


@pytest.mark.parametrize(
    "settings", [{}, {"microbatches": 2}, {"with_index": "n"}, {"mesh": "data"}], ids=str
)
def test_host_batches_are_as_it_says(settings: dict[str, Any]):
    if "mesh" in settings:
        settings = {"mesh": jax.make_mesh((1,), ("data",))}
    data = {**unlike_records(23), "wide": np.arange(23, dtype=np.int64) * 2**40}
    loader = DataLoader(data, batch_size=4, order=Shuffle(1), **settings)
    spec = loader.host_batch_spec()
    assert spec["wide"].dtype == np.int64
    for batch in loader.host_batches():
        assert spec_of(batch) == spec
