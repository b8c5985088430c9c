import asyncio
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp0
import pytest
from orbax.checkpoint import v1 as ocp

from loader import (
    DataLoader,
    DevicePrefetcher,
    LoaderCheckpointHandler,
    LoaderRestore,
    LoaderSave,
    Shuffle,
)
from tests.data import unlike_records

MODEL = {"w": jnp.arange(4.0), "b": jnp.ones(())}


def make(batch_size: int = 4, count: int = 23) -> DataLoader:
    return DataLoader(unlike_records(count), batch_size=batch_size, order=Shuffle(1), epochs=2)


def at_step(step: int, **settings: Any) -> DataLoader:
    made = make(**settings)
    for _ in range(step):
        next(made)
    return made


def documents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Orbax


def test_a_loader_is_saved_with_the_model_in_one_call_of_v1(tmp_path: Path):
    saved = at_step(5)
    ocp.save_checkpointables(str(tmp_path / "checkpoint"), {"model": MODEL, "data": saved})
    restored = make()
    loaded = ocp.load_checkpointables(
        str(tmp_path / "checkpoint"), {"model": MODEL, "data": restored}
    )
    assert restored.get_state() == saved.get_state()
    assert jax.tree.all(jax.tree.map(np.array_equal, loaded["model"], MODEL))
    np.testing.assert_array_equal(next(restored)["id"], next(saved)["id"])
    (document,) = (tmp_path / "checkpoint").rglob("loader.json")  # one, and a person can read it
    assert json.loads(document.read_text())["step"] == 5
    assert '\n "step": 5,' in document.read_text()


def test_a_change_is_allowed_by_restoring_the_loader_from_its_part_of_a_checkpoint(tmp_path: Path):
    ocp.save_checkpointables(str(tmp_path / "c"), {"model": MODEL, "data": at_step(5)})
    other = DataLoader(unlike_records(23), batch_size=4, order=Shuffle(2), epochs=2)
    with pytest.raises(ValueError, match=r"order\.seed: saved"):
        other.restore(tmp_path / "c" / "data")
    other.restore(tmp_path / "c" / "data", allow_changes={"order.seed"})
    assert other.step == 5


def test_an_asynchronous_save_is_of_the_step_at_which_it_was_asked_for(tmp_path: Path):
    saved = at_step(5)
    response = ocp.save_checkpointables_async(str(tmp_path / "c"), {"model": MODEL, "data": saved})
    next(saved)
    response.result()
    restored = make(batch_size=7)
    ocp.load_checkpointables(str(tmp_path / "c"), {"model": MODEL, "data": restored})
    assert (restored.get_state()["step"], restored.get_state()["position"]) == (5, 20)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_v1_says_what_does_not_fit(tmp_path: Path):
    ocp.save_checkpointables(str(tmp_path / "c"), {"model": MODEL, "data": at_step(5)})
    other = at_step(1, count=24)
    before = other.get_state()
    with pytest.raises(ValueError, match=r"data\.length: saved"):
        ocp.load_checkpointables(str(tmp_path / "c"), {"model": MODEL, "data": other})
    assert other.get_state() == before


def test_a_loader_is_an_item_of_v0s_composite(tmp_path: Path):
    with ocp0.CheckpointManager(tmp_path) as manager:
        saved = make()
        states = {}
        for step in (1, 2, 3):
            next(saved)
            states[step] = saved.get_state()
            manager.save(
                step,
                args=ocp0.args.Composite(
                    state=ocp0.args.StandardSave(MODEL), data=LoaderSave(saved)
                ),
            )
        manager.wait_until_finished()
        for step in (1, 2, 3):
            restored = make()
            args = ocp0.args.Composite(
                state=ocp0.args.StandardRestore(MODEL), data=LoaderRestore(restored)
            )
            result = manager.restore(step, args=args)
            assert restored.get_state() == states[step]
            assert jax.tree.all(jax.tree.map(np.array_equal, result.state, MODEL))
        with pytest.raises(ValueError, match=r"data\.length: saved"):
            manager.restore(3, args=ocp0.args.Composite(data=LoaderRestore(make(count=24))))


def test_v0_without_arguments_restores_the_model_and_gives_the_state_of_the_loader(tmp_path: Path):
    saved = at_step(5)
    stream = DevicePrefetcher(iter(grain.MapDataset.range(9).to_iter_dataset()))
    next(stream)
    args = ocp0.args.Composite(
        state=ocp0.args.StandardSave(MODEL), data=LoaderSave(saved), stream=LoaderSave(stream)
    )
    with ocp0.CheckpointManager(tmp_path) as manager:
        manager.save(5, args=args)
    with ocp0.CheckpointManager(tmp_path) as manager:
        result = manager.restore(5)
        allowed = LoaderRestore(allow_changes={"data"})
        with pytest.raises(ValueError, match="needs the loader that is to be restored"):
            manager.restore(5, args=ocp0.args.Composite(data=allowed))
    assert jax.tree.all(jax.tree.map(np.array_equal, result.state, MODEL))
    assert result.data == saved.get_state()
    assert result.stream == stream.get_state()
    restored = make()
    restored.set_state(result.data)
    np.testing.assert_array_equal(next(restored)["id"], next(saved)["id"])
    stream.close()


