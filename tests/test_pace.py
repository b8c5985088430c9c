"""Who makes the next batch is chosen by the times at which a loop asks for them."""

from collections.abc import Callable

import pytest

from loader.pace import Pace

LONG_AGO = 10**15
US = 1000


def choices(took: Callable[[int, bool], int], batches: int, depth: int = 2) -> list[bool]:
    """What is chosen for each batch of a loop for which one takes `took(number, alone)` ns."""
    pace, now, chosen = Pace(depth), LONG_AGO, []
    for number in range(batches):
        chosen.append(pace.alone(now))
        now += took(number, chosen[-1])
    return chosen


def share_alone(chosen: list[bool]) -> float:
    return sum(chosen) / len(chosen)


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_the_faster_way_is_chosen_and_tried_again_ever_less_often(depth: int):
    quick = choices(lambda _, alone: (100 if alone else 150) * US, 100_000, depth)
    assert share_alone(quick[:64]) == 0  # a thread begins, in case the loop has something to do
    assert 0.6 < share_alone(quick[:2000]) < share_alone(quick)
    assert share_alone(quick) > 0.98
    overlapped = choices(lambda _, alone: (600 if alone else 400) * US, 100_000, depth)
    assert 0 < share_alone(overlapped) < 0.02


def test_a_loop_that_takes_its_time_is_never_tried_upon():
    assert not any(choices(lambda _, alone: (1001 if alone else 1500) * US, 10_000))


def test_a_slow_first_batch_and_pauses_decide_nothing():
    def took(number: int, alone: bool) -> int:
        return 10**9 if number % 1000 == 0 else (100 if alone else 150) * US

    assert share_alone(choices(took, 100_000)) > 0.98


def test_a_loop_that_gets_something_to_do_gets_its_thread_back():
    def took(number: int, alone: bool) -> int:
        return (100 if alone else 150) * US if number < 50_000 else 20_000 * US

    chosen = choices(took, 60_000)
    assert share_alone(chosen[40_000:50_000]) == 1
    assert share_alone(chosen[50_000:50_100]) > 0
    assert share_alone(chosen[50_100:]) == 0


def test_batches_that_were_ready_do_not_count_for_the_loop_alone():
    depth = 32
    ready = 0

    def took(number: int, alone: bool) -> int:
        nonlocal ready
        if not alone:
            ready = depth
            return 150 * US
        ready -= ready > 0
        return 1 * US if ready else 160 * US

    assert share_alone(choices(took, 100_000, depth)) < 0.02
