"""Streams without record numbers, saved and restored: one document for each process."""

import json
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp0
import pytest
from orbax.checkpoint import v1 as ocp

from loader import DataLoader, DevicePrefetcher, LoaderRestore, LoaderSave, Shuffle
from tests.processes import run_processes

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* never awaited:RuntimeWarning")


def filtered() -> Any:
    dataset = grain.MapDataset.range(90).filter(lambda n: n % 3 == 0)
    return iter(dataset.to_iter_dataset().batch(4, drop_remainder=True))


def of_grains_data_loader() -> Any:
    sampler = grain.samplers.IndexSampler(
        60, grain.sharding.NoSharding(), shuffle=True, seed=3, num_epochs=2
    )
    source: Any = range(60)
    return iter(
        grain.DataLoader(
            data_source=source, sampler=sampler, operations=[grain.transforms.Batch(4)]
        )
    )


class Counting:
    """Numbers 0, 1, 2, ...; what the state holds besides is given."""

    def __init__(self, more: Any = None) -> None:
        self.at, self.more = 0, more

    def __iter__(self) -> "Counting":
        return self

    def __next__(self) -> Any:
        self.at += 1
        return np.array([self.at - 1])

    def get_state(self) -> Any:
        return {"at": self.at, "more": self.more}

    def set_state(self, state: Any) -> None:
        self.at, self.more = state["at"], state["more"]


def after(step: int, batches: Any) -> DevicePrefetcher[Any]:
    prefetcher = DevicePrefetcher(batches)
    for _ in range(step):
        next(prefetcher)
    return prefetcher


def rest(prefetcher: Any) -> list[Any]:
    with prefetcher:
        return [np.asarray(next(prefetcher)).tolist() for _ in range(3)]


def save_v1(saved: Any, folder: Path) -> None:
    ocp.save_checkpointables(str(folder / "c"), {"data": saved})


def restore_v1(restored: Any, folder: Path) -> None:
    ocp.load_checkpointables(str(folder / "c"), {"data": restored})


def save_v0(saved: Any, folder: Path) -> None:
    with ocp0.CheckpointManager(folder) as manager:
        manager.save(7, args=ocp0.args.Composite(data=LoaderSave(saved)))


def restore_v0(restored: Any, folder: Path) -> None:
    with ocp0.CheckpointManager(folder) as manager:
        manager.restore(7, args=ocp0.args.Composite(data=LoaderRestore(restored)))


def save_itself(saved: Any, folder: Path) -> None:
    saved.save(folder)


def restore_itself(restored: Any, folder: Path) -> None:
    restored.restore(folder)


WAYS = {
    "Orbax v1": (save_v1, restore_v1),
    "Orbax v0": (save_v0, restore_v0),
    "its own folder": (save_itself, restore_itself),
}
each_way = pytest.mark.parametrize("way", WAYS)


@each_way
@pytest.mark.parametrize("make", [filtered, of_grains_data_loader, Counting])
def test_a_stream_goes_on_where_it_was_saved(make: Any, way: str, tmp_path: Path):
    save, restore = WAYS[way]
    saved = after(3, make())
    save(saved, tmp_path)
    expected = rest(saved)
    for moved in (0, 5):
        restored = after(moved, make())
        restore(restored, tmp_path)
        assert rest(restored) == expected


@each_way
def test_the_document_says_of_which_process_it_is_and_has_a_checksum(way: str, tmp_path: Path):
    WAYS[way][0](after(3, Counting(b"\x00\xff")), tmp_path)
    (file,) = tmp_path.rglob("*stream-0-of-1.json")
    document = json.loads(file.read_text())
    assert (document["kind"], document["process"], document["processes"]) == ("stream", 0, 1)
    assert document["state"] == {"at": 3, "more": {"bytes": "AP8="}}
    assert len(document["checksum"]) == 16


STATES: list[Any] = [
    b"\x00\xff",
    (1, (2, None), [3.5, True]),
    {1: "a", "b": {"bytes": 2}},
    {"tuple": [1]},
    np.arange(6, dtype=np.uint16).reshape(2, 3),
    np.int64(2**62),
    float("inf"),
    {},
]


@pytest.mark.parametrize("state", STATES, ids=str)
def test_a_state_comes_back_with_the_same_types(state: Any, tmp_path: Path):
    after(1, Counting(state)).save(tmp_path)
    restored = after(0, Counting())
    restored.restore(tmp_path)
    more = restored.get_state()["more"]
    assert repr(more) == repr(state)
    assert type(more) is type(state)


