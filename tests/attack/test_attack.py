"""Random pipelines under random moves and faults, against an oracle: see README.md beside this."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack.attack import attack, attack_at_lines, attack_streams, failure
from tests.attack.hosts import change_hosts
from tests.attack.kills import kill_and_resume
from tests.attack.oracle import Violation
from tests.attack.pipelines import Case
from tests.attack.planted import BUGS
from tests.attack.shrink import program, shrunk
from tests.attack.subject import Counts

ROOT = Path(__file__).parent.parent.parent
SHRINK_S = 60.0
DEFAULT_SEED = 2026


@pytest.fixture
def seed(request: pytest.FixtureRequest, full: bool) -> int:
    """The same cases in every run of the test command; others with `--full`, or as given."""
    given = request.config.getoption("--attack-seed")
    if given is not None:
        return int(str(given))
    return random.SystemRandom().randrange(2**32) if full else DEFAULT_SEED


@pytest.fixture
def seconds(full: bool) -> float:
    """Of each of three parts of the attack: on two cores, with the rest, 25 minutes in all."""
    return 13 * 60.0 if full else 15.0


def report(found: tuple[Case, Violation] | None, seed: int, counts: Counts) -> None:
    """Print what was done; of a failure, the smallest program that fails too."""
    print(f"attack with seed {seed}: {counts}")
    if found is None:
        return
    case, violation = found
    small = shrunk(case, lambda one: failure(one, 10.0) is not None, SHRINK_S)
    print(f"{violation}\n\nThis fails alone:\n\n{program(small)}\n")
    raise violation


@pytest.mark.parametrize("half", [0, 1])
def test_no_move_or_fault_changes_a_batch(half: int, seed: int, seconds: float):
    counts = Counts()
    report(attack(seed * 2 + half, seconds, counts), seed, counts)


def test_an_interrupt_at_any_line_loses_and_repeats_nothing(seed: int, seconds: float, full: bool):
    counts = Counts()
    report(attack_at_lines(seed, seconds, counts, every=1 if full else 7), seed, counts)


def test_a_stream_under_interrupts_loses_and_repeats_nothing(seed: int, seconds: float):
    counts = Counts()
    attack_streams(seed, seconds / 3, counts)
    print(f"attack with seed {seed}: {counts}")


def test_a_killed_process_resumes_elsewhere(seed: int, full: bool, tmp_path: Path):
    numbers, counts = random.Random(seed), Counts()
    print(f"seed {seed}")
    for number in range(50 if full else 1):
        (tmp_path / str(number)).mkdir()
        kill_and_resume(numbers, tmp_path / str(number), counts)
    print(f"attack with seed {seed}: {counts}")


def test_a_job_goes_on_with_another_number_of_processes(seed: int, full: bool, tmp_path: Path):
    if not full:
        pytest.skip("with --full only: tests/faults has some in every run")
    numbers, counts = random.Random(seed), Counts()
    print(f"seed {seed}")
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        change_hosts(numbers, tmp_path / str(number), counts)


def test_the_oracle_imports_nothing_of_ours():
    script = (
        "import sys, tests.attack.oracle, tests.attack.plain_augment\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('loader', 'operators', 'gristmill')])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "[]"


def test_the_line_that_delivers_is_where_the_harness_looks_for_it():
    # Interrupts are injected at every line but this one: in `next`, after the step has moved.
    for path in ("loader/data_loader.py", "loader/runtime/device_prefetcher.py"):
        lines = [line.strip() for line in (ROOT / path).read_text().splitlines()]
        assert lines.count("return batch") >= 1, path


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_can_still_be_planted(name: str):
    file, there, instead = BUGS[name]
    assert (ROOT / file).read_text().count(there) == 1
    assert instead != there


def test_a_case_that_fails_is_found_and_becomes_small(monkeypatch: pytest.MonkeyPatch):
    from loader.order.plan import Plan

    span = Plan.span

    def off_by_one(plan: Plan, step: int) -> tuple[int, int]:
        start, stop = span(plan, step)
        return start, stop - (stop % plan.num_records == 0 and stop - start > 1)

    monkeypatch.setattr(Plan, "span", off_by_one)
    found = attack(0, 20, Counts())
    assert found is not None
    small = shrunk(found[0], lambda one: failure(one, 10.0) is not None, 20)
    assert len(small.moves) <= 2
    assert "run(case)" in program(small)
