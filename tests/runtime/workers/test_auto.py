"""`workers="auto"`: waiting decides how many threads there are, and nothing else."""

import logging
import re
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from loader import (
    ArrayRecordSource,
    ArraySource,
    BatcherModule,
    DataLoader,
    Mapped,
    Mixture,
    Packed,
    PadBatcher,
    RawArrays,
    Shuffle,
    Source,
    Subset,
    Threads,
)
from loader.records.words import cores
from loader.runtime.workers import auto
from loader.runtime.workers.auto import Auto, HelperCount
from loader.sources.reading import thread_safety
from loader.transforms.transform import thread_safe
from operators import Cast, Filter, Map, MapBatch, Normalize
from operators import Sequence as InSequence
from tests.attack.pipelines import OPERATORS
from tests.data import RECORD_SPEC, write_raw_records


class Loop:
    """A loop whose times are made up, on so many cores."""

    def __init__(self, cores: int = 4, one_because: str | None = None) -> None:
        self.chosen = HelperCount()
        self.chosen.most, self.chosen.one_because = cores, one_because
        self._processor_s = 0.0

    def runs(self, batches: int, batch_s: float, *, waits: float, busy: float = 2.0) -> int:
        """The number of threads after so many more batches; the loop waits a part of their time."""
        for _ in range(batches):
            self._processor_s += busy * batch_s
            times_s = batch_s, waits * batch_s, self._processor_s
            self.chosen.delivered(*(int(1e9 * seconds) for seconds in times_s))
        return self.chosen.count


def test_there_is_one_thread_more_while_the_loop_waits_up_to_the_cores():
    loop = Loop(cores=3)
    assert loop.runs(29, 0.1, waits=0.5) == 1
    assert loop.runs(1, 0.1, waits=0.5) == 2
    assert loop.runs(50, 0.08, waits=0.3) == 2  # the first ones fill the line
    assert loop.runs(3, 0.08, waits=0.3) == 3
    assert loop.runs(500, 0.06, waits=0.3) == 3
    assert str(loop.chosen) == "3 threads: the loop waits for 30% of its time"


def test_a_loop_that_hardly_waits_keeps_its_threads():
    assert Loop().runs(1000, 0.1, waits=0.09) == 1
    loop = Loop()
    assert loop.runs(30, 0.1, waits=0.5) == 2
    assert loop.runs(1000, 0.05, waits=0.0) == 2


def test_a_thread_that_gains_less_than_a_tenth_is_given_back_and_tried_again_much_later():
    loop = Loop()
    assert loop.runs(30, 0.1, waits=0.5) == 2
    assert loop.runs(53, 0.095, waits=0.5) == 1
    assert "was 1.05 times as fast with 2" in str(loop.chosen)
    assert loop.runs(2001, 0.1, waits=0.5) == 1
    assert loop.runs(1, 0.1, waits=0.5) == 2


def test_the_first_batches_of_all_do_not_make_a_thread_look_better_than_it_is():
    loop = Loop()
    loop.runs(10, 0.3, waits=0.5)  # files are opened, memory is taken
    assert loop.runs(20, 0.1, waits=0.5) == 2
    assert loop.runs(53, 0.1, waits=0.5) == 1


def test_of_quick_batches_there_are_as_many_as_take_a_quarter_of_a_second():
    loop = Loop()
    assert loop.runs(10 + 249, 0.001, waits=0.5) == 1
    assert loop.runs(2, 0.001, waits=0.5) == 2
    assert loop.runs(3 + 240, 0.001, waits=0.5) == 2
    assert loop.runs(20, 0.001, waits=0.5) == 1


@pytest.mark.parametrize("pause_at", [15, 60])
def test_an_evaluation_or_a_checkpoint_between_two_batches_changes_nothing(pause_at: int):
    counts = {}
    for pause_s in (0.0, 30.0):
        loop = Loop(cores=2)
        counts[pause_s] = [
            loop.runs(1, 0.1 / loop.chosen.count + pause_s * (number == pause_at), waits=waits)
            for number in range(200)
            for waits in [0.0 if number == pause_at else 0.5]
        ]
    assert counts[30.0] == counts[0.0]
    assert counts[30.0][-1] == 2


@pytest.mark.parametrize(("busy", "said"), [(1.0, True), (1.9, False), (0.2, False)])
def test_where_threads_wait_for_the_interpreter_lock_processes_are_named_once(
    busy: float, said: bool, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING, "loader")
    tried, alone = Loop(), Loop(one_because="operators[0], Map")
    for loop in (tried, alone):
        loop.runs(9000, 0.1, waits=0.5, busy=busy)
        assert ("workers=Processes(4)" in str(loop.chosen)) == said
    assert alone.chosen.count == 1
    assert "as operators[0], Map does not say thread_safe" in str(alone.chosen)
    assert len(caplog.messages) == 2 * said


class Waiting(Source):
    """Records that take their time, and may be read in any thread."""

    thread_safe = True

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        time.sleep(0.004)
        return {"x": np.full(2, index * 7.5)}


