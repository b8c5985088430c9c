"""Records that fail: the same rows masked everywhere, and nothing else changed."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import (
    ArraySource,
    BatcherModule,
    DataLoader,
    DefaultBatcher,
    Mask,
    Mixture,
    On,
    Processes,
    Shuffle,
    Threads,
)
from loader.runtime.workers.host_work import HostWork
from loader.testing import assert_resumes_exactly
from tests.data import unlike_records
from tests.faults.table import Record
from tests.runtime.bad_pipelines import (
    BAD,
    COUNT,
    Documents,
    Mapping,
    OtherShapes,
    Picky,
    kinds,
    loader_of,
    packed,
)

ALL = list(kinds(frozenset()))


def masked(batch: Any, bad: frozenset[int] = BAD) -> Any:
    """A batch of the run in which nothing is bad, with these records masked."""
    gone = np.isin(batch["record"], list(bad)) | ~batch["valid_mask"]
    rows = {name: leaf.copy() for name, leaf in batch.items()}
    for leaf in rows.values():
        leaf[gone] = 0
    rows["record"][gone] = -1
    return rows


def assert_same(batch: Any, expected: Any) -> None:
    assert batch.keys() == expected.keys()
    for name, leaf in expected.items():
        assert leaf.dtype == batch[name].dtype
        np.testing.assert_array_equal(batch[name], leaf, name)


def assert_all_same(batches: list[Any], expected: list[Any]) -> None:
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert_same(batch, other)


def logged(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", ALL)
def test_a_bad_record_is_a_masked_row_and_all_else_stays_on_any_number_of_hosts(kind: str) -> None:
    # The first record that can be read shows what shape the others must have.
    bad = BAD - {0} | {1} if "shape" in kind else BAD
    loader = loader_of(kind, bad)
    expected = [masked(batch, bad) for batch in loader_of(kind, frozenset()).host_batches()]
    assert_all_same(list(loader.host_batches()), expected)
    assert loader.stats().bad_records == len(BAD)
    assert loader.stats().masked_rows == 2 * len(BAD) + 2 * (13 * 16 - COUNT)
    for hosts in (2, 3):
        for step, batch in enumerate(expected[:13]):
            for rows in np.array_split(np.arange(16), hosts):
                made = loader.pipeline.make(step, rows)
                assert_same(made.batch, {name: leaf[rows] for name, leaf in batch.items()})
                gone = [bad.record for bad in made.bad]
                assert len(gone) == made.masked - np.count_nonzero(rows >= made.stop - made.start)
                assert set(gone) <= bad


@pytest.mark.parametrize("kind", ["threads", "processes", "executor"])
def test_every_kind_of_worker_masks_the_same_rows_on_any_number_of_hosts(
    kind: str, tmp_path: Path, record: Record
) -> None:
    expected = [masked(batch) for batch in loader_of("all", frozenset()).host_batches()]
    with ThreadPoolExecutor(2) as executor:
        workers = {"threads": Threads(2), "processes": Processes(2), "executor": On(executor)}[kind]
        log = tmp_path / "bad.jsonl"
        with loader_of("all", workers=workers, on_error=Mask(log=log)) as loader:
            assert_all_same(list(loader.host_batches()), expected)
            assert loader.stats().bad_records == len(BAD)
            assert "; 6 bad records" in str(loader.stats())
            for hosts in (2, 3):  # the rows of each process of such a job
                for rows in np.array_split(np.arange(16), hosts):
                    work = HostWork(loader.pipeline, rows)
                    line = loader._employer.line(work, None, 0, 2, {})
                    for step, batch in enumerate(expected[:13]):
                        part = {name: leaf[rows] for name, leaf in batch.items()}
                        assert_same(line.take(step).batch, part)
                    line.close()
    lines = logged(log)
    assert all(f"pictures/{line['record']}.png" in line["where"] for line in lines)
    by_record = {line["record"]: line for line in lines}
    assert len(lines) == len(by_record)  # once, though there are two epochs
    assert by_record.keys() == BAD
    found = [(by_record[n]["operator"], by_record[n]["error"]) for n in sorted(BAD)]
    broken = r"OSError: \[Errno 5\] an operator reads from a broken disk"
    for (operator, error), (name, words) in zip(
        found,
        [
            ("read", "LookupError: there is no picture 0"),
            ("^DecodeImage", "leaf 'image' is no whole JPEG or PNG image"),
            ("^DecodeImage", r"leaf 'image' is an image of \(5, 5\)"),
            ("rows", broken),
            ("rows", broken),
            ("Mapping", rf".*Mapping\.map: {broken}"),
        ],
        strict=True,
    ):
        assert re.search(name, operator), (name, operator)
        assert re.match(words, error), (words, error)
    record(f"3 % of records bad, hosts 1 to 3: {kind}", len(BAD), "the same rows masked")


def test_a_bad_record_in_a_packed_row_masks_that_row(tmp_path: Path) -> None:
    bad, log = [0, 31], tmp_path / "bad.jsonl"
    whole = packed(()).gather(np.arange(len(packed(()))))
    held = np.isin(whole["tokens"] // 100, bad) & (whole["segment_ids"] > 0)
    rows = np.flatnonzero(held.any(1)).tolist()
    assert len(rows) == 2
    expected = list(DataLoader(packed(()), batch_size=4).host_batches())
    loader = DataLoader(packed(bad), batch_size=4, on_error=Mask(log=log))
    for step, (batch, whole) in enumerate(zip(loader.host_batches(), expected, strict=True)):
        gone = np.isin(np.arange(4 * step, 4 * step + 4), rows)
        for name, leaf in whole.items():
            np.testing.assert_array_equal(batch[name][~gone], leaf[~gone], name)
            assert not batch[name][gone].any()
    assert [line["record"] for line in logged(log)] == rows
    words = {f"ValueError: document {n} is not to be read" for n in bad}
    assert {line["error"] for line in logged(log)} == words


def test_a_filter_that_raises_is_a_bad_record_and_one_that_refuses_is_not() -> None:
    from operators import Filter

    source = ArraySource(unlike_records(COUNT))
    loader = DataLoader(
        source, batch_size=16, operators=[Filter(Picky(BAD).keep)], on_error=Mask(log=None)
    )
    left = [n for batch in loader.host_batches() for n in batch["id"][batch["valid_mask"]]]
    assert left == [n for n in range(COUNT) if n % 5 and n not in BAD]
    assert loader.stats().bad_records == len(BAD)


def test_microbatches_and_devices_get_the_same_masked_rows() -> None:
    expected = [masked(batch) for batch in loader_of("rows", frozenset()).host_batches()]
    with loader_of("rows", microbatches=2) as loader:
        for batch, other in zip(loader, expected, strict=True):
            for name in ("id", "double", "valid_mask", "record"):
                np.testing.assert_array_equal(np.asarray(batch[name]).reshape(-1), other[name])


def test_errors_are_raised_unless_it_is_said_that_they_may_not_be() -> None:
    with pytest.raises(OSError, match="an operator reads from a broken disk"):
        list(loader_of("rows", on_error="raise").host_batches())
    with pytest.raises(ValueError, match=r"record \d+ \(pictures/\d+\.png\): DecodeImage"):
        list(loader_of("undecodable", on_error="raise").host_batches())


def test_more_different_records_than_allowed_end_the_run_with_their_list(tmp_path: Path) -> None:
    log = tmp_path / "bad.jsonl"
    bad_in = [
        np.isin(batch["record"], list(BAD)).sum()
        for batch in loader_of("undecodable", frozenset()).host_batches()
    ]
    last = int(np.flatnonzero(np.cumsum(bad_in) > 2)[0])
    with loader_of("undecodable", on_error=Mask(most=2, log=log)) as loader:
        batches = loader.host_batches()
        for _ in range(last):
            next(batches)
        assert loader.stats().bad_records == sum(bad_in[:last])
        told = []
        for _ in range(2):  # asked again, it is the same
            with pytest.raises(ValueError, match=r"are bad, more than Mask\(most=2\)") as it:
                next(loader.host_batches())
            told.append(str(it.value))
            assert loader.step == last
            assert loader.get_state()["step"] == last
    found = {line["record"] for line in logged(log)}
    assert len(found) == len(logged(log)) == sum(bad_in[: last + 1])
    for record in found:
        assert f"record {record} (pictures/{record}.png), DecodeImage" in told[0] == told[1]
    # As many as there are may be met as often as there are epochs.
    assert len(list(loader_of("all", on_error=Mask(most=6, log=None), epochs=3))) == 39


def test_passes_from_the_start_count_and_log_a_record_once(tmp_path: Path) -> None:
    log = tmp_path / "bad.jsonl"
    loader = loader_of("map", on_error=Mask(log=log), epochs=1)
    for _ in range(3):
        assert len(list(loader.from_start())) == 13
    assert len(logged(log)) == loader.stats().bad_records == len(BAD)
    assert loader.batch_at(0) is not None  # it is not delivered, and so not counted


def test_of_a_mixture_a_record_counts_once_whatever_the_epoch(tmp_path: Path) -> None:
    lengths, log = np.full(10, 3), tmp_path / "bad.jsonl"
    parts = {"good": (Documents(lengths, ()), 1), "bad": (Documents(lengths, (4,)), 1)}
    settings = {"batch_size": 4, "epochs": 4, "on_error": Mask(log=log)}
    loader = DataLoader(Mixture(parts), with_index="record", **settings)
    batches = list(loader.host_batches())
    assert loader.stats().masked_rows == 4
    assert loader.stats().bad_records == 1
    (line,) = logged(log)
    assert (line["record"], line["where"]) == (4, "component 'bad', record 4")
    assert 4 in np.concatenate([batch["record"] for batch in batches])  # that of the other
    parts = {"good": (packed(()), 1), "bad": (packed((4,)), 1)}
    loader = DataLoader(Mixture(parts), **settings)
    list(loader.host_batches())
    assert loader.stats().bad_records == 1
    assert logged(log)[-1]["record"] is None
    assert "component 'bad', record " in logged(log)[-1]["where"]


def test_the_first_record_may_be_bad() -> None:
    mask = Mask(log=None)
    for source, operators in (
        (OtherShapes(()), [Mapping(Picky([0, 1]).record)]),
        (Mixture({"a": (OtherShapes(()), 1)}), [Mapping(Picky([0, 1]).record)]),
        (Documents(np.full(9, 3), [0, 1]), []),
        (Mixture({"a": (Documents(np.full(9, 3), [0, 1]), 1)}), []),
    ):
        loader = DataLoader(source, batch_size=3, operators=operators, on_error=mask)
        assert loader.batch_spec()["valid_mask"].shape == (3,)
        assert loader.get_state()["fingerprint"]["on_error"]
        assert len(list(loader.host_batches())) == len(loader)
        assert loader.stats().bad_records == 2
    with pytest.raises(ValueError, match="document 0 is not to be read"):
        DataLoader(Documents(np.full(9, 3), range(9)), batch_size=3, on_error=mask).batch_spec()
    with pytest.raises(ValueError, match="document 0 is not to be read"):
        next(DataLoader(Documents(np.full(9, 3), [0]), batch_size=3))


def test_a_run_with_bad_records_resumes_exactly_and_with_any_workers(tmp_path: Path) -> None:
    assert_resumes_exactly(lambda: loader_of("all", batch_size=40))
    whole = list(loader_of("all").host_batches())
    first = loader_of("all")
    for _ in zip(range(7), first.host_batches(), strict=False):
        pass
    state = first.get_state()
    log = tmp_path / "bad.jsonl"
    with loader_of("all", workers=Threads(2), on_error=Mask(most=50, log=log)) as loader:
        loader.set_state(state)  # `most` and `log` may be others
        assert_all_same(list(loader.host_batches()), whole[7:])
        assert {line["record"] for line in logged(log)} == BAD


def test_a_state_of_another_policy_is_refused_with_the_difference() -> None:
    mask, plain = loader_of("all"), loader_of("all", on_error="raise")
    assert "on_error" not in plain.get_state()["fingerprint"]  # as in documents from before
    with pytest.raises(ValueError, match=r"on_error: saved with on_error=Mask.*here on_error='rai"):
        plain.set_state(mask.get_state())
    with pytest.raises(ValueError, match=r"on_error: saved with on_error='raise', here on_error=M"):
        mask.set_state(plain.get_state())
    mask.set_state(plain.get_state(), allow_changes={"on_error"})
    assert len(json.dumps(mask.get_state())) <= 1024


def test_a_batch_of_which_no_record_fails_alone_is_raised() -> None:
    def at_most_one(rows: Any) -> Any:
        if len(rows["id"]) > 1:
            raise RuntimeError("one after the other")
        return rows

    source = ArraySource(unlike_records(8))
    loader = DataLoader(
        source, batch_size=4, operators=[at_most_one], on_error=Mask(log=None), prefetch=0
    )
    with pytest.raises(RuntimeError, match="one after the other") as caught:
        next(loader)
    assert "none of its records fails alone" in "\n".join(caught.value.__notes__)


def test_too_little_memory_is_not_a_bad_record() -> None:
    def large(rows: Any) -> Any:
        if 5 in rows["id"]:
            raise MemoryError("no place for five")
        return rows

    mask, source = Mask(log=None), ArraySource(unlike_records(8))
    loader = DataLoader(source, batch_size=4, operators=[large], on_error=mask, prefetch=0)
    assert next(loader)["valid_mask"].all()
    with pytest.raises(MemoryError, match="no place for five"):
        next(loader)


class ByProcess(BatcherModule):
    def process(self, elements: Any, *args: Any, batch_size: int, **kwargs: Any) -> Any:
        yield {"ids": np.array([element["id"] for element in elements])}


def test_what_cannot_work_is_refused_at_once(tmp_path: Path) -> None:
    def make(**settings: Any) -> DataLoader:
        return DataLoader(unlike_records(8), **{"batch_size": 4, "on_error": Mask()} | settings)

    with pytest.raises(ValueError, match=r"DefaultBatcher never pads, and on_error=Mask"):
        make(batcher=DefaultBatcher(), remainder="drop")
    with pytest.raises(ValueError, match=r"ByProcess defines process.*PadBatcher\(\)"):
        make(batcher=ByProcess())
    for wrong in (True, "mask", Mask):
        with pytest.raises(TypeError, match="on_error must be 'raise' or an instance such as Mask"):
            make(on_error=wrong)
    with pytest.raises(ValueError, match="retries must be"):
        make(retries=-1)
    with pytest.raises(ValueError, match="Mask: most must be"):
        Mask(most=-1)
    for log in (tmp_path / "none" / "bad.jsonl", "gs://bucket/bad.jsonl"):
        with pytest.raises(ValueError, match="must be a file in a folder of this machine"):
            Mask(log=log)
    with pytest.raises(ValueError, match="is a folder: name a file in it"):
        Mask(log=tmp_path)
    assert make(order=Shuffle(1), on_error=Mask(log=None)).on_error == Mask(log=None)