@each_way
def test_a_state_that_cannot_be_written_is_refused_at_save_by_name(way: str, tmp_path: Path):
    with pytest.raises(TypeError, match=r"state\['more'\]\['a'\]\[1\] is a builtins\.set, which"):
        WAYS[way][0](after(1, Counting({"a": [0, {1}]})), tmp_path)
    with pytest.raises(TypeError, match="list_iterator has no get_state and set_state, nor"):
        WAYS[way][0](after(0, iter([])), tmp_path / "other")
    assert not list(tmp_path.rglob("*stream-*"))


def renamed_to_two_processes(file: Path) -> None:
    file.rename(file.with_name(file.name.replace("0-of-1", "0-of-2")))


def without_a_digit(file: Path) -> None:
    file.write_text(file.read_text().replace('"at": 3', '"at": 4'))


def of_process_1(file: Path) -> None:
    file.write_text(file.read_text().replace('"process": 0', '"process": 1'))


def half_of_it(file: Path) -> None:
    file.write_text(file.read_text()[:40])


@each_way
@pytest.mark.filterwarnings("ignore:passing over:RuntimeWarning")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed_to_two_processes, r"saved on 2 process\(es\), and here there are 1"),
        (without_a_digit, "the checksum of .* does not match its contents"),
        (of_process_1, "the checksum of .* does not match its contents"),
        (half_of_it, "is no JSON"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_stream_stays_where_it_was(
    change: Any, message: str, way: str, tmp_path: Path
):
    save, restore = WAYS[way]
    save(after(3, Counting()), tmp_path)
    (file,) = tmp_path.rglob("*stream-0-of-1.json")
    change(file)
    restored = after(1, Counting())
    refused: Any = ValueError
    if way == "its own folder" and change is not renamed_to_two_processes:
        refused, message = FileNotFoundError, "holds no save of a stream that is whole on all 1"
    with pytest.raises(refused, match=message):
        restore(restored, tmp_path)
    assert restored.get_state() == {"at": 1, "more": None}


@each_way
def test_a_stream_and_a_loader_are_not_restored_from_one_another(way: str, tmp_path: Path):
    save, restore = WAYS[way]
    loader = DataLoader({"x": np.arange(20)}, batch_size=4)
    save(loader, tmp_path / "loader")
    save(after(3, Counting()), tmp_path / "stream")
    with pytest.raises(ValueError, match=r"of a DataLoader.*: restore .* into one"):
        restore(after(0, Counting()), tmp_path / "loader")
    with pytest.raises(ValueError, match=r"of a stream: restore .* into a DevicePrefetcher"):
        restore(loader, tmp_path / "stream")


def test_an_allowed_change_has_no_effect_on_a_stream_and_is_refused(tmp_path: Path):
    save_v0(after(3, Counting()), tmp_path)
    args = LoaderRestore(after(0, Counting()), allow_changes={"data"})
    with (
        ocp0.CheckpointManager(tmp_path) as manager,
        pytest.raises(ValueError, match="has no effect on a stream"),
    ):
        manager.restore(7, args=ocp0.args.Composite(data=args))


def test_a_folder_keeps_the_newest_saves_and_a_damaged_one_is_passed_over(tmp_path: Path):
    prefetcher = after(0, Counting())
    for _ in range(4):
        next(prefetcher)
        prefetcher.save(tmp_path, keep=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["00000002-stream-0-of-1.json", "00000003-stream-0-of-1.json"]
    half_of_it(tmp_path / names[1])
    with pytest.warns(RuntimeWarning, match=f"passing over .*{names[1]}: .*is no JSON"):
        prefetcher.restore(tmp_path)
    assert prefetcher.get_state()["at"] == 3
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere to restore from"):
        prefetcher.restore(tmp_path / "nowhere")


def save_by_grain(saved: Any, folder: Path) -> None:
    with ocp0.CheckpointManager(folder) as manager:
        manager.save(7, args=ocp0.args.Composite(data=grain.checkpoint.CheckpointSave(saved)))


def restore_by_grain(restored: Any, folder: Path) -> None:
    with ocp0.CheckpointManager(folder) as manager:
        args = grain.checkpoint.CheckpointRestore(restored)
        manager.restore(7, args=ocp0.args.Composite(data=args))


def a_loader() -> DataLoader:
    return DataLoader(np.arange(100), batch_size=4, order=Shuffle(3))


@pytest.mark.parametrize("make", [a_loader, lambda: DevicePrefetcher(filtered())])
def test_grains_own_checkpoint_save_restores_a_loader_and_a_stream(make: Any, tmp_path: Path):
    saved = make()
    for _ in range(2):
        next(saved)
    save_by_grain(saved, tmp_path)
    restored = make()
    restore_by_grain(restored, tmp_path)
    for _ in range(3):
        for one, other in zip(*map(jax.tree.leaves, (next(restored), next(saved))), strict=True):
            np.testing.assert_array_equal(one, other)
    restored.close()
    saved.close()


def test_grains_own_checkpoint_save_refuses_a_state_of_bytes_at_save(tmp_path: Path):
    with (
        DevicePrefetcher(of_grains_data_loader()) as stream,
        pytest.raises(TypeError, match="bytes is not JSON serializable"),
    ):
        save_by_grain(stream, tmp_path)


TWO = """
import numpy as np
import orbax.checkpoint as ocp0
from orbax.checkpoint import v1 as ocp
from pathlib import Path
from loader import DevicePrefetcher, LoaderSave, LoaderRestore
from tests.state.test_streams import Counting, after

mesh = jax.make_mesh((2,), ("data",))
everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
folder, model = Path(FOLDER), {"w": jax.device_put(np.arange(4.0), everywhere)}
at = 10 * (process + 1)  # each process is at a place of its own
saved = after(at, Counting(str(process)))
saved.save(folder / "own")
ocp.save_checkpointables(str(folder / "v1"), {"model": model, "data": saved})
with ocp0.CheckpointManager(folder / "v0") as manager:
    manager.save(7, args=ocp0.args.Composite(data=LoaderSave(saved)))

seen = []
def place(restore):
    stream = after(0, Counting())
    restore(stream)
    seen.append(stream.get_state())

place(lambda stream: stream.restore(folder / "own"))
place(lambda stream: ocp.load_checkpointables(str(folder / "v1"), {"model": model, "data": stream}))
with ocp0.CheckpointManager(folder / "v0") as manager:
    place(lambda stream: manager.restore(7, args=ocp0.args.Composite(data=LoaderRestore(stream))))

next(saved)  # a save that one process did not finish: both go on from the one before it
saved.save(folder / "own")
if process == 1:
    (folder / "own" / "00000001-stream-1-of-2.json").unlink()
jax.experimental.multihost_utils.sync_global_devices("unlinked")
place(lambda stream: stream.restore(folder / "own"))

if process == 1:  # a damaged document of one process: neither is restored
    file, = (folder / "v0").rglob("stream-1-of-2.json")
    file.write_text("{")
jax.experimental.multihost_utils.sync_global_devices("damaged")
stream = after(0, Counting())
try:
    file, = (folder / "v0").rglob("stream-0-of-2.json")
    stream.restore(file.parent)
except ValueError as error:
    seen += [stream.get_state()["at"], str(error)]
for name in ("one", "one-v1/data"):  # what a single process has saved
    stream = after(0, Counting())
    try:
        stream.restore(folder / name)
    except ValueError as error:
        seen += [stream.get_state()["at"], str(error)]
report(seen)
jax.distributed.shutdown()
"""


def test_each_of_two_processes_has_its_own_document(tmp_path: Path):
    script = f"import jax.experimental.multihost_utils\nFOLDER = {str(tmp_path)!r}\n" + TWO
    alone = after(3, Counting("one"))
    alone.save(tmp_path / "one")
    ocp.save_checkpointables(str(tmp_path / "one-v1"), {"data": alone})
    for process, seen in enumerate(run_processes(script, 2, 1, tmp_path)):
        states, (untouched, refusal, *others) = seen[:4], seen[4:]
        assert states == [{"at": 10 * (process + 1), "more": str(process)}] * 4
        assert untouched == 0
        assert "is no JSON" in refusal
        assert others[::2] == [0, 0]
        assert all(
            "saved on 1 process(es), and here there are 2" in words for words in others[1::2]
        )
    for name in ("own", "v1/data"):  # and one process is given neither half
        with pytest.raises(ValueError, match=r"saved on 2 process\(es\), and here there are 1"):
            after(0, Counting()).restore(tmp_path / name)
