import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from loader import DiskCache
from loader.records.errors import StorageError
from loader.sources.storage.cache.cache_folder import CacheFolder, entry_path, new_entry

ROOT = Path(__file__).parents[4]


def key(number: int) -> str:
    return f"{number:032x}"


def content(number: int, size: int) -> bytes:
    return bytes((number * 7 + place) % 251 for place in range(size))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[CacheFolder]:
    opened = CacheFolder(str(tmp_path), 100)
    yield opened
    opened.close()


def fill(folder: CacheFolder, number: int, size: int) -> None:
    assert folder.reserve(key(number), size) == "ours"
    with new_entry(folder.folder, key(number)) as file:
        file.write(content(number, size))
    folder.filled(key(number))


def files(folder: CacheFolder) -> dict[str, int]:
    """The bytes of each file below the folder, by the name of its entry."""
    pieces = Path(folder.folder, "pieces")
    return {f"{path.parent.name}{path.name}": path.stat().st_size for path in pieces.glob("*/*")}


def test_what_nobody_holds_goes_when_there_is_no_room_the_oldest_first(folder: CacheFolder):
    for number in range(4):
        fill(folder, number, 25)
    assert folder.reserve(key(4), 10) == "full"  # all are held
    folder.release([key(2), key(1)])
    assert folder.used == 100  # it goes only when its room is needed
    assert folder.reserve(key(4), 10) == "ours"
    assert folder.ready().keys() == {key(0), key(2), key(3)}
    assert files(folder).keys() == {key(0), key(2), key(3)}
    assert folder.used == 85
    folder.drop(key(4))
    assert folder.used == 75


def test_the_next_run_finds_what_is_there(tmp_path: Path):
    first = CacheFolder(str(tmp_path), 100)
    fill(first, 1, 60)
    first.close()
    second = CacheFolder(str(tmp_path), 100)
    assert second.ready() == {key(1): 60}
    assert second.reserve(key(1), 60) == "there"
    assert second.reserve(key(2), 60) == "full"  # it is held now
    second.release()
    assert second.reserve(key(2), 60) == "ours"
    second.close()


def test_of_two_processes_one_fetches_and_neither_takes_what_the_other_holds(tmp_path: Path):
    here, there = CacheFolder(str(tmp_path), 100), CacheFolder(str(tmp_path), 100)
    assert here.reserve(key(1), 60) == "ours"
    assert there.reserve(key(1), 60) == "theirs"
    with new_entry(str(tmp_path), key(1)) as file:
        file.write(content(1, 60))
    here.filled(key(1))
    assert there.reserve(key(1), 60) == "there"
    here.release()
    assert not there.others_want()
    assert here.reserve(key(2), 60) == "full"
    assert there.others_want()
    assert not here.others_want()
    there.release()
    assert here.reserve(key(2), 60) == "ours"
    assert not there.others_want()
    here.close()
    assert there.used == 0  # it was not written
    there.close()


def test_files_and_index_that_do_not_agree_are_made_to(tmp_path: Path):
    first = CacheFolder(str(tmp_path), 100)
    fill(first, 1, 30)
    fill(first, 2, 30)
    first.close()
    os.unlink(entry_path(str(tmp_path), key(1)))
    Path(entry_path(str(tmp_path), key(2))).with_name("stray").write_bytes(b"x" * 50)
    second = CacheFolder(str(tmp_path), 100)
    assert second.ready() == {key(2): 30}
    assert second.used == 30
    assert files(second) == {key(2): 30}
    second.close()


HOLD = """
import sys, types
for name in ("loader", "loader.sources"):  # without what they import, which takes seconds
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = [name.replace(".", "/")]
from loader.sources.storage.cache.cache_folder import CacheFolder, new_entry
folder, one, two = CacheFolder(sys.argv[1], 100), *sys.argv[2:]
assert [folder.reserve(key, 40) for key in (one, two)] == ["ours", "ours"]
with new_entry(folder.folder, one) as file:
    file.write(b"1" * 40)
folder.filled(one)
with new_entry(folder.folder, two) as file:
    file.write(b"2" * 20)
    file.flush()
    print("half", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_had_begun_is_gone_and_what_it_held_is_free(tmp_path: Path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), key(1), key(2)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "half\n"
    folder = CacheFolder(str(tmp_path), 100)
    assert folder.num_processes == 2
    assert folder.used == 80
    assert len(files(folder)) == 2
    assert folder.reserve(key(2), 40) == "theirs"
    assert folder.reserve(key(3), 40) == "full"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert folder.reserve(key(3), 40) == "ours"
    assert folder.num_processes == 1
    assert files(folder) == {key(1): 40}
    assert folder.used == 80
    folder.close()


def test_a_disk_that_is_full_is_said_and_leaves_the_folder_as_it_was(folder: CacheFolder):
    fill(folder, 1, 30)
    assert folder.reserve(key(2), 60) == "ours"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
    try:
        with (
            pytest.raises(StorageError, match=r"no room for the cache .* smaller most_bytes") as no,
            new_entry(folder.folder, key(2)) as file,
        ):
            file.write(content(2, 60))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert no.value.errno is None  # so that nobody tries again
    folder.drop(key(2))
    assert files(folder) == {key(1): 30}
    assert folder.used == 30
    fill(folder, 2, 60)


def test_a_folder_that_cannot_be_used_is_refused_in_words(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=r"cannot write to the cache in .*file"):
        CacheFolder(str(tmp_path / "file"), 100)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "index.sqlite3").write_bytes(b"no database" * 1000)
    with pytest.raises(StorageError, match="remove the folder"):
        CacheFolder(str(tmp_path / "damaged"), 100)


@pytest.mark.parametrize(
    ("given", "size"),
    [("50GB", 50 * 10**9), ("512 MiB", 2**29), ("1.5kb", 1500), ("7", 7), (10, 10), ("2T", None)],
)
def test_most_bytes_is_a_number_or_a_text(given: int | str, size: int | None):
    if size is None:
        with pytest.raises(ValueError, match=r"most_bytes must be bytes .* got '2T'"):
            DiskCache("x", given)
    else:
        assert DiskCache("x", given).most_bytes == size


def test_a_disk_cache_is_a_description(tmp_path: Path):
    cache = DiskCache(tmp_path / "c", "1MB")
    assert pickle.loads(pickle.dumps(cache)) == cache == DiskCache(str(tmp_path / "c"), 10**6)
    assert not (tmp_path / "c").exists()  # until it is used
    for wrong in (0, -1, "0B", True, "many", 1.5):
        with pytest.raises(ValueError, match="most_bytes must be"):
            DiskCache(tmp_path, wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="folder on local disk"):
        DiskCache("gs://bucket/cache", 1)
    with pytest.raises(ValueError, match="at_once"):
        DiskCache("x", 1, at_once=0)


def test_a_new_folder_may_be_opened_by_many_at_once(tmp_path: Path):
    at_once, errors = threading.Barrier(8), list[BaseException]()

    def open_all() -> None:
        for number in range(40):
            at_once.wait()
            try:
                CacheFolder(str(tmp_path / str(number)), 100).close()
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=open_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
