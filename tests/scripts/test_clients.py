"""The wirings into frameworks: the plain loop for real, the others as far as we are concerned."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from loader import DataLoader, DefaultBatcher, LoaderCheckpointHandler, MeshSharder, Shuffle

FOLDER = Path(__file__).parents[2] / "scripts" / "clients"
PAGE = (FOLDER / "README.md").read_text()


def client(name: str) -> ModuleType:
    """The file, imported as a user would who has put it beside a script."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their names
    spec.loader.exec_module(module)
    return module


def mesh_of(*axes: str, shape: tuple[int, ...] = (8,)) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, axes, axis_types=(AxisType.Auto,) * len(axes))


def rows(count: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(count * 3.0).reshape(count, 3), "n": np.arange(count)}


def assert_same(got: Any, want: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_the_plain_loop_that_is_killed_has_the_losses_of_one_that_is_not(tmp_path: Path):
    command = [sys.executable, str(FOLDER / "in_flax.py"), str(tmp_path / "killed"), "100000"]
    killed = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    in_flax = client("in_flax")
    assert killed.stdout is not None
    with killed.stdout as lines:
        before = [next(lines).split() for _ in range(12)]
        killed.kill()  # in the middle of a step, or of a save
    killed.wait()
    saved = max(int(path.name) for path in (tmp_path / "killed").iterdir() if path.name.isdigit())
    assert saved >= 5
    whole = list(in_flax.train(str(tmp_path / "whole"), saved + 12))
    assert before == [[str(figure) for figure in line] for line in whole[:12]]
    assert list(in_flax.train(str(tmp_path / "killed"), saved + 12)) == whole[saved:]


def test_in_kauldron_each_iteration_of_a_pipeline_begins_at_the_start():
    mesh = mesh_of("devices")
    loader = DataLoader(
        rows(100),
        batch_size=16,
        order=Shuffle(seed=1),
        sharder=MeshSharder(mesh, rules=[(".*", P(mesh.axis_names))]),
    )
    pipeline = client("in_kauldron").LoaderPipeline(loader=loader)
    assert len(pipeline) == len(iter(pipeline)) == 7
    first, second = iter(pipeline), iter(pipeline)
    for got in (next(first), next(second)):  # as an evaluator does that stops early
        assert_same(got, loader.host_batch_at(0))
    assert_same([*iter(pipeline)], [loader.host_batch_at(step) for step in range(7)])
    assert loader.step == 0


def test_in_kauldron_the_spec_is_that_of_the_host_batches_before_anything_is_read():
    loader = DataLoader(rows(100), batch_size=16, batcher=DefaultBatcher(), remainder="drop")
    pipeline = client("in_kauldron").LoaderPipeline(loader=loader)
    spec = pipeline.element_spec
    batch = next(iter(pipeline))
    assert set(spec) == set(batch) == {"x", "n"}  # no mask
    for name, leaf in batch.items():
        assert (spec[name].shape, spec[name].dtype) == (leaf.shape, leaf.dtype)
    assert iter(pipeline).element_spec == spec


def test_in_kauldron_a_pass_is_saved_and_restored_by_kauldrons_checkpoint_protocol(tmp_path: Path):
    def begin() -> Any:
        loader = DataLoader(rows(100), batch_size=16, order=Shuffle(seed=1), epochs=None)
        return iter(client("in_kauldron").LoaderPipeline(loader=loader))

    def manager(item: Any) -> ocp.CheckpointManager:
        return ocp.CheckpointManager(
            tmp_path, item_handlers={"ds_iter": item.__kd_ocp_handlers__()}
        )

    batches = begin()
    for _ in range(9):
        next(batches)
    with manager(batches) as saving:
        saving.save(9, args=ocp.args.Composite(ds_iter=batches.__kd_ocp_save_args__()))
        want = [next(batches) for _ in range(9)]  # after the save, which may still be under way
    resumed = begin()
    with manager(resumed) as restoring:
        args = ocp.args.Composite(ds_iter=resumed.__kd_ocp_restore_args__())
        value = restoring.restore(9, args=args)["ds_iter"]
    resumed = resumed.__kd_ocp_restore_post__(value)
    assert_same([next(resumed) for _ in range(9)], want)


def test_in_maxtext_passes_have_no_mask_and_each_begins_at_the_start():
    in_maxtext = client("in_maxtext")
    mesh = mesh_of("data", "fsdp", "tensor", shape=(2, 2, 2))
    sharder = in_maxtext.rows_over_all_axes(mesh)
    loader = DataLoader(rows(30), batch_size=16, sharder=sharder)
    assert {leaf.sharding.spec for leaf in loader.batch_spec().values()} == {P(mesh.axis_names)}
    passes = in_maxtext.HostPasses(loader)
    for _ in range(3):  # evaluations that are left after the first batch
        first = next(iter(passes))
        assert set(first) == {"x", "n"}
        assert_same(first["n"], np.arange(16))
    (_, last) = passes
    assert_same(last["n"], [*range(16, 30), 0, 0])


def test_in_maxtext_the_state_of_a_pass_is_text_as_bytes_and_goes_on_exactly():
    in_maxtext = client("in_maxtext")

    def begin() -> Any:
        loader = DataLoader(rows(100), batch_size=16, order=Shuffle(seed=1), epochs=3)
        return iter(in_maxtext.HostPasses(loader))

    batches = begin()
    for _ in range(9):
        next(batches)
    text = batches.get_state().decode()  # what MaxText writes into a file
    want = list(batches)
    assert len(want) == 12
    resumed = begin()
    resumed.set_state(text.encode())
    assert_same(list(resumed), want)
    resumed.set_state(text.encode())  # once more, after its end
    assert_same(list(resumed), want)


def texts(count: int) -> list[dict[str, str]]:
    return [{"text": f"the text with the number {n}" + "." * (n % 40)} for n in range(count)]


def test_in_nanodo_batches_are_arrays_of_tokens_split_over_the_data_axis():
    in_nanodo = client("in_nanodo")
    documents, mesh = in_nanodo.documents(texts(100), None), mesh_of("data")
    train = in_nanodo.packed_batches(documents, 32, 8, mesh, seed=0, epochs=None)
    step = jax.jit(
        lambda batch: batch.sum(), in_shardings=jax.sharding.NamedSharding(mesh, P("data"))
    )
    for batch in (next(train), next(train)):
        assert batch.shape == (8, 32)
        assert step(batch) == np.asarray(batch).sum()
    held_out = in_nanodo.padded_batches(documents, 48, 8, mesh)
    for _ in range(2):
        first = np.asarray(next(iter(held_out)))  # which an evaluator leaves by `break`
        assert bytes((first[3][first[3] > 2] - 3).tolist()).decode() == texts(4)[3]["text"]


def test_in_nanodo_the_loader_itself_is_saved_the_legacy_way(tmp_path: Path):
    in_nanodo = client("in_nanodo")

    def begin() -> DataLoader:
        documents = in_nanodo.documents(texts(100), None)
        return in_nanodo.packed_batches(documents, 32, 8, mesh_of("data"), seed=0, epochs=None)

    checkpointers = {"data": ocp.Checkpointer(LoaderCheckpointHandler())}
    train, resumed = begin(), begin()
    for _ in range(20):
        next(train)
    with ocp.CheckpointManager(tmp_path, checkpointers) as manager:
        manager.save(20, {"data": train})
        restored = manager.restore(20, items={"data": resumed})["data"]
    assert_same([next(restored) for _ in range(20)], [next(train) for _ in range(20)])


def test_every_wiring_is_on_the_page_and_says_what_it_was_tried_with():
    named = re.findall(r"\[`([\w.]+)`\]\(([\w.]+)\)", PAGE)
    assert all(name == link for name, link in named)
    files = {path.name: path.read_text() for path in FOLDER.glob("*.py")}
    assert {name for name, _ in named} == set(files)
    for name, text in files.items():
        tried = r"Tried with flax [\d.]+" if name == "in_flax.py" else r"commit [0-9a-f]{40}\b"
        assert re.search(tried, text), name


@pytest.mark.parametrize("name", ["kauldron", "maxtext", "nanodo", "flax"])
def test_a_wiring_does_not_hide_the_package_that_it_is_for(name: str):
    assert not (FOLDER / f"{name}.py").exists()
