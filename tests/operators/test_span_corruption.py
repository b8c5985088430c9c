"""SpanCorruption: spans, sentinels, the lengths that follow from them, and what is refused."""

import itertools
from typing import Any

import numpy as np
import pytest
import tokenizers

from loader import DataLoader, Packed, RowError, index_lengths
from loader.records.spec import leaf_spec
from loader.records.stacking import ragged_leaf
from loader.testing import assert_same_batch
from operators import PadTokens, SpanCorruption
from tests.attack import plain_tokens

SENTINELS = range(999, 899, -1)


def some_tokens(rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(5).integers(2, 500, (rows, length)).astype(np.int32)


def plain(operator: SpanCorruption, rows: list[np.ndarray], end: int, **how: Any) -> list[Any]:
    """Inputs and targets of each row, by loops over its tokens, each with `end` after it."""
    drawn = operator.bound().draw(np.arange(len(rows)))
    assert drawn is not None
    made = [
        plain_tokens.corrupted(row.tolist(), own, SENTINELS, **how)
        for row, own in zip(rows, drawn, strict=True)
    ]
    return [([*inputs, end], [*targets, end]) for inputs, targets in made]


@pytest.mark.parametrize(("density", "mean"), [(0.15, 3.0), (0.5, 1.0), (0.9, 7.5)])
def test_inputs_and_targets_are_those_of_a_loop_over_tokens(density: float, mean: float):
    operator = SpanCorruption(
        sentinels=999, end=1, noise_density=density, mean_span=mean, length=60, value=-1, seed=2
    )
    rows = [row[: 2 + number] for number, row in enumerate(some_tokens(59, 60))]
    out = operator({"tokens": ragged_leaf(rows), "id": np.arange(59)})
    expected = plain(operator, rows, 1, density=density, mean=mean)
    for number, pair in enumerate(expected):
        for name, mask, values in zip(
            ("inputs", "targets"), ("inputs_mask", "loss_mask"), pair, strict=True
        ):
            real = out[mask][number]
            assert out[name][number][real].tolist() == values
            assert (out[name][number][~real] == -1).all()
            assert real.tolist() == sorted(real.tolist(), reverse=True)
    last = [len(values) for values in expected[-1]]  # of 60 tokens: it fills the shapes
    assert [out["inputs"].shape[1], out["targets"].shape[1]] == last
    assert set(out) == {"inputs", "inputs_mask", "targets", "loss_mask", "id"}


def test_shapes_follow_from_the_number_of_tokens_alone():
    def shapes(length: int, **settings: Any) -> tuple[int, int]:
        given: Any = {"sentinels": 32099, "end": 1, "seed": 0, **settings}
        operator = SpanCorruption(**given)
        spec = operator.output_spec({"tokens": leaf_spec((length,), np.dtype(np.int32))})
        return spec["inputs"].shape[0], spec["targets"].shape[0]

    assert shapes(568) == (512, 114)  # as T5 was trained
    assert shapes(568, end=None) == (511, 113)
    assert shapes(2, end=None) == (2, 2)
    assert shapes(100, noise_density=0.5, mean_span=5, end=None) == (60, 60)
    for density, mean in itertools.product((0.01, 0.15, 0.85), (1, 3)):
        found = [shapes(length, noise_density=density, mean_span=mean) for length in range(2, 40)]
        # So the longest row there may be decides for all that are shorter.
        assert found == sorted(found, key=lambda pair: pair[0])
        assert found == sorted(found, key=lambda pair: pair[1])


def test_all_ways_to_cut_a_text_come_equally_often():
    # Of 8 tokens 4 are cut out in 2 spans: 3 ways to divide each four.
    operator = SpanCorruption(sentinels=99, noise_density=0.5, mean_span=2, seed=1)
    tokens = np.tile(np.arange(8, dtype=np.int32), (9000, 1))
    inputs, counts = np.unique(operator({"tokens": tokens})["inputs"], axis=0, return_counts=True)
    assert len(inputs) == 9
    assert counts.min() > 1000 - 4 * (1000 * 8 / 9) ** 0.5
    assert counts.max() < 1000 + 4 * (1000 * 8 / 9) ** 0.5
    assert (inputs[:, 0] == 0).all()  # a row begins with a token that stays
    assert (inputs[:, -1] == 98).all()  # and ends with a span


def test_padding_is_left_out_and_segments_are_one_text():
    rows = [row[: 3 + number] for number, row in enumerate(some_tokens(12, 20))]
    operator = SpanCorruption(sentinels=SENTINELS, seed=4, length=20)
    expected = operator({"tokens": ragged_leaf(rows)})
    padded = PadTokens("tokens", 20)({"tokens": ragged_leaf(rows)})
    assert_same_batch(operator(padded), expected, "padded before")
    named = SpanCorruption(sentinels=SENTINELS, seed=4, length=20, mask="weights")
    expected["weights"] = expected.pop("loss_mask")
    assert_same_batch(named(padded), expected, "a mask of another name")
    spec = named.output_spec({n: leaf_spec((20,), leaf.dtype) for n, leaf in padded.items()})
    assert spec.keys() == expected.keys()
    documents = [{"tokens": row} for row in rows]
    packed = Packed(documents, index_lengths(documents), 30)
    given, bare = (
        list(DataLoader(packed, batch_size=5, operators=some).host_batches())
        for some in ([SpanCorruption(sentinels=999, seed=4, inputs_mask=None)], [])
    )
    for batch, before in zip(given, bare, strict=True):
        assert set(batch) == {"inputs", "targets", "loss_mask", "valid_mask"}
        for row in np.flatnonzero(batch["valid_mask"]):
            tokens = before["tokens"][row][before["segment_ids"][row] > 0]
            made = batch["inputs"][row], batch["targets"][row][batch["loss_mask"][row]]
            there = [one[(one > 0) & (one < 900)] for one in made]
            assert sorted(np.concatenate(there).tolist()) == sorted(tokens.tolist())


def test_sentinels_may_be_named_by_what_they_are_called():
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "</s>": 1}, "?"))
    words.add_special_tokens([f"<extra_id_{n}>" for n in range(5)])  # 2 to 6
    how: dict[str, Any] = {"noise_density": 0.5, "mean_span": 2, "seed": 0}
    named = SpanCorruption(sentinels="<extra_id_{}>", end="</s>", tokenizer=words, **how)
    numbered = SpanCorruption(sentinels=[2, 3, 4, 5, 6], end=1, **how)
    rows = {"tokens": some_tokens(4, 16) + 7}
    assert_same_batch(named(rows), numbered(rows), "the same sentinels")
    with pytest.raises(ValueError, match=r"sentinels='<x_0>': the tokenizer has no such token"):
        SpanCorruption(sentinels="<x_{}>", tokenizer=words)


