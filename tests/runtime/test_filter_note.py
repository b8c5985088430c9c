"""A loader whose records are filtered out says once that their rows are zeros, and how many."""

from typing import Any

import grain
import numpy as np
import pytest

from loader import DataLoader, Filter, Filtered


def keep(record: Any) -> bool:
    return record["id"] % 4 == 0


def loader_of(count: int, **options: Any) -> DataLoader:
    return DataLoader({"id": np.arange(count)}, batch_size=50, operators=[Filter(keep)], **options)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "filtered" in record.getMessage()]


def test_the_share_is_said_once_after_a_thousand_rows(caplog: pytest.LogCaptureFixture):
    loader = loader_of(1300, epochs=None)
    for _ in range(19):
        next(loader)
    assert not lines(caplog)
    for _ in range(40):
        next(loader)
    for batch in loader.from_start(steps=30):
        assert 12 <= batch["valid_mask"].sum() <= 13
    loader.close()
    (line,) = lines(caplog)
    assert "of the first 1000 records (75.0 %) were filtered out" in line
    assert "valid_mask" in line
    assert "Filtered(source, keep)" in line


@pytest.mark.parametrize("passes", [1, 3])
def test_a_short_run_says_it_at_its_end_and_padding_does_not_count(
    passes: int, caplog: pytest.LogCaptureFixture
):
    loader = loader_of(80)
    for _ in range(passes):
        assert len(list(loader.from_start())) == 2
    (line,) = lines(caplog)
    assert "60 of the first 80 records (75.0 %)" in line


def test_elements_that_grain_filters_out_count_too(caplog: pytest.LogCaptureFixture):
    dataset = grain.MapDataset.source([{"id": n} for n in range(10)]).filter(keep)
    assert len(list(DataLoader(dataset, batch_size=4).host_batches())) == 3
    (line,) = lines(caplog)
    assert "7 of the first 10 records (70.0 %)" in line


def test_nothing_is_said_where_nothing_is_filtered_out(caplog: pytest.LogCaptureFixture):
    source = Filtered({"id": np.arange(90)}, keep)
    for loader in (DataLoader(source, batch_size=50), loader_of(1)):
        list(loader)
    assert not lines(caplog)
