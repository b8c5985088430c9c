"""`gristmill plan`: what a run would read, on paper."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader.command.main import main
from loader.command.plan.quantities import bytes_per_second, seconds

ORDER = '[order]\nkind = "BlockShuffle"\nseed = 0\nwindow = {window}\n'
CONFIG = """
[source]
kind = "stored:Told"
record_bytes = {record_bytes}
files = {files}
records = {records}
{order}
[loader]
batch_size = {batch_size}
epochs = {epochs}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    shutil.copy(Path(__file__).parent / "stored.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "stored", raising=False)

    def write(files: int = 40, records: int = 60, window: int = 4, **other: Any) -> str:
        values = {
            "batch_size": 16,
            "epochs": 2,
            "record_bytes": 4000,
            "order": ORDER.format(window=window),
            **other,
        }
        Path("run.toml").write_text(CONFIG.format(files=files, records=records, **values))
        return "run.toml"

    return write


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_each_host_reads_the_data_once_an_epoch_in_blocks(config: Any, capsys: Any):
    facts = planned(capsys, config(), "--hosts", "4", "--cache", "4MB", "--step-time", "0.2")
    data = facts["data_bytes"]
    assert facts["pieces"] == 40
    assert facts["records"] * 4000 == data
    first, second = facts["epochs"]
    assert (first["pieces_fetched"], first["bytes"]) == (40, data)
    assert first["bytes_of_all_hosts"] == 4 * data
    assert first["requests"] == 40
    assert 0 < second["pieces_fetched"] < 40  # some of the first epoch's are there
    assert (facts["exact"], facts["hosts_gone_through"]) == (True, 4)
    assert first["error"] == 0
    assert facts["keeps_up"] is True
    shuffle = next(o for o in facts["other_orders"] if o["order"] == "Shuffle(seed=0)")
    assert shuffle["times"] == pytest.approx(shuffle["num_bytes"] / data)
    assert shuffle["times"] > 4
    assert Path(facts["picture"]).read_bytes().startswith(b"\x89PNG")


def test_people_read_it_in_words(config: Any, capsys: Any):
    path = config()
    out = said(capsys, path, "--hosts", "4", "--cache", "4MB", "--step-time", "200ms")
    for words in (
        "40 pieces, by the shape of a record",
        "4, each with 4 rows of a batch; cache: 4.0 MB",
        "exactly, by going through every step of every host",
        "a host: 40 requests,",
        "all hosts: 160 requests,",
        "keeps up with a step of 200 ms: a batch takes",
        "the loop waits 0.0% of the time",
        "Shuffle(seed=0) would read",
        "times the bytes",
        "run-plan.png",
    ):
        assert words in out
    out = said(capsys, path, "--cache", "4MB", "--step-time", "1ms", "--bandwidth", "1MB/s")
    assert "does not keep up with a step of 1 ms" in out
    assert "give --step-time to see whether that keeps up" in said(capsys, path, "--cache", "4MB")


def test_the_order_that_is_planned_is_not_compared_with_itself(config: Any, capsys: Any):
    path = config(order='[order]\nkind = "Shuffle"\nseed = 3\n')
    facts = planned(capsys, path, "--cache", "1GB")
    assert facts["order"] == "Shuffle(seed=3)"
    others = {other["order"]: other["times"] for other in facts["other_orders"]}
    assert others == {"Sequential()": 1, "BlockShuffle(seed=3, window=16)": 1}
    assert [epoch["pieces_fetched"] for epoch in facts["epochs"]] == [40, 0]


def test_another_order_that_needs_a_larger_cache_says_so(config: Any, capsys: Any):
    facts = planned(capsys, config(), "--cache", "3MB")
    (shuffle,) = [o for o in facts["other_orders"] if o["order"] == "Shuffle(seed=0)"]
    assert shuffle["times"] is None
    assert "the cache holds 3,000,000 bytes, and batch" in shuffle["problem"]


def test_a_million_million_records_on_4096_hosts_are_planned_without_reading_one(
    config: Any, capsys: Any
):
    path = config(
        files=20_000, records=50_000_000, window=16, batch_size=65_536, epochs=1, record_bytes=4
    )
    facts = planned(capsys, path, "--hosts", "4096", "--cache", "50GB", "--step-time", "0.5")
    assert facts["records"] > 9.9e11
    assert facts["exact"] is False
    (epoch,) = facts["epochs"]
    # Every host has rows of every block, and reads each once.
    assert epoch["bytes"] == pytest.approx(facts["data_bytes"], rel=epoch["error"] + 1e-6)
    assert epoch["bytes_of_all_hosts"] == pytest.approx(4096 * epoch["bytes"])


def test_of_more_records_than_are_gone_through_it_is_an_estimate_with_an_error(
    config: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    path = config(files=60, records=100, epochs=1, order='[order]\nkind = "Shuffle"\nseed = 3\n')
    exact = planned(capsys, path, "--cache", "14MB", "--hosts", "2")["epochs"][0]
    monkeypatch.setattr("loader.command.plan.plan._EXACT", 1000)
    facts = planned(capsys, path, "--cache", "14MB", "--hosts", "2")
    (found,) = facts["epochs"]
    assert facts["exact"] is False
    assert 0 < found["error"] < 0.5
    assert found["bytes"] == pytest.approx(exact["bytes"], rel=found["error"])
    out = said(capsys, path, "--cache", "14MB", "--hosts", "2")
    assert f"an estimate from blocks and samples, ± {found['error']:.0%}" in out


def test_of_many_hosts_some_are_gone_through_and_it_says_how_many(
    config: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    path = config()
    whole = planned(capsys, path, "--cache", "4MB", "--hosts", "8")
    monkeypatch.setattr("loader.command.plan.replayed._PAIRS", 1000)
    facts = planned(capsys, path, "--cache", "4MB", "--hosts", "8")
    assert 1 <= facts["hosts_gone_through"] < 8
    read, of_all = (one["epochs"][0]["bytes_of_all_hosts"] for one in (facts, whole))
    assert read == pytest.approx(of_all, rel=0.02)  # a host may have no row of a small file
    count = facts["hosts_gone_through"]
    words = f"every step of {count} of the 8 hosts"
    assert words in said(capsys, path, "--cache", "4MB", "--hosts", "8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--hosts", "3", "--cache", "1GB"), "batch_size 16 does not divide over 3 hosts: give"),
        (("--hosts", "0", "--cache", "1GB"), "hosts must be an int of at least 1, got 0"),
        ((), "what is read without a cache is known only of sources .* give --cache"),
        (("--cache", "300KB"), r"batch \d+ alone needs .*: give DiskCache\(folder, most_bytes="),
        (("--cache", "much"), "most_bytes must be bytes above 0, .* got 'much'"),
        (("--cache", "1GB", "--latency", "soon"), "expected a time such as 0.2, .* got 'soon'"),
        (("--cache", "1GB", "--bandwidth", "1"), "expected a speed such as 1GB/s .*, got '1'"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    config: Any, capsys: Any, arguments: tuple[str, ...], message: str
):
    assert main(["plan", config(), *arguments]) == 2
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(capsys.readouterr().err)


def test_data_in_memory_has_nothing_to_plan(tmp_path: Path, capsys: Any):
    np.save(tmp_path / "ids.npy", np.arange(9))
    path = tmp_path / "run.toml"
    arrays = f'arrays = {{ id = "{tmp_path / "ids.npy"}" }}'
    path.write_text(f'[source]\nkind = "ArraySource"\n{arrays}\n[loader]\nbatch_size = 2\n')
    assert main(["plan", str(path)]) == 2
    assert "does not say where its records are stored" in capsys.readouterr().err


def test_check_warns_of_an_order_that_reads_the_data_many_times(config: Any, capsys: Any):
    texts = Path("texts")
    texts.mkdir()
    for number in range(60):
        (texts / f"{number}.txt").write_text("some words\n" * 20)
    source = '[source]\nkind = "TextLinesSource"\npaths = "texts/*.txt"\n{cache}'
    cache = 'cache = { kind = "DiskCache", folder = "kept", most_bytes = 8000 }\n'
    rest = '[order]\nkind = "Shuffle"\nseed = 0\n[loader]\nbatch_size = 16\n'
    for given, warned in ((cache, True), ("", False)):
        Path("texts.toml").write_text(source.format(cache=given) + rest)
        assert main(["check", "texts.toml"]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert ("times the data (13.2 kB) in an epoch" in out) == warned
        assert out.count("times the data") == int(warned)
        assert main(["check", "texts.toml", "--json"]) == 0
        advice = json.loads(capsys.readouterr().out).get("advice", [])
        assert any("times the data" in words for words in advice) == warned


def test_times_and_speeds_are_read_as_people_write_them():
    assert [seconds(text) for text in ("0.2", "30ms", "1.5 s", "2min")] == [0.2, 0.03, 1.5, 120]
    assert [bytes_per_second(text) for text in ("1GB/s", "200 MiB/s", "5kB")] == [
        1e9,
        200 * 2**20,
        5e3,
    ]
    for text in ("", "-1", "0", "1 parsec"):
        with pytest.raises(ValueError, match="expected a time"):
            seconds(text)
