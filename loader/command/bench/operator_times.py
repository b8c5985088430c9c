"""How long each host operator of a loader takes for a batch, one after the other on their own."""

import time

import numpy as np

from loader.data_loader import DataLoader
from loader.sources.reading import read_rows
from loader.transforms.bound_transform import apply_transforms

_BATCHES = 3  # the shortest time of so many is taken


def operators_ms(loader: DataLoader) -> dict[str, float]:
    """Milliseconds for a batch by label, in the order in which they run; it does not move."""
    end = loader.plan.end
    steps = range(_BATCHES if end is None else min(_BATCHES, end))
    runs = [_one_batch(loader, step) for step in steps]
    labels = [operator.label for operator in loader.operators if operator.on == "host"]
    times: dict[str, float] = {}
    for label, own in zip(labels, zip(*runs, strict=True), strict=True):
        times[label] = times.get(label, 0.0) + min(own)
    return times


def _one_batch(loader: DataLoader, step: int) -> list[float]:
    work = loader.pipeline
    positions = np.arange(*loader.plan.span(step))
    indices = work.records(int(positions[0]), int(positions[-1]) + 1)
    rows, there = read_rows(work.source, indices, ragged=True)
    if there is not None:
        positions = positions[there]
    times = []
    for stage in work.transforms:
        began = time.perf_counter()
        if positions.size:  # else a filter has let nothing pass
            rows, kept = apply_transforms([stage], rows, positions)
            positions = positions if kept is None else positions[kept]
        times.append(1e3 * (time.perf_counter() - began))
    return times
