"""Contestants over records that can be asked for by number: bare numpy, Gristmill, Grain.

All deliver dicts of arrays, shuffled anew in each epoch, for ever. Those for devices have their
batches on the default device, or split over a mesh of all devices, before they count as delivered.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import grain
import jax
import numpy as np
from bench_contest import Batches, Contestant
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from loader import DataLoader, Shuffle, Threads
from loader.records.words import cores

_AHEAD = 2  # batches on the device ahead of the loop, for all
_RECORDS_AHEAD = 64  # of Grain's threads; for each record it walks them all, so more is slower


@dataclasses.dataclass(frozen=True)
class Task:
    """What to deliver: records by number, in batches, on the host or on so many devices."""

    records: Any  # with __len__ and __getitem__, for those that read record by record
    batch_size: int
    devices: int = 0


def mesh_of_all() -> Mesh:
    return Mesh(np.array(jax.devices()), ("data",))


def target(devices: int) -> NamedSharding | None:
    """Where batches go: split over all devices if there are several."""
    return NamedSharding(mesh_of_all(), PartitionSpec("data")) if devices > 1 else None


def placed(batches: Batches, devices: int) -> Batches:
    """Host batches put onto devices a little ahead of the loop, as Flax's documentation does it."""
    if not devices:
        yield from batches
        return
    where = target(devices)
    ahead: collections.deque[Any] = collections.deque()
    for batch in batches:
        ahead.append(jax.device_put(batch, where))
        if len(ahead) > _AHEAD:
            yield ahead.popleft()


def _ahead(task: Task) -> int:
    return _AHEAD + 1 if task.devices else 0


def limit(name: str, take: Callable[[np.ndarray], dict[str, Any]], task: Task) -> Contestant:
    """The least that can be done: a permutation, and the rows of each batch."""

    def make() -> Batches:
        return placed(_shuffled(take, len(task.records), task.batch_size), task.devices)

    return Contestant(name, make, "limit", devices=task.devices, ahead=_ahead(task))


def _shuffled(
    take: Callable[[np.ndarray], dict[str, Any]], num_records: int, batch_size: int
) -> Batches:
    random = np.random.default_rng(0)
    while True:
        order = random.permutation(num_records)
        for start in range(0, num_records - batch_size + 1, batch_size):
            yield take(order[start : start + batch_size])
        if rest := num_records % batch_size:
            yield take(order[-rest:])


def gristmill(
    task: Task,
    source: Callable[[], Any],
    *,
    threads: int = 0,
    workers: Any = None,
    order: Any = None,
    **settings: Any,
) -> Contestant:
    """This loader; host batches without a device, else placed ones.

    `workers="auto"` is what it does by default. It is one thread here if nothing is said.
    """
    of_order = f", {type(order).__name__}" if order is not None else ""
    name = f"gristmill{of_order}{f', Threads({threads})' if threads else ''}"
    by_default = workers == "auto"
    if workers is not None:
        name += ", defaults" if by_default else f", Processes({workers.count})"
    name += ", prefetch=0" if settings.get("prefetch") == 0 else ""

    def make() -> Batches:
        loader = DataLoader(
            source(),
            batch_size=task.batch_size,
            order=Shuffle(0) if order is None else order,
            epochs=None,
            remainder="carry",
            workers=Threads(threads) if workers is None else workers,
            mesh=mesh_of_all() if task.devices > 1 else None,
            **settings,
        )
        return iter(loader) if task.devices else loader.host_batches()

    # What it may have made before a turn begins: its prefetch, and a batch for each thread.
    most = cores() if by_default else max(1, threads)
    ahead = settings.get("prefetch", 2) + most + 1
    ahead += 0 if workers is None or by_default else workers.window()
    return Contestant(name, make, "gristmill", devices=task.devices, ahead=ahead)


def beside(step: Callable[[], Any], contestant: Contestant) -> Contestant:
    """The same in a loop that does a step with each batch."""

    def make() -> Batches:
        batches = contestant.make()  # now: packages are imported side by side
        return _with_steps(batches, step)

    return dataclasses.replace(contestant, make=make)


def _with_steps(batches: Batches, step: Callable[[], Any]) -> Batches:
    for batch in batches:
        yield batch
        step()


@dataclasses.dataclass(frozen=True)
class GrainSetting:
    """One way to run a Grain pipeline."""

    name: str
    threads: int = 0
    processes: int = 0
    data_loader: bool = False
    threads_on_records: bool = False  # records are read ahead, then batched

    @property
    def ahead(self) -> int:
        """Batches that lie ready at the most."""
        return 3 * self.threads + 3 * self.processes


GRAIN_SETTINGS = (
    GrainSetting("grain, no threads"),
    GrainSetting("grain, 2 threads", threads=2),
    GrainSetting("grain, 2 threads on records", threads=2, threads_on_records=True),
    GrainSetting("grain.DataLoader", data_loader=True),
    GrainSetting("grain, 2 processes", processes=2),
)


def grain_contestants(
    task: Task,
    operations: tuple[Any, ...] = (),
    settings: tuple[GrainSetting, ...] = GRAIN_SETTINGS,
) -> list[Contestant]:
    """Grain in each of the settings, on devices through `grain.experimental.device_put`."""
    return [
        Contestant(
            f"{setting.name} + device_put" if task.devices else setting.name,
            functools.partial(_grain_batches, task, operations, setting),
            "grain",
            devices=task.devices,
            ahead=setting.ahead + (4 + _AHEAD if task.devices else 0),  # 4: device_put's default
        )
        for setting in settings
    ]


def _grain_batches(task: Task, operations: tuple[Any, ...], setting: GrainSetting) -> Batches:
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # Grain's worker processes ask for it
    if setting.data_loader:
        return placed(iter(_grain_data_loader(task, operations)), task.devices)
    dataset: Any = grain.MapDataset.source(task.records).seed(0).shuffle().repeat()
    for operation in operations:
        random = isinstance(operation, grain.transforms.RandomMap)
        dataset = dataset.random_map(operation) if random else dataset.map(operation)
    ahead = _RECORDS_AHEAD if setting.threads_on_records else 2 * setting.threads
    options = grain.ReadOptions(num_threads=setting.threads, prefetch_buffer_size=ahead)
    if setting.threads_on_records:
        dataset = dataset.to_iter_dataset(options).batch(task.batch_size)
    else:
        dataset = dataset.batch(task.batch_size).to_iter_dataset(options)
    if setting.processes:
        workers = grain.MultiprocessingOptions(setting.processes, per_worker_buffer_size=2)
        dataset = dataset.mp_prefetch(workers)
    if task.devices:
        where = target(task.devices) or jax.devices()[0]
        dataset = grain.experimental.device_put(dataset, where, device_buffer_size=_AHEAD)
    return iter(dataset)


def _grain_data_loader(task: Task, operations: tuple[Any, ...]) -> Any:
    count = len(task.records)
    return grain.DataLoader(
        data_source=task.records,
        sampler=grain.samplers.IndexSampler(count, shuffle=True, seed=0),
        operations=[*operations, grain.transforms.Batch(task.batch_size)],
        worker_count=0,
        read_options=grain.ReadOptions(num_threads=0, prefetch_buffer_size=0),
    )
