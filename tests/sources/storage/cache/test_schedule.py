import functools
import itertools
import random
from typing import Any

import pytest

from loader.sources.storage.cache.schedule import NEVER, Fetch, Name, Schedule, TooSmall

Plan = list[list[int]]  # the pieces of each step


def random_plan(rng: random.Random, pieces: int, steps: int, most: int) -> Plan:
    """Steps that need some pieces each, at times the same ones for a while, as in a window."""
    plan, window = [], list(range(pieces))
    for step in range(steps):
        if step % 5 == 0:
            window = rng.sample(range(pieces), rng.randint(most, pieces))
        plan.append(rng.sample(window, rng.randint(0, most)))
    return plan


def belady(plan: Plan, room: int) -> int:
    """The misses of Belady's rule by brute force: what goes is needed furthest ahead."""
    there: set[int] = set()
    misses = 0
    for step, needed in enumerate(plan):
        for piece in [piece for piece in needed if piece not in there]:
            misses += 1
            if len(there) == room:

                def next_need(other: int, after: int = step) -> int:
                    later = (s for s in range(after, len(plan)) if other in plan[s])
                    return next(later, NEVER)

                there.remove(max(there, key=next_need))
            there.add(piece)
    return misses


def fewest(plan: Plan, room: int) -> int:
    """The fewest misses of all ways to choose what goes."""

    @functools.cache
    def from_here(step: int, there: frozenset[int]) -> int:
        if step == len(plan):
            return 0
        needed = frozenset(plan[step])
        missing, others = needed - there, there - needed
        stay = room - len(needed)
        kept = itertools.combinations(sorted(others), min(stay, len(others)))
        return len(missing) + min(from_here(step + 1, needed | set(some)) for some in kept)

    return from_here(0, frozenset())


class Run:
    """Readers that read their plans, with a cache that obeys the schedule."""

    def __init__(self, schedule: Schedule, sizes: dict[int, int], rng: random.Random) -> None:
        self.schedule, self.sizes, self.rng = schedule, sizes, rng
        self.there: set[int] = set(schedule.there)
        self.under_way: set[int] = set()
        self.fetches: list[Fetch] = []
        self.plans: dict[Name, Plan] = {}
        self.reads: dict[Name, int] = {}

    def begin(self, name: Name, plan: Plan) -> None:
        self.schedule.begin(name, plan.__getitem__, 0, len(plan))
        self.plans[name], self.reads[name] = plan, 0

    def fetch_all_that_can_be(self) -> None:
        while (fetch := self.schedule.next()) is not None or self.schedule.is_behind:
            if fetch is not None:
                self.begun(fetch)

    def begun(self, fetch: Fetch) -> None:
        assert fetch.piece not in self.there | self.under_way
        assert self.there.issuperset(fetch.let_go)  # none that is under way
        self.there.difference_update(fetch.let_go)
        self.under_way.add(fetch.piece)
        self.fetches.append(fetch)
        used = sum(self.sizes[piece] for piece in self.there | self.under_way)
        assert used == self.schedule.used <= self.schedule.most_bytes

    def something_happens(self) -> bool:
        """A fetch ends, or a step is read whose pieces are there; whether anything could."""
        ready = [
            name
            for name, plan in self.plans.items()
            if self.reads[name] < len(plan) and self.there.issuperset(plan[self.reads[name]])
        ]
        choices: list[tuple[str, Any]] = [("fetched", piece) for piece in sorted(self.under_way)]
        choices += [("read", name) for name in ready]
        if not choices:
            return False
        what, which = self.rng.choice(choices)
        if what == "fetched":
            self.under_way.remove(which)
            self.there.add(which)
            self.schedule.fetched(which)
        else:
            self.schedule.was_read(which, self.reads[which])
            self.reads[which] += 1
        return True

    def to_the_end(self) -> None:
        self.fetch_all_that_can_be()
        while self.something_happens():
            self.fetch_all_that_can_be()
        assert self.reads == {name: len(plan) for name, plan in self.plans.items()}


def test_one_loader_misses_no_more_than_by_beladys_rule_whenever_things_are_read():
    rng = random.Random(1)
    for _ in range(150):
        pieces, most = rng.randint(3, 14), rng.randint(1, 5)
        most = min(most, pieces)
        plan = random_plan(rng, pieces, rng.randint(5, 60), most)
        room = rng.randint(max(map(len, plan), default=1) or 1, pieces)
        sizes = dict.fromkeys(range(pieces), 10)
        for _ in range(2):  # fetched and read in another order each time
            run = Run(Schedule(room * 10 + rng.randint(0, 9), sizes), sizes, rng)
            run.begin("a", plan)
            run.to_the_end()
            assert len(run.fetches) == belady(plan, room), (plan, room)
            assert run.schedule.hits == sum(map(len, plan)) - len(run.fetches)


def test_no_way_to_choose_what_goes_misses_less():
    rng = random.Random(2)
    for _ in range(60):
        plan = random_plan(rng, 6, 9, 3)
        room, sizes = rng.randint(3, 5), dict.fromkeys(range(6), 1)
        run = Run(Schedule(room, sizes), sizes, rng)
        run.begin("a", plan)
        run.to_the_end()
        assert len(run.fetches) == fewest(plan, room), (plan, room)


