"""Tokens that are kept: the records read last in memory, all of them in a file."""

import os
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, DiskCache, Mapped, Packed, Shuffle, Threads, index_lengths
from loader.records.errors import StorageError
from loader.sources.packing import read_cost
from loader.sources.recent_records import RecentRecords
from loader.testing import assert_same_batch
from operators import ByteTokenizer, Map, Tokenize
from tests.data import unlike_records
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET

TEXTS = [f"{n} " + "wörd " * (n * 37 % 90) for n in range(50)] + ["", "the last"]


class Texts:
    """Texts, and how often each was asked for."""

    def __init__(self, texts: list[str] = TEXTS) -> None:
        self.texts, self.reads = texts, np.zeros(len(texts), int)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, str]:
        self.reads[index] += 1
        return {"text": self.texts[index]}

    def fingerprint(self) -> dict[str, Any]:
        return {"texts": self.texts}


def tokenised(source: Any, **options: bool) -> Mapped:
    return Mapped(source, [Tokenize(tokenizer=ByteTokenizer(**options))])


def packed(source: Any, **settings: Any) -> Packed:
    if "tokens" in settings:
        lengths = index_lengths(source, tokens=settings["tokens"])
    else:
        lengths = index_lengths(source)
    return Packed(source, lengths, 64, seed=1, long="split", **settings)


def batches(source: Any, threads: int = 1) -> list[Any]:
    how = {"order": Shuffle(3), "epochs": 2, "workers": Threads(threads)}
    with DataLoader(source, batch_size=5, **how) as loader:
        return list(loader.host_batches())


def assert_same(got: list[Any], want: list[Any]) -> None:
    for step, pair in enumerate(zip(got, want, strict=True)):
        assert_same_batch(*pair, f"batch {step}")


def test_what_is_kept_changes_no_batch(tmp_path: Path):
    expected = batches(packed(tokenised(Texts()), cache_bytes=0))
    for threads in (1, 3):
        kept = packed(tokenised(Texts()), tokens=tmp_path / "tokens.bin")
        assert_same(batches(kept, threads), expected)
        assert_same(batches(pickle.loads(pickle.dumps(kept)), threads), expected)
        for cache_bytes in (1, 3000, 2**28):  # nothing, a part, all of it
            some = packed(tokenised(Texts()), cache_bytes=cache_bytes)
            assert_same(batches(some, threads), expected)
            assert_same(batches(pickle.loads(pickle.dumps(some)), threads), expected)
            mapped = Mapped(Texts(), [Tokenize(tokenizer=ByteTokenizer())], cache_bytes=cache_bytes)
            assert_same(batches(packed(mapped, cache_bytes=0), threads), expected)


def test_what_is_kept_is_not_in_the_state(tmp_path: Path):
    def loader(**settings: Any) -> DataLoader:
        return DataLoader(packed(tokenised(Texts()), **settings), batch_size=4)

    state = loader().get_state()
    for settings in ({"cache_bytes": 0}, {"tokens": tmp_path / "tokens.bin"}):
        assert loader(**settings).get_state() == state


def test_a_record_in_many_rows_is_read_once_as_long_as_it_is_kept():
    texts = Texts()
    source = packed(tokenised(texts))
    texts.reads[:] = 0
    for _ in range(2):
        for row in range(len(source)):
            source[row]
    assert texts.reads.max() == 1
    texts = Texts()
    source = packed(tokenised(texts), cache_bytes=0)
    texts.reads[:] = 0
    for row in range(len(source)):
        source[row]
    assert texts.reads.max() > 4  # which is why


def test_mapped_records_that_are_kept_are_made_once_and_are_the_callers_own():
    made = []

    def noted(record: dict[str, Any]) -> dict[str, Any]:
        made.append(int(record["id"]))
        return {**record, "twice": record["id"] * 2}

    records = unlike_records(12)
    source = Mapped(records, [Map(noted)], cache_bytes=2**20)
    source.record_spec()
    made.clear()
    for indices in ([3, 1, 3], [1, 5], [5, 3, 1]):
        rows = source.gather(np.array(indices))
        np.testing.assert_array_equal(rows["x"], records["x"][indices])
        np.testing.assert_array_equal(rows["twice"], records["id"][indices] * 2)
        for leaf in rows.values():
            leaf[:] = 77
    assert sorted(made) == [1, 3, 3, 5]  # what is asked for twice at once is made twice


def test_no_more_is_kept_than_was_said_whatever_threads_do():
    recent = RecentRecords(50_000)
    read: list[int] = []

    def reader(indices: np.ndarray) -> list[Any]:
        read.extend(indices.tolist())
        return [(np.full(100 + index, index),) for index in indices.tolist()]

    def use(seed: int) -> None:
        for indices in np.random.default_rng(seed).integers(0, 200, (300, 4)):
            for index, (array,) in zip(indices, recent.records(indices, reader), strict=True):
                assert (array == index).all()
                assert len(array) == 100 + index

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = [record for record, _ in recent._records.values()]
    assert 20_000 < sum(array.nbytes for (array,) in kept) <= 50_000
    assert len(read) < 4 * 300 * 4


