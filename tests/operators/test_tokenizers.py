"""Tokens that mark where texts begin and end."""

import dataclasses
import io
import json
import pickle
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tokenizers

from loader import DataLoader
from operators import ByteTokenizer, PadTokens, Tokenize


def trained_tokenizers() -> tuple[Any, Any]:
    """A tokenizer of Hugging Face and one of SentencePiece, each with tokens for both ends."""
    hugging = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "a": 1, "b": 2}, "?"))
    hugging.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    hugging.add_special_tokens(["<s>", "</s>"])  # 3 and 4
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b " * 5] * 20), model_writer=model, vocab_size=8,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return hugging, sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


TWO_TEXTS = {"text": np.array(["a b", "b b a"], object)}


def token_lists(**options: Any) -> list[list[int]]:
    return [tokens.tolist() for tokens in Tokenize(**options)(TWO_TEXTS)["tokens"]]


def test_texts_begin_and_end_with_tokens_where_asked():
    hugging, pieces = trained_tokenizers()
    assert token_lists(tokenizer=hugging) == [[1, 2], [2, 2, 1]]
    both = token_lists(tokenizer=hugging, bos="<s>", eos="</s>")
    assert both == [[3, 1, 2, 4], [3, 2, 2, 1, 4]]
    assert token_lists(tokenizer=hugging, eos="</s>") == [[1, 2, 4], [2, 2, 1, 4]]
    plain = token_lists(tokenizer=pieces)
    begin, end = [pieces.bos_id()], [pieces.eos_id()]
    assert token_lists(tokenizer=pieces, bos=True) == [begin + ids for ids in plain]
    assert token_lists(tokenizer=pieces, eos=True) == [ids + end for ids in plain]
    assert token_lists(bos=True, eos=True) == token_lists(tokenizer=ByteTokenizer(True, True))
    assert token_lists(tokenizer=ByteTokenizer(bos=True), eos=True) == token_lists(
        bos=True, eos=True
    )
    again = pickle.loads(pickle.dumps(Tokenize(tokenizer=hugging, eos="</s>").transform))
    assert [t.tolist() for t in again(TWO_TEXTS)["tokens"]] == [[1, 2, 4], [2, 2, 1, 4]]


def test_tokens_that_are_no_bytes_are_not_shown_as_letters():
    tokens = ByteTokenizer(bos=True, eos=True).encode(["naïve"])[0]
    assert ByteTokenizer().decode([*tokens, 259, 358, 0]) == "naïve\ufffd\ufffd"


def test_the_limit_of_a_tokenizer_cuts_no_text(tmp_path: Path):
    hugging, _ = trained_tokenizers()
    plain = Tokenize(tokenizer=hugging).transform
    hugging.enable_truncation(1)
    hugging.save(str(tmp_path / "tokenizer.json"))
    for given in (hugging, str(tmp_path / "tokenizer.json")):
        assert token_lists(tokenizer=given) == [[1, 2], [2, 2, 1]]
        assert token_lists(tokenizer=given, eos="</s>") == [[1, 2, 4], [2, 2, 1, 4]]
    hugging.no_truncation()
    assert Tokenize(tokenizer=hugging).transform == plain


def test_a_token_that_a_tokenizer_adds_itself_is_not_added_twice():
    hugging, _ = trained_tokenizers()
    hugging.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 3)]
    )
    assert token_lists(tokenizer=hugging, bos="<s>", eos="<s>") == [[3, 1, 2, 3], [3, 2, 2, 1, 3]]
    assert token_lists(tokenizer=hugging, bos="<s>") == token_lists(tokenizer=hugging)


def test_an_unknown_word_is_not_taken_for_a_token_that_the_tokenizer_adds():
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"</s>": 0, "b": 1, "c": 2}, unk_token="</s>")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenize = Tokenize(tokenizer=words, bos="</s>", eos="</s>")
    tokens = tokenize({"text": np.array(["b c", "c"], object)})["tokens"]
    assert [row.tolist() for row in tokens] == [[0, 1, 2, 0], [0, 2, 0]]


def test_the_tokens_of_both_ends_are_found_beside_a_file_or_in_a_tokenizer_of_transformers(
    tmp_path: Path,
):
    hugging, _ = trained_tokenizers()
    hugging.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    want = [[3, 1, 2, 4], [3, 2, 2, 1, 4]]
    assert token_lists(tokenizer=tmp_path / "tokenizer.json", bos=True, eos=True) == want
    fast = types.SimpleNamespace(backend_tokenizer=hugging, bos_token="<s>", eos_token="</s>")
    assert token_lists(tokenizer=fast, bos=True, eos=True) == want


def test_ends_that_are_not_known_are_refused():
    hugging, pieces = trained_tokenizers()
    special = r"its special tokens are \['<s>', '</s>'\]"
    with pytest.raises(ValueError, match=rf"eos=True .* does not say which token .*{special}"):
        Tokenize(tokenizer=hugging, eos=True)
    with pytest.raises(ValueError, match=rf"bos='<x>' .* it has none such.*{special}"):
        Tokenize(tokenizer=hugging, bos="<x>")
    for tokenizer in (None, pieces):
        with pytest.raises(ValueError, match="knows its own: give eos=True"):
            Tokenize(tokenizer=tokenizer, eos="</s>")
    with pytest.raises(ValueError, match="bos must be True, False, or the text of a token, got 1"):
        Tokenize(bos=1)  # pyright: ignore[reportArgumentType]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b " * 5] * 20), model_writer=model, vocab_size=6, bos_id=-1,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    without = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    with pytest.raises(ValueError, match="this SentencePiece model has no bos token"):
        Tokenize(tokenizer=without, bos=True)

    @dataclasses.dataclass(frozen=True)
    class Own:
        def encode(self, texts: list[str]) -> list[np.ndarray]:
            return [np.zeros(len(text), np.int32) for text in texts]

    with pytest.raises(ValueError, match=r"let Own\.encode add them itself"):
        Tokenize(tokenizer=Own(), eos=True)


def test_a_state_of_other_ends_is_refused_and_one_from_before_them_restores():
    hugging, _ = trained_tokenizers()

    def loader(**options: Any) -> DataLoader:
        operators = [Tokenize(tokenizer=hugging, **options), PadTokens("tokens", 8)]
        return DataLoader([{"text": "a b"}] * 5, batch_size=2, operators=operators)

    with pytest.raises(ValueError, match=r"operators.*: saved digest"):
        loader(eos="</s>").set_state(loader().get_state())
    described = Tokenize(tokenizer=hugging).fingerprint()["fields"]["transform"]
    assert set(described["fields"]["tokenizer"]["fields"]) == {"json"}  # nothing that was not there