def test_the_sequence_of_fetches_does_not_depend_on_when_things_are_read():
    rng = random.Random(3)
    for _ in range(30):
        plan, sizes = random_plan(rng, 12, 80, 4), {piece: 5 + piece % 3 for piece in range(12)}
        seen = set()
        for _ in range(4):
            run = Run(Schedule(45, sizes), sizes, rng)
            run.begin("a", plan)
            run.to_the_end()
            seen.add(tuple(run.fetches))
        assert len(seen) == 1


def test_pieces_are_fetched_in_the_order_of_need_and_as_early_as_there_is_room():
    plan, sizes = [[2], [0, 1], [3], [2]], dict.fromkeys(range(4), 1)
    schedule = Schedule(3, sizes)
    schedule.begin("a", plan.__getitem__, 0, 4)
    assert [schedule.next() for _ in range(4)] == [
        Fetch(2, (), "a", 0),
        Fetch(0, (), "a", 1),
        Fetch(1, (), "a", 1),
        None,  # 3 takes the place of 0, which is to be read before
    ]
    for piece in (2, 0, 1):
        schedule.fetched(piece)
    schedule.was_read("a", 0)
    assert schedule.next() is None
    schedule.was_read("a", 1)
    assert schedule.next() == Fetch(3, (0,), "a", 2)
    assert schedule.next() is None


def test_with_several_loaders_what_any_needs_soonest_is_kept():
    rng = random.Random(4)
    let_go = 0
    for number in range(40):
        sizes = dict.fromkeys(range(16), 1)
        schedule = Schedule(rng.randint(8, 12), sizes)
        run = Run(schedule, sizes, rng)
        for name in "abc"[: 2 + number % 2]:
            run.begin(name, random_plan(rng, 16, 40, 3))

        def distance(piece: int, run: Run = run, besides: Name | None = None, at: int = 0) -> int:
            """In how many steps a loader needs the piece; one of them is asked from a step on."""
            steps = [NEVER]
            for name, plan in run.plans.items():
                read = run.reads[name]
                later = range(at if name == besides else read, len(plan))
                steps += [step - read for step in later if piece in plan[step]][:1]
            return min(steps)

        def check(fetch: Fetch, run: Run = run, distance=distance) -> None:
            nonlocal let_go
            assert fetch.step is not None
            assert fetch.stream is not None
            there = run.there - set(fetch.let_go)
            ahead = fetch.step - run.reads[fetch.stream]
            for piece in fetch.let_go:
                let_go += 1
                far = distance(piece, besides=fetch.stream, at=fetch.step)
                assert far >= max((distance(other, besides=fetch.stream, at=fetch.step)
                                   for other in there), default=0)  # fmt: skip
                assert far > ahead or ahead == 0

        def begun(fetch: Fetch, run: Run = run, check=check) -> None:
            check(fetch)
            Run.begun(run, fetch)

        run.begun = begun
        run.to_the_end()
    assert let_go > 1000


def test_pieces_of_other_sizes_fill_the_cache_and_never_more():
    rng = random.Random(5)
    for _ in range(60):
        plan = random_plan(rng, 12, 50, 4)
        sizes = {piece: rng.randint(0, 20) for piece in range(12)}
        least = max(sum(sizes[piece] for piece in needed) for needed in plan)
        run = Run(Schedule(least + rng.randint(0, 30), sizes), sizes, rng)
        run.begin("a", plan)
        run.to_the_end()  # which looks at the bytes


def test_a_step_that_does_not_fit_is_refused_with_the_least_size_that_works():
    rng = random.Random(6)
    for _ in range(30):
        plan, sizes = random_plan(rng, 9, 30, 4), {piece: 3 + piece for piece in range(9)}
        least = max(sum(sizes[piece] for piece in needed) for needed in plan)
        with pytest.raises(TooSmall, match=rf"needs {least:,} .*most_bytes={least}\)"):
            Schedule(least - 1, sizes).begin("a", plan.__getitem__, 0, len(plan))
        run = Run(Schedule(least, sizes), sizes, rng)
        run.begin("a", plan)
        run.to_the_end()


def test_a_plan_without_end_is_looked_at_as_far_as_the_horizon_and_no_further():
    looked: list[int] = []

    def needs(step: int) -> list[int]:
        looked.append(step)
        return [step % 7, 7 + step]  # 0 to 6 come again and again, the others never

    sizes = dict.fromkeys(range(1000), 1)
    schedule = Schedule(10, sizes, ahead=40, horizon=400)
    schedule.begin("a", needs, 0, None)
    assert len(looked) == 200
    for step in range(300):
        while (fetch := schedule.next()) is not None or schedule.is_behind:
            if fetch is not None:
                schedule.fetched(fetch.piece)
        assert schedule.is_arranged("a", step)
        schedule.was_read("a", step)
    assert looked == list(range(len(looked)))
    assert len(looked) <= 300 + 20 + 200
    again = [piece for piece in range(7) if piece not in schedule.there]
    assert not again  # what is needed again is known to be, and stays