def test_what_is_kept_of_a_large_array_does_not_keep_all_of_it():
    recent, large = RecentRecords(2**20), np.zeros((2, 1000))
    recent.records(np.arange(2), lambda indices: [(row,) for row in large])
    ((first,),) = recent.records(np.array([1]), lambda indices: [])
    assert not np.shares_memory(first, large)


def test_tokens_are_made_once(tmp_path: Path):
    path, texts = tmp_path / "deep" / "tokens.bin", Texts()
    lengths = index_lengths(tokenised(texts), tokens=path)
    assert lengths.tolist() == [len(text.encode()) for text in TEXTS]
    assert [file.name for file in path.parent.iterdir()] == ["tokens.bin"]
    written = path.stat().st_mtime_ns, path.read_bytes()
    again = index_lengths(tokenised(texts), tokens=path)
    assert again.tolist() == lengths.tolist()
    assert (path.stat().st_mtime_ns, path.read_bytes()) == written
    source = Packed(tokenised(texts), again, 64, long="split", tokens=path)
    texts.reads[:] = 0
    rows = source.gather(np.arange(len(source)))
    assert not texts.reads.any()
    assert ByteTokenizer().decode(np.sort(rows["tokens"].ravel())) == "".join(
        sorted("".join(TEXTS).encode().decode("latin1"))
    ).encode("latin1").decode(errors="replace")
    index_lengths(tokenised(texts), tokens=path, refresh=True)
    assert path.stat().st_mtime_ns > written[0]


def test_a_copy_in_a_store_is_read_by_what_a_batch_needs_or_through_a_cache(
    store: FakeStore, tmp_path: Path
):
    index_lengths(tokenised(Texts()), tokens=tmp_path / "tokens.bin")
    address, content = f"gs://{BUCKET}/tokens.bin", (tmp_path / "tokens.bin").read_bytes()
    store.put(BUCKET, "tokens.bin", content)
    texts = Texts()
    expected = batches(packed(tokenised(texts)))
    texts.reads[:] = 0
    source = packed(tokenised(texts), tokens=address)
    assert_same(batches(source), expected)
    assert_same(batches(pickle.loads(pickle.dumps(source))), expected)
    assert texts.reads[1:].sum() == 0
    cache = DiskCache(tmp_path / "cache", "1MB")
    for place in (address, str(tmp_path / "tokens.bin")):
        source = packed(tokenised(texts), tokens=place, cache=cache)
        with store.logged() as log:
            assert_same(batches(source), expected)
        wanted = ["tokens.bin"] if place == address else []
        assert log.of("read").keys == wanted
        assert log.bytes == len(content) * len(wanted)
    assert len([*tmp_path.glob("cache/pieces/*/*")]) == 2
    source = packed(tokenised(texts), tokens=address)
    store.put(BUCKET, "tokens.bin", content[::-1])
    with pytest.raises(StorageError, match=r"tokens\.bin was replaced since the source was made"):
        source[0]


def test_tokens_of_another_tokenizer_or_of_other_data_are_refused(store: FakeStore, tmp_path: Path):
    path = tmp_path / "tokens.bin"
    lengths = index_lengths(tokenised(Texts()), tokens=path)
    store.put(BUCKET, "tokens.bin", path.read_bytes())
    store.put(BUCKET, "damaged.bin", path.read_bytes()[:-1])
    others = tokenised(Texts(["x" + text[1:] for text in TEXTS[:-2]] + ["", "The last"]))
    for source in (tokenised(Texts(), bos=True), others):
        with pytest.raises(ValueError, match=r"other data, or of another tokenizer .*anew"):
            Packed(source, lengths, 64, long="split", tokens=path)
    with pytest.raises(ValueError, match="records of other lengths than those given"):
        Packed(tokenised(Texts()), lengths[::-1], 64, long="split", tokens=path)
    with pytest.raises(ValueError, match=r"there is no file of tokens .*other\.bin: index_lengths"):
        Packed(tokenised(Texts()), lengths, 64, long="split", tokens=tmp_path / "other.bin")
    far = f"gs://{BUCKET}"
    with pytest.raises(ValueError, match=r"gs://.* of other data, .* a copy of the file that"):
        index_lengths(others, tokens=f"{far}/tokens.bin")
    with pytest.raises(ValueError, match=r"damaged\.bin is not a whole file of tokens"):
        Packed(tokenised(Texts()), lengths, 64, long="split", tokens=f"{far}/damaged.bin")
    with pytest.raises(ValueError, match=r"tokens are made on this machine, and gs://.* copy it"):
        index_lengths(others, tokens=f"{far}/tokens.bin", refresh=True)
    with pytest.raises(ValueError, match=r"cache= is for a file of tokens, and tokens is None"):
        Packed(tokenised(Texts()), lengths, 64, long="split", cache=DiskCache(tmp_path, 1))
    with pytest.raises(ValueError, match="a file of tokens holds one leaf"):
        Packed(others, lengths, 64, leaf=["tokens", "mask"], long="split", tokens=path)
    longer = index_lengths(tokenised(Texts(), bos=True), tokens=path)  # made anew
    assert (longer == lengths + 1).all()
    packed(tokenised(Texts(), bos=True), tokens=path)


