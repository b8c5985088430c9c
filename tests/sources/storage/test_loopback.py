"""Nobody but the store that was named is contacted, and the command says so if it is not there."""

import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from loader import TensorStoreSource
from loader.command.main import main
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET
from tests.sources.storage.stored_data import FILES, put, rows_of
from tests.sources.test_tensorstore_source import write_records


def contacted() -> set[str]:
    """The addresses at the other end of this process's sockets, as the system shows them."""
    own = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue  # closed meanwhile
        own |= {found[1]} if found else set()
    addresses = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in own:
                addresses.add(fields[2].partition(":")[0])
    return addresses


def in_words(address: str) -> str:
    """`0100007F` of the tables is 127.0.0.1."""
    last = address[-8:]
    return ".".join(map(str, struct.pack("<I", int(last, 16))))


def test_nothing_but_loopback_is_contacted(store: FakeStore, tmp_path: Path):
    seen: set[str] = set()
    store.on_read = lambda request: seen.update(contacted() if len(store.log) % 9 == 1 else ())
    for kind in FILES:
        put(kind, store)
        for scheme in ("gs", "s3"):
            if (kind, scheme) != ("records", "s3"):
                rows_of(FILES[kind][1](f"{scheme}://{BUCKET}/{kind}"))
    write_records(tmp_path, 23)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            store.put(BUCKET, str(file.relative_to(tmp_path)), file.read_bytes())
    for scheme in ("gs", "s3"):
        TensorStoreSource(f"{scheme}://{BUCKET}/x.zarr").gather(np.arange(9))
    seen |= contacted()
    assert {in_words(address) for address in seen} == {"127.0.0.1", "0.0.0.0"}


def test_check_reports_a_bucket_that_cannot_be_reached_within_the_deadline(
    store: FakeStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    put("lines", store)
    config = tmp_path / "far.toml"
    config.write_text(
        '[source]\nkind = "TextLinesSource"\n'
        f'paths = "gs://{BUCKET}/lines/*.txt"\n[loader]\nbatch_size = 4\n'
    )
    assert main(["check", str(config)]) == 0
    assert "TextLinesSource(5 files, 23 lines)" in capsys.readouterr().out
    monkeypatch.setenv("GRISTMILL_STORAGE_TIMEOUT_S", "0.3")
    store.go()
    assert main(["check", str(config)]) == 2
    said = capsys.readouterr()
    words = " ".join((said.out + said.err).split())
    assert re.search(r"gs://bucket/lines.* was not answered for within 0\.3 s", words)