def test_a_loader_is_one_of_v0s_items_with_a_checkpointer_of_its_own(tmp_path: Path):
    def manager() -> Any:
        handlers = {
            "state": ocp0.Checkpointer(ocp0.StandardCheckpointHandler()),
            "data": ocp0.Checkpointer(LoaderCheckpointHandler()),
        }
        return ocp0.CheckpointManager(tmp_path, handlers)

    saved, restored = at_step(5), make()
    with manager() as writing:
        writing.save(5, items={"state": MODEL, "data": saved})
    with manager() as reading:
        result = reading.restore(5, items={"state": MODEL, "data": restored})
        assert reading.restore(5)["data"] == saved.get_state()
    assert restored.get_state() == saved.get_state()
    assert jax.tree.all(jax.tree.map(np.array_equal, result["state"], MODEL))


def test_item_handlers_name_the_handler_of_a_loader(tmp_path: Path):
    with ocp0.CheckpointManager(
        tmp_path, item_names=("data",), item_handlers={"data": LoaderCheckpointHandler()}
    ) as manager:
        manager.save(5, args=ocp0.args.Composite(data=LoaderSave(at_step(5))))
        assert manager.restore(5)["data"] == at_step(5).get_state()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            lambda: iter(grain.MapDataset.range(9).to_iter_dataset()),
            "got a PrefetchDatasetIterator",
        ),
        (lambda: make().host_batches(), "got a generator: .* or DevicePrefetcher"),
        (lambda: make().from_start(), "got a FromStart"),
        (lambda: make().get_state(), "got a dict"),
    ],
)
@pytest.mark.parametrize("args", [LoaderSave, LoaderRestore])
def test_what_is_neither_a_loader_nor_a_stream_is_refused_at_once(
    given: Any, message: str, args: Any
):
    with pytest.raises(TypeError, match=rf"{args.__name__} takes a DataLoader or .*{message}"):
        args(given())


class Elsewhere:
    """A folder that Orbax is still making, of a release with other names."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def when_there(self) -> Path:
        return self._path


class Awaited(Elsewhere):
    def __await__(self) -> Iterator[Any]:
        return self._path
        yield


def test_what_is_neither_a_path_nor_awaited_is_refused_and_nothing_is_written(tmp_path: Path):
    with pytest.raises(TypeError, match=r"path of a folder, got Elsewhere\..*LoaderSave"):
        make().save(Elsewhere(tmp_path))
    with pytest.raises(TypeError, match="save takes the path of a folder, got int"):
        make().save(3)
    assert not documents(tmp_path)


def test_a_folder_that_is_awaited_itself_is_written_to(tmp_path: Path):
    async def save() -> None:
        await (await at_step(2).save(Awaited(tmp_path)))

    asyncio.run(save())
    assert json.loads((tmp_path / "loader.json").read_text())["step"] == 2


# Files of its own


def test_a_loader_saves_and_restores_itself(tmp_path: Path):
    saved = make()
    for step in range(1, 7):
        next(saved)
        saved.save(tmp_path / "data", keep=2)
        restored = make()
        restored.restore(tmp_path / "data")
        assert restored.get_state() == saved.get_state()
        assert documents(tmp_path / "data")[-1] == f"{step - 1:08d}-step-{step}.json"
    assert documents(tmp_path / "data") == ["00000004-step-5.json", "00000005-step-6.json"]
    saved.seek(2)
    saved.save(tmp_path / "data")  # the newest is the one saved last
    restored = make(batch_size=7)
    restored.restore(tmp_path / "data")
    assert restored.get_state()["position"] == 8
    with pytest.raises(ValueError, match="keep must be an int of at least 1"):
        saved.save(tmp_path / "data", keep=0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"step": 3', '"step": 4'),
        lambda text: "[" * 100_000,
        lambda text: "[" * 30_000,
        lambda text: "7",
        lambda text: text + " " * 2**20,
        lambda text: '{"a": ' + "9" * 5000 + "}",
    ],
)
def test_a_damaged_newest_step_is_passed_over_with_a_warning(damage: Any, tmp_path: Path):
    saved = make()
    for _ in range(3):
        next(saved)
        saved.save(tmp_path)
    newest = tmp_path / documents(tmp_path)[-1]
    newest.write_text(damage(newest.read_text()))
    restored = make()
    with pytest.warns(RuntimeWarning, match=r"passing over .*00000002-step-3\.json: .*damaged"):
        restored.restore(tmp_path)
    assert restored.get_state()["step"] == 2


def test_other_data_is_refused_and_not_passed_over(tmp_path: Path):
    at_step(1).save(tmp_path)
    at_step(2, count=24).save(tmp_path)
    restored = make()
    with pytest.raises(ValueError, match=r"data\.length: saved"):
        restored.restore(tmp_path)
    restored.restore(tmp_path, allow_changes={"data"})
    assert restored.get_state()["step"] == 2


def test_a_folder_without_a_whole_document_says_so(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="holds no state document that is whole"):
        make().restore(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere to restore from"):
        make().restore(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="is a file: name a folder"):
        make().save(tmp_path / "file")


def test_a_save_that_fails_leaves_the_older_steps(tmp_path: Path):
    saved = at_step(1)
    saved.save(tmp_path)
    before = documents(tmp_path)
    next(saved)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # no file may grow beyond 100 bytes
    try:
        with pytest.raises(OSError, match="File too large"):
            saved.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert documents(tmp_path) == before
    saved.save(tmp_path)
    assert documents(tmp_path)[-1].endswith("-step-2.json")


def test_what_else_lies_in_the_folder_is_left_alone(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".00000000-step-9.json.partial-1").write_text("{")  # of a process that was killed
    at_step(1).save(tmp_path)
    make().restore(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