def test_tokens_that_no_longer_fit_the_records_are_made_anew(tmp_path: Path):
    path, texts = tmp_path / "tokens.bin", Texts()
    index_lengths(tokenised(texts), tokens=path)
    texts.fingerprint = lambda: {"texts": TEXTS}  # which does not see what changes now
    texts.texts = [text.swapcase() for text in TEXTS]  # no length changes
    source = packed(tokenised(texts), tokens=path)
    assert_same_batch(source[0], packed(tokenised(texts))[0], "a row of what is there now")


def test_a_pass_that_does_not_end_leaves_the_tokens_as_they_were(tmp_path: Path):
    path, texts = tmp_path / "tokens.bin", Texts()
    index_lengths(tokenised(texts), tokens=path)
    written = path.read_bytes()

    class Broken(Texts):
        def __getitem__(self, index: int) -> dict[str, str]:
            if index == 40:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    with pytest.raises(KeyboardInterrupt):
        index_lengths(tokenised(Broken()), tokens=path, refresh=True)
    assert [file.name for file in tmp_path.iterdir()] == ["tokens.bin"]
    assert path.read_bytes() == written


def test_a_file_that_is_not_of_tokens_is_neither_read_nor_replaced(tmp_path: Path):
    path, source = tmp_path / "tokens.bin", tokenised(Texts())
    lengths = index_lengths(source, tokens=path)
    whole = path.read_bytes()
    for content in (
        b"",
        b"1234567",
        b"raw tokens of mine" * 9,
        whole[:-1],
        whole[8:],
        b"x" + whole,
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is there already, and is not a file of tokens"):
            index_lengths(source, tokens=path)
        with pytest.raises(ValueError, match="is not a whole file of tokens"):
            Packed(source, lengths, 64, long="split", tokens=path)
        assert path.read_bytes() == content
    with pytest.raises(ValueError, match="give tokens, and leave out cache"):
        index_lengths(source, tokens=tmp_path / "a.bin", cache=tmp_path / "b.npy")


def test_a_file_of_tokens_that_becomes_shorter_is_noticed(tmp_path: Path):
    path = tmp_path / "tokens.bin"
    source = packed(tokenised(Texts()), tokens=path)
    os.truncate(path, path.stat().st_size - 4096)
    with pytest.raises(ValueError, match=r"tokens\.bin had .* bytes when it was opened"):
        source[0]


def test_tokens_may_have_more_axes_and_any_dtype_but_one(tmp_path: Path):
    def records(*dtypes: Any) -> list[Any]:
        return [{"tokens": np.full((n + 1, 2), n, dtype)} for n, dtype in enumerate(dtypes)]

    source, path = records(np.float16, np.float16, np.float16), tmp_path / "tokens.bin"
    lengths = index_lengths(source, tokens=path)
    want, got = Packed(source, lengths, 8), Packed(source, lengths, 8, tokens=path)
    assert_same_batch(got[0], want[0], "a row of pairs")
    with pytest.raises(ValueError, match=r"record 1 is int32\[2, 2\] where others are int64"):
        index_lengths(Listed(records(np.int64, np.int32)), tokens=path)


class Listed:
    """Records that are gathered as they are, whatever their dtypes."""

    def __init__(self, records: list[Any]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def gather(self, indices: np.ndarray) -> Any:
        leaf = np.empty(len(indices), object)
        for place, index in enumerate(indices.tolist()):
            leaf[place] = self.records[index]["tokens"]
        return {"tokens": leaf}


def test_the_slow_way_warns_once_with_its_cost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(read_cost, "_MUCH_S", 0.0)
    source = packed(tokenised(Texts(["word " * 2000, "other " * 3000])), cache_bytes=0)
    with pytest.warns(UserWarning, match=r"has read [\d,]+ tokens, in .* s, .*tokens='tokens.bin'"):
        source[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source[1]
        for settings in ({}, {"tokens": tmp_path / "tokens.bin"}):
            quick = packed(tokenised(Texts()), **settings)
            for row in range(len(quick)):
                quick[row]


def test_a_file_that_was_replaced_is_refused_where_the_source_is_sent_to(tmp_path: Path):
    path = tmp_path / "tokens.bin"
    sent = pickle.dumps(packed(tokenised(Texts()), tokens=path))
    pickle.loads(sent)
    index_lengths(tokenised(Texts(), eos=True), tokens=path)
    with pytest.raises(ValueError, match=r"replaced by the tokens of other data.*source again"):
        pickle.loads(sent)
