"""The steps of a run that were gone through on paper, on some of its hosts or all."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from loader.records.integers import Int64s
from loader.runtime.paper.needs import Job, needs_of, requests_of
from loader.runtime.paper.replay import Conditions, Run, replay, replay_without_cache

_PAIRS = 10**7  # of a step and a piece that are gone through: a minute or two


@dataclasses.dataclass(frozen=True)
class EpochReads:
    """What a host reads in one epoch, on average. `error` is a part of it: 0 if it is exact."""

    epoch: int
    needed: float
    fetched: float
    requests: float
    num_bytes: float
    error: float = 0.0

    @property
    def hits(self) -> float:
        """The part of what steps needed that was there already."""
        return 1 - min(1.0, self.fetched / self.needed) if self.needed else 0.0


@dataclasses.dataclass(frozen=True)
class Replayed:
    """The runs of these hosts over some steps, of which each is in an epoch."""

    hosts: Sequence[int]
    runs: Sequence[Run]
    epochs: Int64s

    def epoch(self, number: int) -> EpochReads:
        """What was read in one epoch."""
        own = self.epochs == number
        names = ("needed", "fetched", "requests", "num_bytes")
        sums = [[int(getattr(run, name)[own].sum()) for run in self.runs] for name in names]
        return EpochReads(number, *(float(np.mean(each)) for each in sums))

    @property
    def numbers(self) -> list[int]:
        """The epochs that were gone through."""
        return np.unique(self.epochs).tolist()

    @property
    def cold_start_s(self) -> float:
        """How long the loop waits for the first batch, on the host that waits longest."""
        return max(float(run.waited_s[0]) for run in self.runs)

    @property
    def slowest(self) -> tuple[int, float]:
        """The step after the first for which a loop waits longest, and how long."""
        waited = np.max([run.waited_s for run in self.runs], axis=0)
        waited[0] = 0.0
        return self.runs[0].steps[int(waited.argmax())], float(waited.max())

    @property
    def waiting_share(self) -> float:
        """The part of the time that a loop waits, the first batch aside."""
        return max(run.waiting_share for run in self.runs)


def replayed(
    job: Job, steps: range, hosts: Sequence[int], conditions: Conditions, most_bytes: int | None
) -> Replayed:
    """Go through these steps. `ValueError` if one does not fit, or what it reads is not known."""
    epochs = np.array([job.plan.epoch(step) for step in steps])
    if most_bytes is None:
        found = requests_of(job, steps, hosts)
        if found is None:
            raise ValueError(
                "what is read without a cache is known only of sources in which a record is some "
                "bytes of a file: give --cache, such as --cache 50GB"
            )
        runs = [replay_without_cache(steps, *each, conditions) for each in found]
    else:
        needs, sizes = needs_of(job, steps, hosts), job.layout.sizes
        runs = [replay(each, sizes, most_bytes, conditions) for each in needs]
    return Replayed(hosts, runs, epochs)


def hosts_to_replay(job: Job, steps: range) -> list[int]:
    """All hosts, or as many, evenly spread, as can be gone through in a minute or two."""
    some = np.unique(np.linspace(steps.start, steps.stop - 1, 16).astype(np.int64)).tolist()
    pairs = np.mean([len(needs_of(job, range(n, n + 1), [0])[0].pieces) for n in some])
    count = min(job.hosts, max(1, int(_PAIRS / max(1.0, float(pairs)) / len(steps))))
    return np.unique(np.linspace(0, job.hosts - 1, count).astype(np.int64)).tolist()
