"""MaskTokens: which tokens are hidden, what they become, and what cannot be masked."""

from typing import Any

import jax
import numpy as np
import pytest
import tokenizers

from loader import DataLoader, Packed, RowError, index_lengths
from loader.records.stacking import ragged_leaf
from loader.testing import assert_same_batch
from loader.transforms.draws import draw, uniform, words_at
from operators import MaskTokens, PadTokens
from tests.attack import plain_tokens

VOCABULARY, MASK, SPECIAL = 50, 4, (0, 1, 4, 49)
SETTINGS: dict[str, Any] = {"mask_token": MASK, "vocab_size": VOCABULARY, "special": (0, 1, 49)}


def some_tokens(rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, VOCABULARY, (rows, length)).astype(np.int32)


def draws_of(operator: MaskTokens, rows: int) -> np.ndarray:
    drawn = operator.bound().draw(np.arange(rows))
    assert drawn is not None
    return drawn


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.25, 0.75, 0.0)])
@pytest.mark.parametrize("ragged", [False, True])
def test_tokens_are_those_of_a_loop_over_places(ragged: bool, shares: tuple[float, float, float]):
    operator = MaskTokens(**SETTINGS, probability=0.3, shares=shares, ignore=-100, seed=3)
    rows = list(some_tokens(30, 41))
    if ragged:
        rows = [row[: number % 41] for number, row in enumerate(rows)]  # one is empty
    out = operator({"tokens": ragged_leaf(rows) if ragged else np.stack(rows)})
    for number, (row, own) in enumerate(zip(rows, draws_of(operator, 30), strict=True)):
        made, chosen = plain_tokens.hidden(
            row.tolist(), own, [True] * len(row), mask_token=MASK, vocabulary=VOCABULARY,
            special=SPECIAL, probability=0.3, shares=shares,
        )  # fmt: skip
        assert out["tokens"][number].tolist() == made
        assert out["loss_mask"][number].tolist() == chosen
        targets = [token if one else -100 for token, one in zip(row, chosen, strict=True)]
        assert out["targets"][number].tolist() == targets


def test_eighty_ten_ten_of_fifteen_in_a_hundred_and_the_same_ones_every_time():
    tokens = 10 + np.arange(200_000, dtype=np.int32).reshape(400, 500) % 900
    out = MaskTokens(mask_token=3, vocab_size=1000, special=[0, 1, 2], seed=8)({"tokens": tokens})
    hidden, chosen = out["tokens"], out["loss_mask"]
    masked, stayed = chosen & (hidden == 3), chosen & (hidden == tokens)
    other = chosen & ~masked & ~stayed
    counts = [int(part.sum()) for part in (chosen, masked, other, stayed)]
    assert counts == [30012, 24107, 2896, 3009]  # of 30000, 24000, 3000 and 3000
    assert np.array_equal(hidden[~chosen], tokens[~chosen])
    assert np.array_equal(out["targets"], tokens)
    assert out["targets"].dtype == out["tokens"].dtype == np.int32
    # Any token but special ones, all alike: a sum of squares that is within four deviations.
    found = np.bincount(hidden[other], minlength=1000)
    assert not found[:4].any()
    squares = ((found[4:] - found[4:].mean()) ** 2 / found[4:].mean()).sum()
    assert abs(squares - 995) < 4 * (2 * 995) ** 0.5
    # No place and no row is chosen more often.
    for axis, size in ((0, 400), (1, 500)):
        assert abs(chosen.mean(axis) - 0.15).max() < 5 * (0.15 * 0.85 / size) ** 0.5


def test_words_of_places_rows_and_purposes_have_nothing_in_common():
    drawn = draw("a key", np.arange(300), 2)
    places = np.arange(200, dtype=np.uint32)
    tables = [uniform(words_at(drawn[:, None], places, purpose)) for purpose in (0, 1)]
    a, b = tables
    assert abs(a.mean() - 0.5) < 0.005
    assert abs(np.histogram(a, 100, (0, 1))[0] / a.size - 0.01).max() < 0.0018
    pairs = [(a, b), (a[1:], a[:-1]), (a[:, 1:], a[:, :-1]), (a[1:, 1:], a[:-1, :-1])]
    for one, other in pairs:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.018
    assert len(np.unique(words_at(drawn[:, None], places, 0))) > 59_995  # of 60,000
    jitted = jax.jit(lambda d: words_at(d[:, None], places, 1))(drawn)
    assert np.array_equal(jitted, words_at(drawn[:, None], places, 1))


