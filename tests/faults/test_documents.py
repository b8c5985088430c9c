import json
import os
import pickle
import random
import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import ArrayRecordSource, DataLoader, RawArrays, Shuffle, Threads
from loader.testing import assert_same_batch
from tests.data import RECORD_SPEC, unlike_records, write_raw_records
from tests.faults.table import Record
from tests.state.test_state import mutations


def make(workers: int = 0, count: int = 53) -> DataLoader:
    return DataLoader(
        unlike_records(count), batch_size=8, order=Shuffle(3), epochs=2, workers=Threads(workers)
    )


def test_any_number_of_threads_goes_on_with_the_same_batches(record: Record):
    expected = list(make().host_batches())
    for before in range(5):
        for after in range(5):
            with make(before) as saved, make(after) as resumed:
                for _ in range(5):
                    next(saved)
                resumed.set_state(saved.get_state())
                for step, batch in enumerate(resumed, 5):
                    assert_same_batch(batch, expected[step], f"{before} to {after}, batch {step}")
    record("thread counts on save and resume, 0 to 4", 25, "identical")


def test_a_mutated_document_is_refused(full: bool, record: Record):
    rng = random.Random(1)
    loader = make()
    for _ in range(5):
        next(loader)
    state = loader.get_state()
    count, refused = 1000 if full else 200, 0
    for _ in range(count):
        mutated = mutations(state, rng)
        if mutated is None or mutated == state:
            continue
        with pytest.raises((ValueError, TypeError), match=r"damaged|version|State must be"):
            make().set_state(mutated)
        refused += 1
    record(
        "state document mutated at random", count, f"{refused} refused, the rest equal or no JSON"
    )


def test_changed_data_is_refused_by_name_and_allowed_by_name(record: Record, tmp_path: Path):
    for name in "abc":
        (tmp_path / name).mkdir()
    paths = write_raw_records(tmp_path / "a", [20, 33])
    longer = write_raw_records(tmp_path / "b", [20, 33, 5])
    other = write_raw_records(tmp_path / "c", [33, 20])

    def over(paths: list[str]) -> DataLoader:
        return DataLoader(ArrayRecordSource(paths, RawArrays(RECORD_SPEC)), batch_size=8)

    saved = over(paths)
    next(saved)
    state = saved.get_state()
    changed = unlike_records(53)
    memory_state = make().get_state()
    changed["x"][0, 0] += 1  # record 0 is among those sampled
    cases: list[tuple[DataLoader, Any, str]] = [
        (over(longer), state, "data.length"),
        (over(paths[:1]), state, "data.files"),
        (over([paths[0], other[0]]), state, "data.sample"),
        (
            DataLoader(changed, batch_size=8, order=Shuffle(3), epochs=2),
            memory_state,
            "data.sample",
        ),
    ]
    for loader, before, field in cases:
        with pytest.raises(ValueError, match=f"{field}: saved"):
            loader.set_state(before)
        loader.set_state(before, allow_changes={"data"})
        assert loader.get_state()["position"] == before["position"]
    record(
        "data longer, shorter, replaced, changed", len(cases), "refused by name; allowed by name"
    )


def test_a_save_that_cannot_be_made_leaves_the_older_ones(record: Record, tmp_path: Path):
    loader = make()
    next(loader)
    loader.save(tmp_path)
    before = sorted(os.listdir(tmp_path))
    next(loader)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            loader.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(os.listdir(tmp_path)) == before
    # Without permission: as a user who is not the owner, for root may write everywhere.
    os.chmod(tmp_path, 0o555)
    script = (
        "import os, sys\n"
        "import numpy as np\n"
        "from loader import DataLoader\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "DataLoader({'x': np.arange(8)}, batch_size=2).save(sys.argv[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    os.chmod(tmp_path, 0o755)
    assert "PermissionError" in done.stderr
    assert sorted(os.listdir(tmp_path)) == before
    loader.save(tmp_path)
    resumed = make()
    resumed.restore(tmp_path)
    assert resumed.get_state()["step"] == 2
    record("disk full; no permission to write", 2, "older steps intact; the next save works")


def test_what_a_stranger_sends_is_refused_without_being_run(record: Record, tmp_path: Path):
    marker = tmp_path / "executed"

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {marker}",)

    state = make().get_state()
    nested: Any = 1
    for _ in range(10_000):
        nested = [nested]
    strange: list[Any] = [
        {**state, "step": 10**400},
        {**state, "position": float("inf")},
        {**state, "fingerprint": nested},
        {**state, "origin": nested},
        {**state, "checksum": nested},
        {**state, "fingerprint": {"order": "x" * 10**6}},
        {str(n): n for n in range(10**5)},
        Evil(),
        np.array([Evil()], object),
    ]
    for bad in strange:
        with pytest.raises((ValueError, TypeError), match=r"damaged|State must be a dict"):
            make().set_state(bad)
    good = json.dumps(state).encode()
    files = {
        "pickle": pickle.dumps(Evil()),
        "huge number": good.replace(b'"step": 0', b'"step": ' + b"9" * 10_000),
        "deep nesting": b"[" * 60_000,
        "100 MB": b" " * 100_000_000,
        "no text": bytes(range(256)) * 10,
    }
    for name, content in files.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "00000000-step-1.json").write_bytes(content)
        tracemalloc.start()
        with pytest.warns(RuntimeWarning, match="passing over"), pytest.raises(FileNotFoundError):
            make().restore(folder)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 20 * 2**20, name
    assert not marker.exists()
    record(
        "a checkpoint from someone else",
        len(strange) + len(files),
        "refused; nothing run; memory bounded",
    )
