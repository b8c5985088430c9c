"""AddSpecialTokens and TruncateTokens: what they add and cut, on rows of one length and ragged."""

from typing import Any

import numpy as np
import pytest
import tokenizers

from loader import DataLoader
from loader.records.stacking import ragged_leaf
from operators import AddSpecialTokens, PadTokens, Tokenize, TruncateTokens

ROWS = [np.arange(10 * n, 10 * n + length) for n, length in enumerate((3, 0, 5, 4))]


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_tokens_are_added_to_both_ends_of_every_row(dtype: Any):
    add = AddSpecialTokens("x", begin=101, end=[102, 103])
    ragged = add({"x": ragged_leaf([row.astype(dtype) for row in ROWS]), "id": np.arange(4)})
    assert [row.tolist() for row in ragged["x"]] == [[101, *row, 102, 103] for row in ROWS]
    stacked = add({"x": np.stack([row[:3] for row in ROWS if len(row) > 2]).astype(dtype)})["x"]
    assert stacked.tolist() == [[101, *row[:3], 102, 103] for row in ROWS if len(row) > 2]
    assert {stacked.dtype, *(row.dtype for row in ragged["x"])} == {np.dtype(dtype)}
    only = AddSpecialTokens("x", end=7)({"x": ragged_leaf(ROWS)})["x"]
    assert [row.tolist() for row in only] == [[*row, 7] for row in ROWS]


@pytest.mark.parametrize("side", ["left", "right"])
def test_what_is_too_long_loses_one_of_its_ends(side: Any):
    pair = {"x": ragged_leaf(ROWS), "y": ragged_leaf([row * 2 for row in ROWS])}
    cut = TruncateTokens(["x", "y"], 3, side=side)(pair)
    expected = [row.tolist()[-3:] if side == "left" else row.tolist()[:3] for row in ROWS]
    assert [row.tolist() for row in cut["x"]] == expected
    assert [(row // 2).tolist() for row in cut["y"]] == expected
    table = np.arange(28).reshape(2, 7, 2)
    for length in (1, 6, 7, 9):
        made = TruncateTokens("x", length, side=side)({"x": table})["x"]
        assert np.array_equal(made, table[:, -length:] if side == "left" else table[:, :length])


def test_rows_for_bert_are_cut_ended_and_padded():
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "a": 1, "b": 2}, "?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.add_special_tokens(["[CLS]", "[SEP]"])  # 3 and 4
    operators = [
        Tokenize(tokenizer=words),
        TruncateTokens("tokens", 3),
        AddSpecialTokens(begin="[CLS]", end="[SEP]", tokenizer=words),
        PadTokens("tokens", 5, mask="attention_mask"),
    ]
    texts = ["a b", "b a b a", ""]
    loader = DataLoader({"text": np.array(texts, object)}, batch_size=3, operators=operators)
    assert loader.batch_spec()["tokens"].shape == (3, 5)
    batch = next(loader.host_batches())
    assert batch["tokens"].tolist() == [[3, 1, 2, 4, 0], [3, 2, 1, 2, 4], [3, 4, 0, 0, 0]]
    assert batch["attention_mask"].sum(1).tolist() == [4, 5, 2]


def test_what_cannot_be_added_or_cut_is_refused():
    make: Any = AddSpecialTokens
    for settings, message in (
        ({}, "give begin= or end=: a token or several"),
        ({"begin": []}, "give begin= or end="),
        ({"begin": -1}, "begin must be the number of a token, or its text, got -1"),
        ({"end": [2, None]}, "end must be the number of a token, or its text, got None"),
        ({"end": "[SEP]"}, r"end='\[SEP\]' is the text of a token: give tokenizer= too"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**settings)
    with pytest.raises(ValueError, match=r"side must be one of \['right', 'left'\], got 'both'"):
        TruncateTokens("x", 3, side="both")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="length must be an int of at least 1, got 0"):
        TruncateTokens("x", 0)
    bytes_ = {"tokens": np.zeros((4, 3), np.uint8)}
    for operators, message in (
        ([make(end=256)], "uint8, which does not hold the token, 256: put Cast"),
        ([PadTokens("tokens", 5), make(end=1)], "add the tokens before PadTokens and Packed"),
        ([TruncateTokens("ids", 3)], "there is no leaf 'ids'"),
    ):
        with pytest.raises(ValueError, match=message):
            DataLoader(bytes_, batch_size=2, operators=operators)
