"""The workload in which a record has many small columns: against numpy's own takes of them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from bench_contest import Contest, Promise, Result
from bench_contestants import Task, gristmill, limit
from bench_data import Columns
from bench_frameworks import framework_contestants
from bench_timing import Pace, hold

_COLUMNS, _RECORDS, _BATCH = 30, 100_000, 4096


def tables(pace: Pace) -> Iterator[Result]:
    """30 columns of a float each with a label, 100 000 records, shuffled; host and one device."""
    random = np.random.default_rng(0)
    floats = {f"x{n}": random.random(_RECORDS, np.float32) for n in range(_COLUMNS)}
    columns = Columns({**floats, "label": np.arange(_RECORDS, dtype=np.int32)})
    workers = (0,) if pace.quick else (0, 2)
    # Those that go record by record are left out.
    by_batch = ("gathers by batch", *(f"__getitems__, {count} workers" for count in workers))
    for devices, place in ((0, "host"), (1, "one device")):
        task = Task(columns, _BATCH, devices)
        contestants = (
            limit("numpy takes", lambda rows: _takes(columns, rows, "raise"), task),
            limit("numpy takes, no check", lambda rows: _takes(columns, rows, "clip"), task),
            gristmill(task, lambda: columns.arrays),
            gristmill(task, lambda: columns.arrays, prefetch=0),
            *(
                c
                for c in framework_contestants(task, columns, workers)
                if c.name.endswith(by_batch)
            ),
        )
        shapes = {name: ((), array.dtype.name) for name, array in columns.arrays.items()}
        promise = Promise(_RECORDS, shapes, columns.take, 2 * _BATCH if pace.quick else _RECORDS)
        yield hold(Contest(f"tables, {place}, batch {_BATCH}", contestants, promise), pace)


def _takes(columns: Columns, rows: np.ndarray, mode: Any) -> dict[str, np.ndarray]:
    return {name: array.take(rows, mode=mode) for name, array in columns.arrays.items()}
