"""A pass over all records goes on after a kill, and may be made in parts."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from loader import Packed, index_lengths
from loader.sources.packing import passes

ROOT = Path(__file__).parent.parent.parent
COUNT = 5003
Kind = Literal["cache", "tokens"]
KINDS: list[Kind] = ["cache", "tokens"]


class Documents:
    """Documents of which no two are alike. Notes what is read, and does something on the way."""

    def __init__(self, at: int = COUNT, do: Any = None, more: int = 0) -> None:
        self.at, self.do, self.more = at, do, more
        self.reads: list[int] = []

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return {"tokens": np.arange((index * 37 + self.more) % 11, dtype=np.int32) + 20 * index}

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if len(indices) > 100:  # of the pass: the fingerprint and the checks read fewer
            self.reads += indices
            if self.do is not None and self.at in indices:
                self.do()
        return [self[index] for index in indices]

    def fingerprint(self) -> dict[str, Any]:
        return {"more": self.more}


def kill_myself() -> None:
    os.kill(os.getpid(), 9)


def small_blocks(kind: Kind) -> int:
    return 4000 if kind == "cache" else 10_000  # bytes: about 512 records


@pytest.fixture(autouse=True, params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    monkeypatch.setattr(passes, "BLOCK_BYTES", small_blocks(request.param))
    return request.param


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def index(path: Path, kind: Kind, source: Any = None, **how: Any) -> list[int]:
    source = Documents() if source is None else source
    return index_lengths(source, **{kind: path}, **how).tolist()


@pytest.fixture
def whole(tmp_path: Path, kind: Kind) -> dict[str, bytes]:
    """The files of one call that was not disturbed."""
    folder = tmp_path / "whole"
    index(folder / "found.bin", kind)
    return files(folder)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two killed processes have left, one of each kind."""
    folder = tmp_path_factory.mktemp("killed")
    code = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from tests.sources import test_index_parts as t\n"
        "for kind in t.KINDS:\n"
        "    if (child := os.fork()) == 0:\n"
        "        t.passes.BLOCK_BYTES = t.small_blocks(kind)\n"
        f"        path = Path({str(folder)!r}) / kind / 'found.bin'\n"
        "        t.index(path, kind, t.Documents(at=3000, do=t.kill_myself))\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True)
    return folder


def test_a_killed_pass_goes_on_after_its_last_whole_block(
    killed: Path, kind: Kind, whole: dict[str, bytes]
):
    folder = killed / kind
    blocks = sorted((folder / "found.bin.parts" / "0-of-1").glob("[0-9]*.bin"))
    kept = max(int(block.stem.partition("-")[2]) for block in blocks)
    assert len(blocks) >= 4
    assert 2000 < kept <= 3000
    assert [path.name for path in folder.iterdir()] == ["found.bin.parts"]
    source = Documents()
    index(folder / "found.bin", kind, source)
    assert source.reads == list(range(kept, COUNT))
    assert files(folder) == whole