def test_rows_that_cannot_be_cut_are_named():
    tokens = some_tokens(5, 9)
    rows = {"tokens": ragged_leaf([*tokens[:3], tokens[3, :1]])}
    with pytest.raises(RowError, match="has 1 tokens, and at least 2 are needed to cut out a span"):
        SpanCorruption(sentinels=999, length=9, seed=0)(rows)
    with pytest.raises(RowError, match=r"has 9 tokens, more than length=8: put TruncateTokens\('"):
        SpanCorruption(sentinels=999, length=8, seed=0)(rows)
    tokens[4, 2] = 998
    words = "record 4: SpanCorruption: leaf 'tokens' holds 998, which is a sentinel"
    operators = [SpanCorruption(sentinels=999, noise_density=0.5, mean_span=2, seed=0)]
    loader = DataLoader({"tokens": tokens}, batch_size=5, operators=operators)
    with pytest.raises(ValueError, match=words):
        next(loader.host_batches())
    short = {"tokens": ragged_leaf([tokens[4, :4], tokens[0, :3]])}
    with pytest.raises(RowError, match="holds 998"):  # also where a row has no use for it
        SpanCorruption(sentinels=999, length=60, seed=0)(short)
    mask = np.ones((5, 9), bool)
    mask[2, 3] = False
    with pytest.raises(RowError, match="leaf 'loss_mask' leaves out tokens that others follow"):
        SpanCorruption(sentinels=2999, seed=0)({"tokens": tokens, "loss_mask": mask})


def test_settings_that_cannot_be_are_refused():
    make: Any = SpanCorruption
    for settings, message in (
        ({"noise_density": 1}, "noise_density must be between 0 and 1, got 1"),
        ({"mean_span": 0.5}, "mean_span must be at least 1 token"),
        ({"inputs_mask": True}, "expected the name of one leaf, got True"),
        ({"length": 1}, "length must be an int of at least 2"),
        ({"sentinels": []}, "sentinels must be different tokens, or the first one"),
        ({"sentinels": [7, 7]}, "sentinels must be different tokens"),
        ({"sentinels": "<s>"}, "is the text of a token: give tokenizer= too"),
        ({"end": "</s>"}, "end='</s>' is the text of a token: give tokenizer="),
    ):
        with pytest.raises(ValueError, match=message):
            make(**{"sentinels": 99, "seed": 0, **settings})
    for shape, dtype, settings, message in (
        (60, np.int32, {"sentinels": [7, 8]}, "60 tokens make 3 spans, and there are 2 sentinels"),
        (60, np.int32, {"sentinels": 1}, "60 tokens make 3 spans, and there are 2 sentinels"),
        (None, np.int32, {}, "is ragged: say how many tokens .* length=512, or put PadTokens"),
        (60, np.uint8, {"sentinels": 256}, "uint8, which does not hold the sentinel, 256"),
        (60, np.uint8, {"value": -1}, "uint8, which does not hold value, -1"),
        (1, np.int32, {}, "has 1 tokens: there must be at least 2"),
        (60, np.float32, {}, "where a sequence of token numbers is needed"),
    ):
        operator = make(**{"sentinels": 99, "seed": 0, **settings})
        with pytest.raises(ValueError, match=message):
            operator.output_spec({"tokens": leaf_spec((shape,), np.dtype(dtype))})
