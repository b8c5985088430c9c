import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, TokenWindows
from tests.source_checks import assert_is_a_source_of

TOKENS = np.random.default_rng(0).permutation(70).astype(np.uint16)


def windows(length: int, stride: int) -> np.ndarray:
    starts = range(0, len(TOKENS) - length + 1, stride)
    return np.stack([TOKENS[start : start + length] for start in starts])


def as_npy(folder: Path) -> str:
    np.save(folder / "tokens.npy", TOKENS)
    return str(folder / "tokens.npy")


def as_raw(folder: Path) -> Path:
    TOKENS.tofile(folder / "tokens.bin")
    return folder / "tokens.bin"


@pytest.mark.parametrize(("length", "stride"), [(6, 6), (8, 3), (3, 5)])
def test_windows_are_the_same_from_memory_and_from_files(length: int, stride: int, tmp_path: Path):
    expected = windows(length, stride)
    for source in (
        TokenWindows(TOKENS, length, stride),
        TokenWindows(as_npy(tmp_path), length, stride),
        TokenWindows(as_raw(tmp_path), length, stride, dtype=np.uint16),
    ):
        rows = source.gather(np.arange(len(source)))["tokens"]
        np.testing.assert_array_equal(rows, expected)
        assert (rows.dtype, len(source)) == (np.uint16, len(expected))


def write_npy(path: Path, tokens: np.ndarray) -> str:
    np.save(path, tokens)
    return str(path)


def test_windows_of_several_files_are_those_of_each(tmp_path: Path):
    parts = [TOKENS[:20], TOKENS[20:22], TOKENS[22:41], TOKENS[41:]]
    paths = [write_npy(tmp_path / f"{n}.npy", part) for n, part in enumerate(parts)]
    source = TokenWindows(paths, 4, 3)
    each = [TokenWindows(part, 4, 3) for part in parts if len(part) >= 4]
    expected = np.concatenate([one.gather(np.arange(len(one)))["tokens"] for one in each])
    np.testing.assert_array_equal(source.gather(np.arange(len(expected)))["tokens"], expected)
    assert len(source) == len(expected)
    assert_is_a_source_of(TokenWindows(paths, 1), {"tokens": TOKENS[:, None]}, "tokens")
    assert source.tokens_left_out == sum(one.tokens_left_out for one in each) + 2
    assert source.locate(6).endswith("2.npy")
    assert source.fingerprint() != TokenWindows(paths[::-1], 4, 3).fingerprint()
    np.save(paths[0], TOKENS[:18])
    with pytest.raises(ValueError, match=r"0\.npy is shorter than it was"):
        source.gather(np.arange(3, 6))


@pytest.mark.parametrize("kind", ["array", "npy", "raw"])
def test_token_windows_are_a_source(kind: str, tmp_path: Path):
    source = {
        "array": lambda: TokenWindows(TOKENS, 1),
        "npy": lambda: TokenWindows(as_npy(tmp_path), 1),
        "raw": lambda: TokenWindows(as_raw(tmp_path), 1, dtype="uint16"),
    }[kind]()
    assert_is_a_source_of(source, {"tokens": TOKENS[:, None]}, "tokens")


def test_batches_of_windows_are_whole_windows():
    batches = list(DataLoader(TokenWindows(TOKENS, 8, 3), batch_size=5).host_batches())
    rows = np.concatenate([batch["tokens"][batch["valid_mask"]] for batch in batches])
    np.testing.assert_array_equal(rows, windows(8, 3))


def test_tokens_left_out_are_counted():
    assert TokenWindows(TOKENS, 8).tokens_left_out == 6
    assert TokenWindows(TOKENS, 7).tokens_left_out == 0
    assert TokenWindows(TOKENS, 8, 3).tokens_left_out == 2
    assert "8 windows of 8, stride 8, 6 tokens left out" in repr(TokenWindows(TOKENS, 8))


def test_overlapping_windows_take_no_memory_of_their_own():
    tokens = np.lib.stride_tricks.as_strided(np.zeros(1, np.int32), (2**40,), (0,))
    source = TokenWindows(tokens, 2**20, 1)
    assert len(source) == 2**40 - 2**20 + 1
    assert source.gather(np.array([2**39]))["tokens"].shape == (1, 2**20)