def test_padding_and_special_tokens_are_never_masked():
    rows = {"tokens": ragged_leaf([row[: 5 + n] for n, row in enumerate(some_tokens(20, 30))])}
    padded = PadTokens("tokens", 30, value=-1)(rows)
    out = MaskTokens(**SETTINGS, probability=1.0, seed=0)(padded)
    expected = padded["loss_mask"] & ~np.isin(padded["tokens"], SPECIAL)
    assert np.array_equal(out["loss_mask"], expected)
    named = MaskTokens(**SETTINGS, probability=1.0, mask="hidden", seed=0)(padded)
    assert np.array_equal(named["hidden"], expected)
    assert np.array_equal(named["loss_mask"], padded["loss_mask"])
    assert (out["tokens"][~expected] == padded["tokens"][~expected]).all()
    assert not np.isin(out["tokens"][expected], (0, 1, 49)).any()
    documents = [{"tokens": row[: 3 + n]} for n, row in enumerate(some_tokens(9, 30))]
    packed = Packed(documents, index_lengths(documents), 16)
    loader = DataLoader(
        packed, batch_size=4, operators=[MaskTokens(**SETTINGS, probability=1.0, seed=0)]
    )
    for batch, plain in zip(
        loader.host_batches(), DataLoader(packed, batch_size=4).host_batches(), strict=True
    ):
        real = (plain["segment_ids"] > 0) & ~np.isin(plain["tokens"], SPECIAL)
        assert np.array_equal(batch["loss_mask"], real)
        assert np.array_equal(batch["positions"], plain["positions"])


def test_a_tokenizer_names_the_mask_and_knows_what_is_special():
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "a": 1, "b": 2}, "?"))
    words.add_special_tokens(["[CLS]", "[MASK]"])  # 3 and 4
    named = MaskTokens(mask_token="[MASK]", special=["b"], tokenizer=words, seed=1)
    numbered = MaskTokens(mask_token=4, special=[2, 3], vocab_size=5, seed=1)
    rows = {"tokens": some_tokens(9, 40) % 5}
    made = named(rows)
    assert_same_batch(made, numbered(rows), "the same settings")
    assert named.fingerprint() == numbered.fingerprint()
    assert not np.isin(made["targets"][made["loss_mask"]], [2, 3, 4]).any()
    message = (
        r"mask_token='\[mask\]': the tokenizer has no such token; its special tokens are "
        r"\['\[CLS\]', '\[MASK\]'\]"
    )
    with pytest.raises(ValueError, match=message):
        MaskTokens(mask_token="[mask]", tokenizer=words)


def test_a_token_that_is_not_in_the_vocabulary_is_named_with_its_record():
    tokens = some_tokens(6, 8)
    tokens[4, 5] = VOCABULARY
    operators = [MaskTokens(**SETTINGS, seed=0)]
    loader = DataLoader({"tokens": tokens}, batch_size=6, operators=operators)
    words = "record 4: MaskTokens: leaf 'tokens' holds 50, which is not a token: there are 50, "
    with pytest.raises(ValueError, match=words):
        next(loader.host_batches())
    ragged = {"tokens": ragged_leaf([np.arange(3), np.array([], int), np.array([2, -7])])}
    with pytest.raises(RowError, match="holds -7") as caught:
        MaskTokens(**SETTINGS, seed=0)(ragged)
    assert caught.value.row == 2
    unlike = {**ragged, "loss_mask": ragged_leaf([np.ones(n, bool) for n in (3, 1, 2)])}
    with pytest.raises(RowError, match="leaf 'loss_mask' has 1 items and leaf 'tokens' has 0"):
        MaskTokens(**SETTINGS, seed=0)(unlike)


def test_settings_that_cannot_be_are_refused():
    make: Any = MaskTokens
    for settings, message in (
        ({"mask_token": 50}, r"mask_token 50 is not a token: there are 50, from 0 to 49; .*=51"),
        ({"special": [3, 99]}, "special 99 is not a token"),
        ({"special": 2.5}, "special must be a token or a list of them, got 2.5"),
        ({"mask_token": -1}, "mask_token must be the number of a token, or its text, got -1"),
        ({"mask_token": "[MASK]"}, "is the text of a token: give tokenizer= too"),
        ({"vocab_size": None}, "give vocab_size=, the number of tokens, or tokenizer="),
        ({"vocab_size": 5, "special": range(5)}, "all 5 tokens are special"),
        ({"probability": 1.5}, r"probability must lie in \[0, 1\]"),
        ({"shares": (0.8, 0.1)}, "shares must be three numbers that add up to 1"),
        ({"shares": (0.8, 0.1, 0.2)}, "shares must be three numbers that add up to 1"),
        ({"ignore": 1.5}, "ignore must be an integer"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**{**SETTINGS, "seed": 0, **settings})
    for data, settings, message in (
        (np.zeros((4, 3), np.uint8), {"vocab_size": 257}, "uint8, which does not hold all tokens"),
        (np.zeros((4, 3), np.uint16), {"ignore": -100}, "does not hold ignore, -100: put Cast"),
        (np.zeros((4, 3)), {}, r"float64\[3\] where a sequence of token numbers is needed"),
        (np.zeros((4, 3, 2), np.int32), {}, r"int32\[3, 2\] where a sequence of token"),
    ):
        operators = [make(**{**SETTINGS, "seed": 0, **settings})]
        with pytest.raises(ValueError, match=message):
            DataLoader({"tokens": data}, batch_size=2, operators=operators).batch_spec()
