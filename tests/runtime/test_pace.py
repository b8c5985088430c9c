"""Who makes the next batch is chosen by the times at which a loop asks for them."""

from collections.abc import Callable

import pytest

from loader.runtime.pace import Pace

LONG_AGO = 10**15
US = 1000


def choices(
    took: Callable[[int, bool], int], between: int, batches: int, depth: int = 2, shared: int = 0
) -> list[bool]:
    """What is chosen for each batch of a loop that does something for `between` µs after each.

    `took(number, alone)` says how many µs the loop waits for a batch, or makes it. While the thread
    makes them, the loop waits for the interpreter for `shared` µs after each batch.
    """
    pace, now, chosen = Pace(depth), LONG_AGO, []
    for number in range(batches):
        chosen.append(pace.alone(now))
        now += took(number, chosen[-1]) * US
        pace.given(now)
        now += (between + (0 if chosen[-1] else shared)) * US
    return chosen


def share_alone(chosen: list[bool]) -> float:
    return sum(chosen) / len(chosen)


def test_a_loop_that_does_nothing_in_between_makes_its_batches():
    for threaded in (50, 150, 1800):  # whatever the clock says of it
        chosen = choices(lambda _, alone, t=threaded: 100 if alone else t, 90, 10_000)
        assert not any(chosen[:32])  # a thread begins, in case the loop has something to do
        assert all(chosen[64:])


def test_waiting_for_the_interpreter_is_not_doing_something():
    chosen = choices(lambda _, alone: 100 if alone else 20, 40, 10_000, shared=70)
    assert any(chosen[:400])
    assert not all(chosen[:400])  # it had to be tried
    assert all(chosen[400:])


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_of_a_short_loop_the_faster_way_is_chosen_and_tried_again_ever_less_often(depth: int):
    quick = choices(lambda _, alone: 100 if alone else 150, 110, 100_000, depth)
    assert not any(quick[:64])
    assert 0.6 < share_alone(quick[:2000]) < share_alone(quick)
    assert share_alone(quick) > 0.97
    overlapped = choices(lambda _, alone: 400 if alone else 200, 200, 100_000, depth)
    assert 0 < share_alone(overlapped) < 0.03


def test_a_loop_that_takes_its_time_is_never_tried_upon():
    assert not any(choices(lambda _, alone: 1900 if alone else 2500, 101, 10_000))
    assert not any(choices(lambda _, alone: 2500, 1, 10_000))  # nor one that waits for a disk


def test_a_slow_first_batch_and_pauses_decide_nothing():
    def took(number: int, alone: bool) -> int:
        return 10**6 if number % 1000 == 0 else 100 if alone else 150

    assert share_alone(choices(took, 110, 100_000)) > 0.97
    assert share_alone(choices(took, 1, 100_000)) > 0.98


@pytest.mark.parametrize(("every", "pause"), [(500, 100_000), (100, 5_000)])
def test_an_idle_loop_that_is_held_up_now_and_then_is_not_tried_upon(every: int, pause: int):
    pace, now = Pace(2), LONG_AGO
    for number in range(1, 10_000):
        assert pace.alone(now) or number <= 64
        pace.given(now + 100 * US)
        now += (100 + (40 if number % every else pause)) * US


def test_something_done_every_hundred_batches_decides_nothing():
    def took(number: int, alone: bool) -> int:
        return (30_000 if number % 100 == 70 else 0) + (800 if alone else 1)

    assert share_alone(choices(took, 1000, 200_000)) < 0.03


@pytest.mark.parametrize("between", [1, 110])
def test_a_loop_that_gets_something_to_do_gets_its_thread_back(between: int):
    def took(number: int, alone: bool) -> int:
        return (100 if alone else 150) if number < 50_000 else 20_000

    chosen = choices(took, between, 60_000)
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
            return 90
        ready -= ready > 0
        return 0 if ready else 100

    assert share_alone(choices(took, 110, 100_000, depth)) < 0.03
