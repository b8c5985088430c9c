"""Tokenizers: bytes, Hugging Face's, SentencePiece's."""

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from etils import epath

from loader.records.optional import optional


class Tokenizer(Protocol):
    """What `Tokenize` asks of a tokenizer: a small object of plain data that can be pickled."""

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The token numbers of each text."""
        ...


@dataclasses.dataclass(frozen=True)
class ByteTokenizer:
    """UTF-8 bytes as tokens: 0 is padding, 1 and 2 begin and end a text, a byte b is b + 3."""

    bos: bool = False
    eos: bool = False
    vocab_size = 259
    thread_safe = True

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        encoded = []
        for text in texts:
            data = np.frombuffer(text.encode(), np.uint8)
            tokens = np.empty(self.bos + len(data) + self.eos, np.int32)
            tokens[self.bos : self.bos + len(data)] = data
            tokens += 3
            tokens[: self.bos] = 1
            tokens[self.bos + len(data) :] = 2
            encoded.append(tokens)
        return encoded

    def decode(self, tokens: Any) -> str:
        """The text of some tokens; padding, begin and end are passed over.

        What is no byte, such as a mask token or a sentinel, is shown as U+FFFD.
        """
        tokens = np.asarray(tokens)
        tokens = tokens[tokens >= 3] - 3
        tokens = np.where(tokens > 255, 255, tokens)  # 255 is in no text
        return tokens.astype(np.uint8).tobytes().decode(errors="replace")


@dataclasses.dataclass(frozen=True)
class HuggingFaceTokenizer:
    """A tokenizer of the package `tokenizers`, as its JSON."""

    json: str = dataclasses.field(repr=False)
    bos_id: int | None = None  # put before every text
    eos_id: int | None = None  # put after it
    bare: bool = False  # without the special tokens that it adds by itself
    thread_safe = True

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        model = hugging_face(self.json)
        encoded = model.encode_batch(list(texts), add_special_tokens=not self.bare)
        before, after = ([] if n is None else [n] for n in (self.bos_id, self.eos_id))
        return [np.array([*before, *item.ids, *after], np.int32) for item in encoded]

    def decode(self, tokens: Any) -> str:
        """The text of some tokens."""
        return hugging_face(self.json).decode(np.asarray(tokens).tolist())


@dataclasses.dataclass(frozen=True)
class SentencePieceTokenizer:
    """A SentencePiece model, as its bytes."""

    model: bytes = dataclasses.field(repr=False)
    add_bos: bool = False
    add_eos: bool = False
    reverse: bool = False
    thread_safe = True

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        options = {"add_bos": self.add_bos, "add_eos": self.add_eos, "reverse": self.reverse}
        encoded = sentence_piece(self.model).encode(list(texts), **options)
        return [np.array(ids, np.int32) for ids in encoded]

    def decode(self, tokens: Any) -> str:
        """The text of some tokens."""
        return sentence_piece(self.model).decode(np.asarray(tokens).tolist())


@functools.lru_cache(8)
def hugging_face(text: str) -> Any:
    tokenizer = optional("tokenizers", "a Hugging Face tokenizer", "text").Tokenizer.from_str(text)
    tokenizer.no_padding()  # which would depend on the texts of the batch: PadTokens does it
    return tokenizer


@functools.lru_cache(8)
def sentence_piece(model: bytes) -> Any:
    package = optional("sentencepiece", "a SentencePiece model", "text")
    return package.SentencePieceProcessor(model_proto=model)


def as_tokenizer(given: Any, bos: bool | str = False, eos: bool | str = False) -> Tokenizer:
    """None is bytes; a path to a tokenizer.json or a .model file, or a tokenizer of either kind.

    With `bos` and `eos`, each text begins and ends with the tokenizer's own token for that.
    """
    ends = {"bos": bos, "eos": eos}
    for name, end in ends.items():
        if not isinstance(end, bool | str) or end == "":
            raise ValueError(f"{name} must be True, False, or the text of a token, got {end!r}")
    made = _made(given)
    if bos is False and eos is False:
        return made
    if isinstance(made, HuggingFaceTokenizer):
        return _with_tokens(made, given, ends)
    if isinstance(made, ByteTokenizer | SentencePieceTokenizer):
        return _with_own_ends(made, ends)
    raise ValueError(
        "bos and eos are for the tokenizers of this package, Hugging Face and SentencePiece: "
        f"let {type(made).__name__}.encode add them itself"
    )


def of_parts(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer for parts of a text, to which it adds nothing; one of a user's as it is."""
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return dataclasses.replace(tokenizer, bos_id=None, eos_id=None, bare=True)
    if isinstance(tokenizer, ByteTokenizer):
        return dataclasses.replace(tokenizer, bos=False, eos=False)
    if isinstance(tokenizer, SentencePieceTokenizer):
        return dataclasses.replace(tokenizer, add_bos=False, add_eos=False)
    return tokenizer