def test_a_reader_that_does_not_wait_for_the_cache_never_brings_it_to_a_stop():
    rng = random.Random(8)
    for number in range(60):
        sizes = dict.fromkeys(range(12), 1)
        run = Run(Schedule(rng.randint(4, 7), sizes), sizes, rng)
        for name in "ab"[: 1 + number % 2]:
            run.begin(name, random_plan(rng, 12, 60, 4))
        run.fetch_all_that_can_be()
        while any(read < 60 for read in run.reads.values()):
            for name in run.reads:
                if rng.random() < 0.2:  # it reads some steps without the cache
                    for _ in range(min(rng.randint(1, 9), 60 - run.reads[name])):
                        run.schedule.was_read(name, run.reads[name])
                        run.reads[name] += 1
                    run.fetch_all_that_can_be()
            stuck = not run.something_happens()
            assert not stuck or len(run.reads) > 1 or run.reads["a"] == 60
            run.fetch_all_that_can_be()
        for name, stream in run.schedule._streams.items():
            assert stream.read == stream.front == 60, name


def test_what_is_there_already_is_not_fetched_and_what_is_lost_is_fetched_again():
    plan, sizes = [[0, 1], [1, 2], [0, 2]], dict.fromkeys(range(3), 1)
    rng = random.Random(7)
    schedule = Schedule(3, sizes)
    schedule.add(1)
    run = Run(schedule, sizes, rng)
    run.begin("a", plan)
    run.fetch_all_that_can_be()
    assert [fetch.piece for fetch in run.fetches] == [0, 2]
    schedule.fetched(0)
    schedule.lost(0)
    assert schedule.next() == Fetch(0, (), "a", 0)


def test_a_piece_that_is_wanted_outside_of_any_plan_takes_the_place_of_what_is_needed_last():
    plan, sizes = [[0], [1], [2], [3]], dict.fromkeys(range(5), 1)
    schedule = Schedule(3, sizes)
    schedule.begin("a", plan.__getitem__, 0, 4)
    for _ in range(3):
        fetch = schedule.next()
        assert fetch is not None
        schedule.fetched(fetch.piece)
    assert schedule.take(4) == Fetch(4, (2,))
    assert schedule.take(4) is None  # it is there
    schedule.fetched(4)
    assert not schedule.is_arranged("a", 2)
    assert schedule.next() == Fetch(2, (4,), "a", 2)  # nobody needs 4 any more


def test_steps_may_be_read_before_those_that_come_first():
    plan, sizes = [[0], [1], [2], [3]], dict.fromkeys(range(4), 1)
    schedule = Schedule(2, sizes)
    schedule.begin("a", plan.__getitem__, 0, 4)
    for _ in range(2):
        fetch = schedule.next()
        assert fetch is not None
        schedule.fetched(fetch.piece)
    schedule.was_read("a", 1)
    assert schedule.next() is None  # 0 is to go first: it was used before 1
    schedule.was_read("a", 0)
    assert schedule.next() == Fetch(2, (0,), "a", 2)


def test_when_less_is_allowed_what_is_needed_last_goes():
    plan, sizes = [[0], [1], [2], [1]], dict.fromkeys(range(3), 1)
    schedule = Schedule(3, sizes)
    schedule.begin("a", plan.__getitem__, 0, 4)
    for _ in range(3):
        fetch = schedule.next()
        assert fetch is not None
        schedule.fetched(fetch.piece)
    schedule.allowed = 2
    assert schedule.shrink() == (2,)
    assert schedule.shrink() == ()
    assert schedule.used == 2


def fetched_by_threads(sizes: list[int], plan: Plan, room: int, threads: int, seed: int) -> Any:
    """What is fetched, in its order, while so many steps may be read at a time, in any order."""
    rng = random.Random(seed)
    schedule = Schedule(room, sizes)
    schedule.begin("", lambda step: plan[step], 0, len(plan))
    found, under_way, left = [], [], [*range(len(plan))]
    while left:
        while rng.random() < 0.7 and (fetch := schedule.next()) is not None:
            found.append(fetch.piece)
            under_way.append(fetch.piece)
        while under_way and rng.random() < 0.7:
            schedule.fetched(under_way.pop(rng.randrange(len(under_way))))
        ready = [
            step
            for step in left[:threads]
            if schedule.is_arranged("", step) and not {*plan[step]} & {*under_way}
        ]
        if ready:
            left.remove(step := rng.choice(ready))
            schedule.was_read("", step)
    return found


def test_what_is_fetched_does_not_depend_on_which_of_several_threads_is_done_first():
    for seed in range(12):
        rng = random.Random(seed)
        sizes = [rng.randint(1, 9) for _ in range(20)]
        plan = [rng.sample(range(20), 6) for _ in range(60)]
        room = max(6 * sum(sizes) // 10, *(sum(sizes[p] for p in step) for step in plan))
        one = fetched_by_threads(sizes, plan, room, 1, seed)
        assert fetched_by_threads(sizes, plan, room, 3, seed + 1) == one
