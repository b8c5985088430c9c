"""Tokens that users name: by number, or by text where a tokenizer knows them."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from loader.records.integers import checked_int
from loader.records.spec import LeafSpec
from operators.text.tokenizers import (
    ByteTokenizer,
    HuggingFaceTokenizer,
    SentencePieceTokenizer,
    as_tokenizer,
    hugging_face,
    sentence_piece,
)

Token = int | str  # its number, or its text

_SHOWN = 8


class Vocabulary:
    """What is known of the tokens of a model: all that a tokenizer says, or nothing."""

    def __init__(self, tokenizer: Any = None) -> None:
        self._made: Any = None if tokenizer is None else as_tokenizer(tokenizer)

    @property
    def size(self) -> int | None:
        """How many tokens there are; they are 0, 1, ... up to it."""
        if isinstance(self._made, HuggingFaceTokenizer):
            return max(hugging_face(self._made.json).get_vocab().values()) + 1
        if isinstance(self._made, SentencePieceTokenizer):
            return sentence_piece(self._made.model).get_piece_size()
        return getattr(self._made, "vocab_size", None)

    @property
    def special(self) -> dict[str, int]:
        """The tokens that mark something, and are no part of a text."""
        if isinstance(self._made, HuggingFaceTokenizer):
            added = hugging_face(self._made.json).get_added_tokens_decoder().items()
            return {token.content: number for number, token in added if token.special}
        if isinstance(self._made, SentencePieceTokenizer):
            model = sentence_piece(self._made.model)
            marks = (model.is_control, model.is_unknown, model.is_unused)
            numbers = range(model.get_piece_size())
            return {model.id_to_piece(n): n for n in numbers if any(is_one(n) for is_one in marks)}
        if isinstance(self._made, ByteTokenizer):
            return {"padding": 0, "bos": 1, "eos": 2}
        return {}

    def find(self, text: str) -> int | None:
        """The number of the token that is written so, if there is one."""
        if isinstance(self._made, HuggingFaceTokenizer):
            return hugging_face(self._made.json).token_to_id(text)
        if isinstance(self._made, SentencePieceTokenizer):
            model = sentence_piece(self._made.model)
            number = model.piece_to_id(text)  # that of <unk> for one that is not known
            return number if model.id_to_piece(number) == text else None
        return None

    def number(self, name: str, token: Token) -> int:
        """The number of a token. `name` is what a message calls the argument."""
        if isinstance(token, str):
            number = self.find(token)
            if number is None and self._made is None:
                raise ValueError(
                    f"{name}={token!r} is the text of a token: give tokenizer= too, which knows "
                    "its number, or give the number"
                )
            if number is None:
                raise ValueError(
                    f"{name}={token!r}: the tokenizer has no such token; its special tokens are "
                    f"{list(self.special)[:_SHOWN]}"
                )
            return number
        return checked_int(name, token, 0, wanted="the number of a token, or its text")

    def numbers(self, name: str, tokens: Token | Iterable[Token] | None) -> tuple[int, ...]:
        """The numbers of one token, or several, or none."""
        if tokens is None:
            return ()
        if isinstance(tokens, str | int | np.integer):
            return (self.number(name, tokens),)
        try:
            return tuple(self.number(name, token) for token in tokens)
        except TypeError as error:
            raise ValueError(f"{name} must be a token or a list of them, got {tokens!r}") from error


def refuse_unfit(name: str, leaf: LeafSpec, what: str, number: int) -> None:
    """Raise `ValueError` if the leaf is not of token numbers, or cannot hold this one."""
    if len(leaf.shape) != 1 or np.dtype(leaf.dtype).kind not in "iu":
        raise ValueError(
            f"leaf {name!r} is {leaf.dtype}{list(leaf.shape)} where a sequence of token numbers is "
            "needed: put Tokenize before, or Cast"
        )
    limits = np.iinfo(np.dtype(leaf.dtype))
    if not limits.min <= number <= limits.max:
        raise ValueError(
            f"leaf {name!r} is {leaf.dtype}, which does not hold {what}, {number}: put "
            f"Cast({name!r}, np.int32) before"
        )
