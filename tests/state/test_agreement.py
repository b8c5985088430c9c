import json
from pathlib import Path
from typing import Any

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
    def fingerprint(self): return {"length": 37}
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
rows = loader._placing.placement.rows
rows = None if rows is None else rows.tolist()
total = jax.jit(lambda b: b["id"].sum())(loader.batch_at(1))  # a collective over what was placed

# Evaluations, left by break, in a run that has begun: each is from step 0, and the run stays.
first, evaluated = next(iter(loader)), []
for _ in range(2):
    for batch in loader.from_start():
        evaluated.append(np.asarray(batch["id"].addressable_shards[0].data).tolist())
        if len(evaluated) % 2 == 0:
            break
second = np.asarray(next(loader)["id"].addressable_shards[0].data).tolist()
report({"shards": shards, "read": Source.read, "rows": rows,
    "evaluated": evaluated, "second": second,
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
    "a microbatch for each device": [{"data": 8}, [["microbatches", ["data"]], [".*", []]], 8],
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
        zero, one = (batch["id"][0][1] for batch in result["shards"][:2])
        assert result["evaluated"] == [zero, one, zero, one]
        assert result["second"] == one
        rows = range(16) if result["rows"] is None else result["rows"]
        if name in ("model over processes", "replicated", "a microbatch for each device"):
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
short = DevicePrefetcher(iter([{"x": own[0]["x"][:3]}]), MeshSharder(mesh), batch_size=8)
(batch,) = short  # the rows of the whole job, of which each process gives half
for shard in batch["valid_mask"].addressable_shards:
    np.testing.assert_array_equal(shard.data, (np.arange(8) % 4 < 3)[shard.index])
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


AGREE = """
import numpy as np
import loader.state.agreement
from loader import DataLoader, Shuffle
loader.state.agreement.AGREE_TIMEOUT_S = 5
mesh = jax.make_mesh((2,), ("data",))
seed, size, count, made = CASES[process]
try:
    if made:
        next(DataLoader({"x": np.arange(count)}, batch_size=size, order=Shuffle(seed), mesh=mesh))
    report("agreed" if made else "no loader")
except (ValueError, TimeoutError) as error:
    report(str(error))
"""


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ((0, 4, 20, True), "agreed"),
        ((1, 4, 20, True), "process 1 has order.seed"),
        ((0, 2, 20, True), "process 1 has batch_size 2 where process 0 has 4"),
        ((0, 4, 22, True), "process 1 has data.length"),
        ((0, 4, 20, False), "process 1 of 2 has not said within 5 s"),
    ],
)
def test_processes_that_would_load_other_things_are_named(other: Any, message: str, tmp_path: Path):
    script = f"CASES = {[(0, 4, 20, True), other]}\n" + AGREE
    reports = run_processes(script, 2, 1, tmp_path)
    assert message in reports[0]
    if other[3] and message != "agreed":
        assert "process 0 has" in reports[1]


PLACED = """
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from loader import DataLoader, MeshSharder
order, axes, spec, x64, microbatches = CASES[process]
mesh = Mesh(np.array(jax.devices())[order].reshape(4 // len(axes), -1)[:, : len(axes)], axes)
jax.config.update("jax_enable_x64", x64)
data = {"x": np.arange(64).reshape(16, 4), "y": np.arange(16.0)}
sharder = MeshSharder(mesh, [("x", P(*spec)), ("y|valid_mask", P("a"))])
try:
    next(DataLoader(data, batch_size=8, sharder=sharder, microbatches=microbatches))
    report("agreed")
except ValueError as error:
    report(str(error))
"""


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (([0, 1, 2, 3], ["a", "b"], ["a"], False, None), "agreed"),
        (([0, 2, 1, 3], ["a", "b"], ["a"], False, None), "process 1 has a mesh"),
        (([0, 1, 2, 3], ["a", "b"], ["b"], False, None), "process 1 has leaf 'x'"),
        (([0, 1, 2, 3], ["a", "b"], [], False, None), "process 1 has leaf 'x'"),
        (([0, 1, 2, 3], ["b", "a"], ["a"], False, None), "process 1 has a mesh"),
        (([0, 1, 2, 3], ["a", "b"], ["a"], True, None), "process 1 has jax_enable_x64 True"),
        (([0, 1, 2, 3], ["a", "b"], ["a"], False, 2), "process 1 has leaf"),
    ],
)
def test_processes_that_would_place_in_other_ways_are_named(
    other: Any, message: str, tmp_path: Path
):
    script = f"CASES = {[([0, 1, 2, 3], ['a', 'b'], ['a'], False, None), other]}\n" + PLACED
    reports = run_processes(script, 2, 2, tmp_path)
    assert message in reports[0]
    if message != "agreed":
        assert "process 0 has" in reports[1]


AGAIN = """
import numpy as np
import loader.state.agreement
from loader import DataLoader
loader.state.agreement.AGREE_TIMEOUT_S = 3
mesh = jax.make_mesh((2,), ("data",))
def make(count): return DataLoader({"x": np.arange(count)}, batch_size=4, mesh=mesh)
if process == 0:  # a loader that the other process does not have
    try:
        next(make(16))
    except TimeoutError as error:
        assert "process 1 of 2 has not said within 3 s" in str(error)
        open(MEETING, "w").close()
else:
    import os, time
    while not os.path.exists(MEETING): time.sleep(0.01)
loader.state.agreement.AGREE_TIMEOUT_S = 60
both = make(20)
next(both)
both.verify_replicas()
report("agreed")
"""


def test_an_agreement_that_failed_does_not_shift_the_later_ones(tmp_path: Path):
    script = f"MEETING = {str(tmp_path / 'meeting')!r}\n" + AGAIN
    assert run_processes(script, 2, 1, tmp_path) == ["agreed", "agreed"]


WITHOUT_STORE = """
from loader.records.jax_settings import key_value_store
assert key_value_store() is not None
sys.modules["jax._src.distributed"] = None  # as if it were gone
assert key_value_store() is None
"""


@pytest.mark.parametrize("seed", [0, 1])
def test_without_the_store_of_jax_a_collective_compares(seed: int, tmp_path: Path):
    script = f"CASES = {[(0, 4, 20, True), (seed, 4, 20, True)]}\n" + WITHOUT_STORE + AGREE
    reports = run_processes(script, 2, 1, tmp_path)
    assert ("agreed" if seed == 0 else "process 1 has order.seed") in reports[0]


REPLICAS = """
import numpy as np
from jax.sharding import PartitionSpec as P
from loader import DataLoader, MeshSharder
mesh = jax.make_mesh((2,), ("data",))
def skewed(rows): return {**rows, "y": rows["x"] + (process if SKEWED else 0)}
loader = DataLoader({"x": np.arange(20)}, batch_size=4, operators=[skewed],
    sharder=MeshSharder(mesh, [("x", P("data")), ("y", P()), ("valid_mask", P("data"))]))
next(loader)
try:
    loader.verify_replicas()
    report("equal")
except ValueError as error:
    report(str(error))
"""


@pytest.mark.parametrize("skewed", [False, True])
def test_replicas_that_differ_are_named(skewed: bool, tmp_path: Path):
    reports = run_processes(f"SKEWED = {skewed}\n" + REPLICAS, 2, 1, tmp_path)
    for text in reports:
        assert ("processes 0 and 1 hold leaf 'y' at" in text) if skewed else text == "equal"
