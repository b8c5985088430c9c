import json
from pathlib import Path

import numpy as np
import pytest

from tests.processes import run_processes

SCRIPT = """
import json
import numpy as np
from jax.sharding import PartitionSpec as P
from loader import DataLoader, DevicePrefetcher, MeshSharder, Shuffle

axes, rules, microbatches, *devices = json.loads(LAYOUT)
mesh = jax.make_mesh(tuple(axes.values()), tuple(axes))
if devices:  # in this order along the mesh
    mesh = jax.sharding.Mesh(np.array(jax.devices())[devices[0]], tuple(axes))
rules = rules and [(regex, P(*spec)) for regex, spec in rules]

class Source:
    read = []
    def __len__(self): return 37
    def record_spec(self):
        x, number = np.dtype(np.float32), np.dtype(np.int32)
        return {"x": jax.ShapeDtypeStruct((8,), x), "id": jax.ShapeDtypeStruct((), number)}
    def __getitem__(self, index):
        self.read.append(index)
        return {"x": np.arange(8, dtype=np.float32) + 10 * index, "id": np.int32(index)}

loader = DataLoader(Source(), batch_size=16, order=Shuffle(5), epochs=2, microbatches=microbatches,
    sharder=MeshSharder(mesh, rules))
shards = []
for batch in loader:
    shards.append({
        name: [[str(s.index), np.asarray(s.data).tolist()] for s in leaf.addressable_shards]
        for name, leaf in batch.items()
    })
rows = loader._placement().rows
rows = None if rows is None else rows.tolist()
total = jax.jit(lambda b: b["id"].sum())(loader.batch_at(1))  # a collective over what was placed
report({"shards": shards, "read": Source.read, "rows": rows,
    "state": loader.get_state(), "total": int(total)})
jax.distributed.shutdown()
"""

LAYOUTS = {
    "data parallel": [{"data": 8}, None, None],
    "every other shard": [{"data": 8}, None, None, [0, 4, 1, 5, 2, 6, 3, 7]],
    "data by model": [{"data": 4, "model": 2}, [["x", ["data", "model"]], ["id", ["data"]]], None],
    "model over processes": [
        {"model": 2, "data": 4},
        [["x", ["data", "model"]], ["id", ["data"]]],
        None,
    ],
    "replicated": [{"data": 8}, [[".*", []]], None],
    "microbatches": [{"data": 4, "model": 2}, None, 2],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_two_processes_read_and_hold_their_rows_of_the_same_batches(name: str, tmp_path: Path):
    parts = LAYOUTS[name][2]
    script = f"LAYOUT = {json.dumps(json.dumps(LAYOUTS[name]))}\n" + SCRIPT
    results = run_processes(script, 2, 4, tmp_path)
    whole = expected_batches(parts)
    for process, result in enumerate(results):
        assert len(result["shards"]) == len(whole)
        for step, leaves in enumerate(result["shards"]):
            for leaf, shards in leaves.items():
                assert len(shards) == 4
                for index, data in shards:
                    np.testing.assert_array_equal(whole[step][leaf][eval(index)], data)
        assert result["state"] == results[0]["state"]
        assert result["total"] == whole[1]["id"].sum()
        rows = range(16) if result["rows"] is None else result["rows"]
        if name in ("model over processes", "replicated"):
            assert list(rows) == list(range(16))
        elif name == "every other shard":
            assert list(rows) == [row for row in range(16) if row // 2 % 2 == process]
        else:
            column = [row % 8 // 4 if parts else row // 8 for row in rows]
            assert len(rows) == 8
            assert set(column) == {process}
        records = [int(batch["id"].reshape(-1)[row]) for batch in whole for row in rows
                   if batch["valid_mask"].reshape(-1)[row]]  # fmt: skip
        assert result["read"][: len(records)] == records


def expected_batches(parts: int | None) -> list[dict[str, np.ndarray]]:
    from loader import DataLoader, Shuffle

    ids = np.arange(37, dtype=np.int32)
    data = {"x": (np.arange(8) + 10 * ids[:, None]).astype(np.float32), "id": ids}
    loader = DataLoader(data, batch_size=16, order=Shuffle(5), epochs=2, microbatches=parts)
    return list(loader.host_batches())


STREAM = """
import numpy as np
from loader import DevicePrefetcher, MeshSharder
mesh = jax.make_mesh((4, 2), ("data", "model"))
own = [{"x": np.arange(4, dtype=np.float32) + 4 * process + 100 * n} for n in range(3)]
for number, batch in enumerate(DevicePrefetcher(iter(own), MeshSharder(mesh))):
    assert batch["x"].shape == (8,)
    for shard in batch["x"].addressable_shards:
        np.testing.assert_array_equal(shard.data, (np.arange(8) + 100 * number)[shard.index])
report(number)
jax.distributed.shutdown()
"""


def test_a_stream_on_each_process_becomes_one_batch(tmp_path: Path):
    assert run_processes(STREAM, 2, 4, tmp_path) == [2, 2]


NO_MESH = """
import numpy as np
from loader import DataLoader
try:
    next(DataLoader({"x": np.arange(8)}, batch_size=4))
except ValueError as error:
    report(str(error))
jax.distributed.shutdown()
"""


def test_several_processes_need_a_mesh(tmp_path: Path):
    messages = run_processes(NO_MESH, 2, 1, tmp_path)
    assert all("pass DataLoader(..., mesh=mesh)" in message for message in messages)
