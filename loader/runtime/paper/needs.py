"""What the hosts of a job need of stored data, step by step, from its plan."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from loader.order.orders import Order
from loader.order.plan import Plan
from loader.records.integers import Int64s, checked_int
from loader.runtime.paper.layout import Layout

_RECORDS_AT_ONCE = 2**18


@dataclasses.dataclass(frozen=True)
class Job:
    """A run on so many hosts: each has an equal part of the rows of every batch."""

    order: Order
    plan: Plan
    layout: Layout
    hosts: int = 1
    varies_by_epoch: bool = False

    def __post_init__(self) -> None:
        size = self.plan.batch_size
        checked_int("hosts", self.hosts, 1)
        if size % self.hosts:
            fits = [n for n in range(1, size + 1) if size % n == 0]
            near = sorted(sorted(fits, key=lambda n: abs(n - self.hosts))[:2])
            raise ValueError(
                f"batch_size {size} does not divide over {self.hosts} hosts: give "
                f"{' or '.join(map(str, near))} hosts, or a batch_size that it divides"
            )

    @property
    def rows(self) -> int:
        """Of every batch, on each host."""
        return self.plan.batch_size // self.hosts

    def records(self, steps: range, hosts: Sequence[int]) -> tuple[Int64s, Int64s]:
        """The records that some hosts read in these steps, with their groups: a step's of the
        first host, of the second, and so on, then those of the next step."""
        spans = np.array([self.plan.span(step) for step in steps], np.int64).reshape(-1, 2)
        rows = np.add.outer(np.array(hosts) * self.rows, np.arange(self.rows)).ravel()
        positions = spans[:, :1] + rows
        groups = np.arange(len(steps) * len(hosts)).repeat(self.rows)
        real = (positions < spans[:, 1:]).ravel()
        positions, groups = positions.ravel()[real], groups[real]
        length = self.plan.num_records
        records = self.order.records(positions, length)
        return records + positions // length * length if self.varies_by_epoch else records, groups

    def parts(self, steps: range, hosts: Sequence[int]) -> Iterator[range]:
        """The steps, so many at a time that their records fit into memory."""
        at_once = max(1, _RECORDS_AT_ONCE // (self.rows * len(hosts)))
        for first in range(steps.start, steps.stop, at_once):
            yield range(first, min(first + at_once, steps.stop))


@dataclasses.dataclass(frozen=True)
class HostNeeds:
    """The pieces that one host needs in each of some steps."""

    steps: range
    begins: Int64s  # of each step in `pieces`, and the end
    pieces: Int64s

    def __call__(self, step: int) -> list[int]:
        place = step - self.steps.start
        return self.pieces[self.begins[place] : self.begins[place + 1]].tolist()


def needs_of(job: Job, steps: range, hosts: Sequence[int]) -> list[HostNeeds]:
    """What each of these hosts needs in these steps."""
    found = []
    for part in job.parts(steps, hosts):
        groups, pieces = job.layout.pieces(*job.records(part, hosts))
        found.append((groups + (part.start - steps.start) * len(hosts), pieces))
    groups, pieces = (np.concatenate(each) for each in zip(*found, strict=True))
    step, host = np.divmod(groups, len(hosts))
    needs = []
    for number in range(len(hosts)):
        own = np.flatnonzero(host == number)
        begins = np.searchsorted(step[own], np.arange(len(steps) + 1))
        needs.append(HostNeeds(steps, begins, pieces[own]))
    return needs


def requests_of(job: Job, steps: range, hosts: Sequence[int]) -> list[tuple[Int64s, Int64s]] | None:
    """Without a cache: the requests and the bytes of each step, for each of these hosts."""
    calls, sizes = np.zeros((2, len(steps) * len(hosts)), np.int64)
    for part in job.parts(steps, hosts):
        found = job.layout.requests(*job.records(part, hosts))
        if found is None:
            return None
        groups, requests, lengths = found
        groups = groups + (part.start - steps.start) * len(hosts)
        np.add.at(calls, groups, requests)
        np.add.at(sizes, groups, lengths)
    return [(calls[n :: len(hosts)], sizes[n :: len(hosts)]) for n in range(len(hosts))]
