"""Contestants that need packages of their own: tf.data, torch, datarax.

Each package is imported in the contestant's process only, so none disturbs another's threads. On
devices, batches go through numpy, without a copy where the package allows it, to `jax.device_put`.
"""

import functools
import importlib
import itertools
import os
from typing import Any

import numpy as np
from bench_contest import Batches, Contestant
from bench_contestants import Task, placed
from bench_data import Columns


def framework_contestants(
    task: Task, columns: Columns, workers: tuple[int, ...] = (0, 2)
) -> list[Contestant]:
    """All of them, over columns in memory; torch with each of these numbers of workers."""
    tf = {"tf.data": False, "tf.data, gathers by batch": True}
    contestants = [
        Contestant(
            name,
            functools.partial(_tf_batches, task, columns, by_batch),
            "tf.data",
            "tensorflow",
            task.devices,
            ahead=32,  # it decides by itself
        )
        for name, by_batch in tf.items()
    ]
    contestants += [
        Contestant(
            f"torch{', __getitems__' if by_batch else ''}, {count} workers",
            functools.partial(torch_batches, task, columns, by_batch, count),
            "torch",
            "torch",
            task.devices,
            ahead=3 * count + 3,
        )
        for by_batch in (False, True)
        for count in workers
    ]
    if task.devices > 1:
        return contestants
    ways = {
        "datarax, Pipeline": _datarax_pipeline,
        "datarax, get_batch": _datarax_get_batch,
        "datarax, elements": _datarax_elements,
    }
    contestants += [
        Contestant(
            name,
            functools.partial(make, task, columns),
            "datarax",
            "datarax",
            task.devices,
            ahead=4,
        )
        for name, make in ways.items()
        if task.devices or make is not _datarax_pipeline  # a Pipeline is on a device always
    ]
    return contestants


def _tf_batches(task: Task, columns: Columns, by_batch: bool) -> Batches:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    tf: Any = importlib.import_module("tensorflow")
    count = len(columns)
    if by_batch:
        whole = {name: tf.constant(array) for name, array in columns.arrays.items()}
        numbers = tf.data.Dataset.range(count).shuffle(count, seed=0).repeat()
        dataset = numbers.batch(task.batch_size).map(
            lambda rows: {name: tf.gather(tensor, rows) for name, tensor in whole.items()},
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    else:
        dataset = tf.data.Dataset.from_tensor_slices(columns.arrays)
        dataset = dataset.shuffle(count, seed=0).repeat().batch(task.batch_size)
    return placed(dataset.prefetch(tf.data.AUTOTUNE).as_numpy_iterator(), task.devices)


class _ByBatch:
    """Columns whose whole batch comes from one call, which torch makes if there is such a one."""

    def __init__(self, columns: Any) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns)

    def __getitems__(self, indices: list[int]) -> dict[str, np.ndarray]:
        return self._columns.take(np.array(indices))


def torch_batches(task: Task, columns: Any, by_batch: bool, workers: int) -> Batches:
    torch: Any = importlib.import_module("torch")
    data: Any = importlib.import_module("torch.utils.data")
    loader = data.DataLoader(
        _ByBatch(columns) if by_batch else columns,
        batch_size=task.batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        # One call has made the batch; what is left is to make tensors of its arrays.
        collate_fn=functools.partial(_as_tensors, torch) if by_batch else None,
    )

    def epochs() -> Batches:
        while True:
            for batch in loader:
                yield {name: tensor.numpy() for name, tensor in batch.items()}

    return placed(epochs(), task.devices)


def _as_tensors(torch: Any, batch: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def _datarax_source(columns: Columns) -> Any:
    sources: Any = importlib.import_module("datarax.sources.memory_source")
    nnx: Any = importlib.import_module("flax.nnx")
    config = sources.MemorySourceConfig(shuffle=True)
    return sources.MemorySource(config, dict(columns.arrays), rngs=nnx.Rngs(0, shuffle=0))


def _datarax_pipeline(task: Task, columns: Columns) -> Batches:
    """Its own loop: data on the device, each batch a compiled gather.

    Refused with 0.1.4: every step draws a permutation of its own.
    """
    datarax: Any = importlib.import_module("datarax")
    nnx: Any = importlib.import_module("flax.nnx")
    source, rngs = _datarax_source(columns), nnx.Rngs(0)

    def epochs() -> Batches:
        while True:
            size = task.batch_size
            yield from datarax.Pipeline(source=source, stages=[], batch_size=size, rngs=rngs)

    return epochs()


def _datarax_get_batch(task: Task, columns: Columns) -> Batches:
    """Its source's own batches, which numpy gathers, through its prefetch.

    Refused with 0.1.4 if a whole epoch is looked at: its last batch is of the next permutation.
    """
    source = _datarax_source(columns)

    def epochs() -> Batches:
        while True:
            yield source.get_batch(task.batch_size)

    return _datarax_prefetched(epochs(), task)


def _datarax_elements(task: Task, columns: Columns) -> Batches:
    """The elements of its source, stacked by numpy, through its prefetch."""
    source = _datarax_source(columns)

    def epochs() -> Batches:
        while True:
            elements = iter(source)
            while rows := list(itertools.islice(elements, task.batch_size)):
                yield {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    return _datarax_prefetched(epochs(), task)


def _datarax_prefetched(batches: Batches, task: Task) -> Batches:
    datarax: Any = importlib.import_module("datarax")
    return iter(datarax.prefetch_to_device(batches, size=2)) if task.devices else batches
