"""The rules by which `gristmill bench` names a bottleneck and gives advice, on figures made up."""

import pytest

from loader.command.bench.measuring import Look
from loader.command.bench.trial import Trial
from loader.command.bench.verdict import advice, bottleneck, is_host_work
from tests.command.bench.looks import seen


@pytest.mark.parametrize(
    ("look", "part"),
    [
        (seen(read=8, place=1), "read"),
        (seen(read=1, operators=3, batch=5), "batch"),
        (seen(threads=4, read=8, operators=4, place=20), "place"),
        (seen(threads=2, read=12, operators=8, place=9), "read"),
        (seen(threads=2, prefetch=0, read=4, operators=1, place=5), "place"),
        (seen(threads=2, prefetch=0, read=5, operators=1, place=4), "read"),
        (seen(threads=3, kind="Processes", operators=12, place=5), "place"),  # by one thread
        (seen(threads=3, kind="Processes", operators=18, place=5), "operators"),
        (seen(read=2, place=1), "overhead"),
        (seen(threads=4, read=8, place=4), "overhead"),  # 3 ms for each of the threads
        (seen(read=2, place=1, arriving_ms=20), "device"),
        (seen(read=1, waiting_ms=2, dispatch=1, arriving_ms=5), "device"),
        (seen(read=9, dispatch=1, arriving_ms=0.5, step_ms=1), "read"),
        (seen(read=9, waiting_ms=0.5, step_ms=10), "step"),
        (seen(prefetch=0, read=4, place=1, waiting_ms=5, step_ms=30), "read"),
    ],
)
def test_the_largest_part_of_the_input_is_the_bottleneck(look: Look, part: str):
    assert bottleneck(look) == part


def test_threads_are_the_advice_where_cores_are_free():
    two, six = (f'workers = {{ kind = "Threads", count = {n} }} under' for n in (2, 6))
    assert two in advice(seen(read=9, busy_cores=0.2), "read")
    assert six in advice(seen(threads=3, read=30, busy_cores=0.2), "read")
    assert advice(seen(read=9, busy_cores=1.8), "read").startswith("read less")
    assert "remedies for batch" in advice(seen(batch=9, busy_cores=1.8), "batch")
    assert "remedies for device" in advice(seen(busy_cores=0.2), "device")


@pytest.mark.parametrize(
    ("look", "part", "is_work"),
    [
        (seen(), "operators", True),
        (seen(), "mapped", True),
        (seen(), "batch", True),
        (seen(busy_cores=1.0), "read", True),  # in Python, record by record
        (seen(busy_cores=0.2), "read", False),  # a wait
        (seen(), "place", False),
        (seen(), "overhead", False),
        (seen(), "device", False),
        (seen(), "step", False),
        (seen(prefetch=0), "operators", False),
        (seen(kind="Processes", busy_cores=None), "operators", True),
        (seen(kind="Processes", busy_cores=None), "overhead", True),  # they hand over
        (seen(kind="Processes", busy_cores=None), "step", False),
    ],
)
def test_threads_and_processes_are_compared_where_workers_are_busy(
    look: Look, part: str, is_work: bool
):
    assert is_host_work(look, part) == is_work


PROCESSES = 'workers = { kind = "Processes", count = 4 }'
THREADS = 'workers = { kind = "Threads", count = 4 }'


@pytest.mark.parametrize(
    ("trial", "faster", "words", "change"),
    [
        (
            Trial(4, now_ms=90.0, threads_ms=100.0, processes_ms=25.0),
            "Processes",
            "processes are 4.0 times as fast: 100.00 ms per batch with Threads(4), 25.00 with "
            "Processes(4), 90.00 as it is",
            f"{PROCESSES} under [loader]: 3.6 times as fast as now",
        ),
        (
            Trial(4, now_ms=80.0, threads_ms=20.0, processes_ms=50.0),
            "Threads",
            "threads are 2.5 times as fast",
            f"{THREADS} under [loader]: 4.0 times as fast as now",
        ),
        (
            Trial(4, now_ms=80.0, threads_ms=20.0, processes_ms=19.0),
            None,
            "no difference that matters",
            f"{THREADS} under [loader]: 4.0 times as fast as now",  # the simpler ones
        ),
        (
            Trial(4, now_ms=25.0, threads_ms=100.0, processes_ms=25.0),
            "Processes",
            "processes are 4.0 times as fast",
            None,
        ),
    ],
)
def test_a_comparison_says_which_is_faster_by_how_much_and_the_line_that_makes_it_so(
    trial: Trial, faster: str | None, words: str, change: str | None
):
    assert trial.faster == faster
    assert trial.in_words().startswith(words)
    assert (
        trial.to_json()["line"] == {"Processes": PROCESSES, "Threads": THREADS, None: None}[faster]
    )
    look = seen(operators=9, busy_cores=0.2)
    remedies = '"When input is slow" in loader/README.md has remedies for operators'
    assert advice(look, "operators", trial) == (change or remedies)
    assert advice(look, "mapped", trial).endswith(f"; or {change}" if change else "FOLDER")