def test_a_file_is_pickled_by_its_path(tmp_path: Path):
    np.save(tmp_path / "many.npy", np.arange(100_000))
    source = TokenWindows(tmp_path / "many.npy", 10, 7)
    text = pickle.dumps(source)
    assert len(text) < 1000
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(source.fingerprint) == source.fingerprint()


def test_a_file_may_move(tmp_path: Path):
    before = TokenWindows(as_npy(tmp_path), 5).fingerprint()
    (tmp_path / "elsewhere").mkdir()
    assert TokenWindows(as_npy(tmp_path / "elsewhere"), 5).fingerprint() == before
    assert TokenWindows(as_npy(tmp_path), 5, 4).fingerprint() != before
    assert TokenWindows(TOKENS[::-1], 5).fingerprint() != before


def test_a_record_is_named_by_its_tokens(tmp_path: Path):
    assert TokenWindows(TOKENS, 8, 3).locate(2) == "tokens 6 to 13 of the array"
    assert TokenWindows(as_npy(tmp_path), 8).locate(0).endswith("tokens.npy")


@pytest.mark.parametrize(
    ("tokens", "length", "stride", "dtype", "message"),
    [
        (TOKENS.reshape(7, 10), 2, None, None, r"uint16\[7, 10\]: tokens are integers in one"),
        (TOKENS.astype(np.float32), 2, None, None, r"float32\[70\]: tokens are integers"),
        (TOKENS, 0, None, None, "length must be an integer of at least 1, got 0"),
        (TOKENS, True, None, None, "length must be an integer of at least 1, got True"),
        (TOKENS, 2, 0, None, "stride must be an integer of at least 1, got 0"),
        (TOKENS, 2, 1.5, None, r"stride must be an integer of at least 1, got 1\.5"),
        (TOKENS, 71, None, None, "70 tokens, fewer than one window of 71"),
        (TOKENS, 2, None, np.uint16, "dtype is for raw files"),
    ],
)
def test_tokens_that_make_no_windows_are_refused(
    tokens: Any, length: Any, stride: Any, dtype: Any, message: str
):
    with pytest.raises(ValueError, match=message):
        TokenWindows(tokens, length, stride, dtype=dtype)


def test_files_that_make_no_windows_are_refused_by_name(tmp_path: Path):
    npy, raw = as_npy(tmp_path), as_raw(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no token file '.*gone\.bin'"):
        TokenWindows(tmp_path / "gone.bin", 2, dtype=np.uint16)
    with pytest.raises(ValueError, match=r"tokens\.bin is a raw file.*give dtype=np\.uint16"):
        TokenWindows(raw, 2)
    with pytest.raises(ValueError, match=r"tokens\.npy says of itself"):
        TokenWindows(npy, 2, dtype=np.uint16)
    with pytest.raises(ValueError, match=r"tokens\.bin holds 35 tokens, fewer than one window"):
        TokenWindows(raw, 36, dtype=np.uint32)
    np.save(tmp_path / "wide.npy", np.arange(9))
    with pytest.raises(ValueError, match=r"wide\.npy holds int64 and .*tokens\.npy uint16: give"):
        TokenWindows([npy, str(tmp_path / "wide.npy")], 2)
    with pytest.raises(ValueError, match="2 files holds 79 tokens, fewer than one window of 71"):
        TokenWindows([npy, write_npy(tmp_path / "more.npy", TOKENS[:9])], 71)
    raw.write_bytes(b"odd")
    with pytest.raises(ValueError, match="3 bytes, no multiple of the 2 of a uint16"):
        TokenWindows(raw, 1, dtype=np.uint16)
    raw.write_bytes(b"")
    with pytest.raises(ValueError, match="holds 0 tokens"):
        TokenWindows(raw, 1, dtype=np.uint16)
    for damaged in (Path(npy).read_bytes()[:-4], b"\x93NUMPY", b""):
        Path(npy).write_bytes(damaged)
        with pytest.raises(ValueError, match=r"tokens\.npy is not a whole \.npy file"):
            TokenWindows(npy, 2)


def test_records_outside_the_source_are_refused():
    source = TokenWindows(TOKENS, 8)
    for index in (8, -1):
        with pytest.raises(IndexError, match=f"records {index} to {index} of a source of 8"):
            source[index]