def _with_own_ends(
    tokenizer: ByteTokenizer | SentencePieceTokenizer, ends: Mapping[str, bool | str]
) -> Tokenizer:
    """The tokenizer told to add what it has by itself."""
    for name, end in ends.items():
        if isinstance(end, str):
            raise ValueError(
                f"{name}={end!r}: only a Hugging Face tokenizer needs the token's name; "
                f"{type(tokenizer).__name__} knows its own: give {name}=True"
            )
        if end and isinstance(tokenizer, SentencePieceTokenizer):
            model = sentence_piece(tokenizer.model)
            if getattr(model, f"{name}_id")() < 0:
                raise ValueError(f"{name}=True: this SentencePiece model has no {name} token")
    prefix = "add_" if isinstance(tokenizer, SentencePieceTokenizer) else ""
    return dataclasses.replace(
        tokenizer, **{f"{prefix}{name}": True for name, end in ends.items() if end}
    )


def _with_tokens(
    tokenizer: HuggingFaceTokenizer, given: Any, ends: Mapping[str, bool | str]
) -> HuggingFaceTokenizer:
    """The tokenizer with the ids of the tokens to add, but for those that it adds itself."""
    model = hugging_face(tokenizer.json)
    # What it adds by itself: the ids of a text, with and without its special tokens.
    plain = model.encode("a", add_special_tokens=False).ids
    probe = model.encode("a").ids
    place = next((n for n in range(len(probe)) if probe[n : n + len(plain)] == plain), 0)
    itself = {"bos": probe[:place][:1], "eos": probe[place + len(plain) :][-1:]}
    added = {}
    for name, end in ends.items():
        if end is False:
            continue
        token = end if isinstance(end, str) else _token_named_beside(given, name)
        number = None if token is None else model.token_to_id(token)
        if number is None:
            special = [t.content for t in model.get_added_tokens_decoder().values() if t.special]
            came = "it does not say which token that is" if token is None else "it has none such"
            raise ValueError(
                f"{name}={end!r} of this Hugging Face tokenizer: {came}; give the text of a "
                f"token, such as {name}='</s>'; its special tokens are {special[:8]}"
            )
        if itself[name] != [number]:  # else it is there already
            added[f"{name}_id"] = number
    return dataclasses.replace(tokenizer, **added)


def _token_named_beside(given: Any, name: str) -> str | None:
    """The token that a tokenizer of transformers names, or the configuration beside the file."""
    if not isinstance(given, str | os.PathLike):
        return getattr(given, f"{name}_token", None)
    path = epath.Path(given).parent / "tokenizer_config.json"
    token = json.loads(path.read_text()).get(f"{name}_token") if path.exists() else None
    return token.get("content") if isinstance(token, dict) else token


def _without_truncation(text: str) -> str:
    """The JSON of a tokenizer without its own limit, which would cut texts in silence.

    `TruncateTokens` cuts them. JSON without a limit stays as it is, for it is in fingerprints.
    """
    try:
        told = json.loads(text)
    except ValueError:
        return text  # loading it says what is wrong
    if not isinstance(told, dict) or told.get("truncation") is None:
        return text
    return json.dumps({**told, "truncation": None}, ensure_ascii=False)


def _made(given: Any) -> Tokenizer:
    if given is None:
        return ByteTokenizer()
    if isinstance(given, str | os.PathLike):
        path = epath.Path(given)
        if not path.exists():
            raise FileNotFoundError(f"there is no tokenizer file {os.fspath(given)!r}")
        if path.suffix == ".json":
            made = HuggingFaceTokenizer(_without_truncation(path.read_text()))
        else:
            made = SentencePieceTokenizer(path.read_bytes())
        try:
            made.encode([])  # which loads it
        except ImportError:
            raise
        except Exception as error:
            raise ValueError(
                f"{path} is neither a tokenizer.json of Hugging Face nor a SentencePiece model: "
                f"{error}"
            ) from error
        return made
    given = getattr(given, "backend_tokenizer", given)  # that of a fast tokenizer of transformers
    if hasattr(given, "to_str"):
        return HuggingFaceTokenizer(_without_truncation(given.to_str()))
    if hasattr(given, "serialized_model_proto"):
        if getattr(given, "_enable_sampling", False):
            raise ValueError(
                "a SentencePieceProcessor with enable_sampling=True gives other tokens each time: "
                "make it without"
            )
        options = {
            n: bool(getattr(given, f"_{n}", False)) for n in ("add_bos", "add_eos", "reverse")
        }
        return SentencePieceTokenizer(given.serialized_model_proto(), **options)
    if hasattr(given, "encode") and dataclasses.is_dataclass(given):
        return given  # pyright: ignore[reportReturnType]
    raise TypeError(
        "a tokenizer is None (bytes), a path, a tokenizer of `tokenizers` or `sentencepiece`, or "
        f"a frozen dataclass with encode(texts), got {type(given).__name__}"
    )
