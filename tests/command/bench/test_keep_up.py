"""How many workers would make batches as fast as a step takes them."""

from loader.command.bench.verdict import keep_up, keep_up_in_words
from tests.command.bench.test_bench import seen


def test_how_many_workers_would_keep_up_with_the_step_is_said_and_where_they_find_room():
    look = seen(threads=2, read=4, operators=21, place=9, step_ms=5)  # added over both threads
    assert keep_up(look) == 5
    (words,) = keep_up_in_words(look, 5)
    assert "25.00 ms of one worker for each batch, the step 5.00 ms: 5 worker(s)" in words
    assert 'workers = { kind = "Ray", count = 5 } under [loader], on a cluster' in words
    (words,) = keep_up_in_words(look, 2)
    assert "this machine has so many cores" in words
    assert keep_up(seen(operators=12)) is None  # there is nothing to keep up with