@pytest.mark.skipif(cores() < 2, reason="with one core there is one thread")
def test_the_number_of_threads_changes_under_way_and_no_byte_does():
    source = Mapped(Waiting(), [Normalize("x", 0.5, 2.0)])
    made = {
        kind: DataLoader(source, batch_size=3, order=Shuffle(0), operators=[Cast("x", int)], **how)
        for kind, how in {"chosen": {}, "fixed": {"workers": Threads(1)}}.items()
    }
    seen = {kind: list(loader) for kind, loader in made.items()}
    jax.tree.map(np.testing.assert_array_equal, seen["chosen"], seen["fixed"])
    assert made["chosen"].workers == Auto()
    # On a machine that is busy with other things, two may not have gained anything.
    assert re.match(r"2 threads|1 thread: .* with 2", made["chosen"].stats().threads)
    assert made["fixed"].stats().threads == ""
    first = list(made["chosen"].from_start(2))  # a pass has the threads of its loader
    jax.tree.map(np.testing.assert_array_equal, first, seen["fixed"][:2])
    for loader in made.values():
        loader.close()


def test_passes_from_the_start_do_not_decide_for_the_training_loop_nor_it_for_them(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(auto, "_LEAST_NS", 0)
    with DataLoader(OURS, batch_size=2, epochs=None) as loader:
        for _ in range(40):
            next(loader)
        assert "of its time" in loader.stats().threads  # it has looked
        for _ in range(3):
            held_out: Any = iter(loader.from_start(4))
            words = [held_out.stats().threads for _ in held_out]
            assert words[-1].endswith("it is not measured yet")


def test_passes_decide_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(auto, "_LEAST_NS", 0)
    loader = DataLoader(OURS, batch_size=2)
    passes: list[Any] = [iter(loader.from_start()) for _ in range(12)]
    for number, one in enumerate(passes):
        assert len(list(one)) == 4
        # The first of each is always waited for; of the others, thirty are needed.
        assert one.stats().threads.endswith("it is not measured yet") == (number < 9)


def test_without_a_helper_thread_there_is_nothing_to_choose():
    with DataLoader(OURS, batch_size=2, epochs=None, prefetch=0) as loader:
        for _ in range(4):
            next(loader)
        assert loader.stats().threads == ""


def test_a_list_of_records_may_be_read_by_any_thread_and_what_is_made_of_lists_may_not():
    class Lazy(list[Any]):
        """Reads in `__getitem__`, perhaps."""

    records = [{"x": np.array([number], np.float32)} for number in range(8)]
    for source, expected in ((records, True), (Lazy(records), False)):
        assert thread_safety(source) is expected
        with DataLoader(source, batch_size=2) as loader:
            assert (loader.pipeline.in_one_thread() is None) == expected


class OfAUser:
    """A source that is not ours."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"x": np.array([index], np.float32)}


class OwnBatcher(BatcherModule):
    def collate(self, rows: Any, valid: np.ndarray) -> Any:
        return PadBatcher().collate(rows, valid)


def half(rows: Any) -> Any:
    return {**rows, "x": rows["x"] / 2}


def safe(rows: Any) -> Any:
    return {**rows, "x": rows["x"] / 2}


safe.thread_safe = True  # pyright: ignore[reportFunctionMemberAccess]
OURS = {"x": np.arange(8, dtype=np.float32)[:, None]}


@pytest.mark.parametrize(
    ("source", "stages", "named"),
    [
        (OURS, {"operators": [MapBatch(safe), InSequence([Map(safe)])]}, None),
        (Mixture({"a": (ArraySource(OURS), 1)}), {}, None),
        (OfAUser(), {}, "the source OfAUser"),
        (Mixture({"a": (ArraySource(OURS), 1), "b": (OfAUser(), 1)}), {}, "the source Mixture"),
        (Mapped(OURS, [Map(half)]), {}, "the source Mapped"),
        (OURS, {"operators": [MapBatch(safe), Map(half)]}, "operators[1], Map"),
        (OURS, {"operators": [InSequence([Map(half)])]}, "operators[0], Sequence"),
        (OURS, {"operators": [Filter(lambda r: True)]}, "operators[0], Filter"),
        (OURS, {"batcher": OwnBatcher()}, "the batcher OwnBatcher"),
    ],
)
def test_what_is_not_said_to_be_thread_safe_keeps_one_thread_and_is_named(
    source: Any, stages: dict[str, Any], named: str | None
):
    with DataLoader(source, batch_size=2, **stages) as loader:
        next(loader)
        words = loader.stats().threads
    assert loader.pipeline.in_one_thread() == named
    expected = "" if named is None else f", as {named} does not say thread_safe"
    assert words == f"1 thread{expected}: it is not measured yet"


def test_all_operators_that_are_ours_may_run_in_several_threads():
    functions = {"double", "halve", "noise", "keep", "refuse", "double_there"}
    for name, kind in OPERATORS.items():
        assert thread_safe(kind.make(0).transform) == (name not in functions), name


def test_sources_of_files_that_are_ours_may_be_read_by_one_thread_after_the_other(tmp_path: Path):
    paths = write_raw_records(tmp_path, [3, 4])
    lengths = [2] * 7
    for parse, expected in (
        (RawArrays(RECORD_SPEC), "in turns"),
        (lambda data: {"x": data}, False),
    ):
        source = ArrayRecordSource(paths, parse)
        assert thread_safety(source) == expected
        assert thread_safety(Packed(source, lengths, 8, leaf="x")) == expected
        assert thread_safety(Subset(source, [1, 2])) == expected


def test_none_and_the_word_mean_the_same_and_other_words_are_refused():
    for workers in (None, "auto"):
        assert DataLoader(OURS, batch_size=2, workers=workers).workers == Auto()
    with pytest.raises(TypeError, match="workers='auto'"):
        DataLoader(OURS, batch_size=2, workers="fast")  # pyright: ignore[reportArgumentType]