def test_parts_are_joined_into_the_bytes_of_one_call(
    tmp_path: Path, kind: Kind, whole: dict[str, bytes]
):
    path, expected = tmp_path / "parts" / "found.bin", index(tmp_path / "whole" / "found.bin", kind)
    for number in (3, 0, 4, 1, 2):
        source = Documents()
        found = index(path, kind, source, part=(number, 5))
        edges = [COUNT * n // 5 for n in range(6)]
        assert source.reads == list(range(edges[number], edges[number + 1]))
        assert found == expected[edges[number] : edges[number + 1]]
        again = Documents()
        assert index(path, kind, again, part=(number, 5)) == found
        assert again.reads == []  # it was there
    last = Documents()
    assert index(path, kind, last) == expected
    assert last.reads == []
    assert files(path.parent) == whole
    assert index(path, kind, part=(1, 7)) == expected[COUNT // 7 : 2 * COUNT // 7]
    assert files(path.parent) == whole
    if kind == "tokens":
        packed = Packed(Documents(), expected, 64, mode="concat", tokens=path)
        assert (
            packed[0]["tokens"].tolist()
            == Packed(Documents(), expected, 64, mode="concat")[0]["tokens"].tolist()
        )


def test_more_parts_than_records_are_joined_too(tmp_path: Path, kind: Kind):
    source = [{"tokens": np.arange(n + 1)} for n in range(3)]
    for number in range(5):
        index(tmp_path / "found.bin", kind, source, part=(number, 5))
    assert index(tmp_path / "found.bin", kind, source) == [1, 2, 3]


def test_parts_that_are_missing_or_of_other_data_are_refused_by_name(
    tmp_path: Path, kind: Kind, whole: dict[str, bytes]
):
    path = tmp_path / "parts" / "found.bin"
    for number in (0, 2):
        index(path, kind, part=(number, 4))
    message = rf"part 1 of 4, part 3 of 4: missing.*{kind}='.*found\.bin', part=\(1, 4\)\) makes it"
    with pytest.raises(ValueError, match=message):
        index(path, kind)
    index(path, kind, part=(3, 4))

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index(path, kind, Documents(at=COUNT // 2 - 1, do=stop), part=(1, 4))
    with pytest.raises(ValueError, match="part 1 of 4: missing, or not finished"):
        index(path, kind)
    other = Documents(more=1)
    index(path, kind, other, part=(1, 4))
    with pytest.raises(ValueError, match="part 1 of 4: of other data, tokenizer or leaf"):
        index(path, kind)
    index(path, kind, part=(1, 4))
    (path.parent / "found.bin.parts" / "0-of-7").mkdir()
    with pytest.raises(ValueError, match=r"has parts of 4 and of 7.*remove"):
        index(path, kind)
    (path.parent / "found.bin.parts" / "0-of-7").rmdir()
    index(path, kind)
    assert files(path.parent) == whole


def test_a_part_whose_records_have_changed_is_refused_or_made_again(tmp_path: Path, kind: Kind):
    class Unnoticed(Documents):
        def fingerprint(self) -> dict[str, Any]:
            return {}

    path = tmp_path / "found.bin"
    for number in range(2):
        index(path, kind, Unnoticed(), part=(number, 2))
    changed = Unnoticed(more=1)
    with pytest.raises(ValueError, match=r"0-of-2.*does not fit records 0 to .*changed since"):
        index(path, kind, changed)
    for number in range(2):
        index(path, kind, changed, part=(number, 2))
    assert index(path, kind, changed) == [len(changed[n]["tokens"]) for n in range(COUNT)]


def test_refresh_uses_nothing_that_is_kept(tmp_path: Path, kind: Kind):
    path = tmp_path / "found.bin"
    index(path, kind, part=(0, 2))
    index(path, kind, source := Documents(), part=(0, 2), refresh=True)
    assert source.reads == list(range(COUNT // 2))
    index(path, kind, source := Documents(), refresh=True)
    assert source.reads == list(range(COUNT))
    assert not (tmp_path / "found.bin.parts").exists()


def test_another_process_may_finish_first(tmp_path: Path, kind: Kind, whole: dict[str, bytes]):
    path = tmp_path / "both" / "found.bin"
    slow = Documents(at=4000, do=lambda: index(path, kind))  # which removes the blocks of both
    index(path, kind, slow)
    assert files(path.parent) == whole


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ((4, 4), r"part must be \(0, 4\) to \(3, 4\), got \(4, 4\)"),
        ((-1, 4), "the first of part must be .*, got -1"),
        ((0, 0), "the second of part must be .*, got 0"),
        (3, r"part must be two integers, such as \(3, 64\), got 3"),
    ],
)
def test_what_is_not_a_part_is_refused(part: Any, message: str, tmp_path: Path, kind: Kind):
    source = Documents()
    with pytest.raises(ValueError, match=message):
        index(tmp_path / "found.bin", kind, source, part=part)
    with pytest.raises(ValueError, match="a part is kept until it is joined: give a file"):
        index_lengths(source, part=(0, 2))
    assert source.reads == []
