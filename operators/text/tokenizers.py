"""Tokenizers: bytes, Hugging Face's, SentencePiece's."""

import dataclasses
import functools
import os
from collections.abc import Sequence
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
        """The text of some tokens; padding, begin and end are passed over."""
        tokens = np.asarray(tokens)
        return (tokens[tokens >= 3] - 3).astype(np.uint8).tobytes().decode(errors="replace")


@dataclasses.dataclass(frozen=True)
class HuggingFaceTokenizer:
    """A tokenizer of the package `tokenizers`, as its JSON."""

    json: str = dataclasses.field(repr=False)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        encoded = _hugging_face(self.json).encode_batch(list(texts))
        return [np.array(item.ids, np.int32) for item in encoded]

    def decode(self, tokens: Any) -> str:
        """The text of some tokens."""
        return _hugging_face(self.json).decode(np.asarray(tokens).tolist())


@dataclasses.dataclass(frozen=True)
class SentencePieceTokenizer:
    """A SentencePiece model, as its bytes."""

    model: bytes = dataclasses.field(repr=False)
    add_bos: bool = False
    add_eos: bool = False
    reverse: bool = False

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        options = {"add_bos": self.add_bos, "add_eos": self.add_eos, "reverse": self.reverse}
        encoded = _sentence_piece(self.model).encode(list(texts), **options)
        return [np.array(ids, np.int32) for ids in encoded]

    def decode(self, tokens: Any) -> str:
        """The text of some tokens."""
        return _sentence_piece(self.model).decode(np.asarray(tokens).tolist())


@functools.lru_cache(8)
def _hugging_face(json: str) -> Any:
    tokenizer = optional("tokenizers", "a Hugging Face tokenizer", "text").Tokenizer.from_str(json)
    tokenizer.no_padding()  # which would depend on the texts of the batch: PadTokens does it
    return tokenizer


@functools.lru_cache(8)
def _sentence_piece(model: bytes) -> Any:
    package = optional("sentencepiece", "a SentencePiece model", "text")
    return package.SentencePieceProcessor(model_proto=model)


def as_tokenizer(given: Any) -> Tokenizer:
    """None is bytes; a path to a tokenizer.json or a .model file, or a tokenizer of either kind."""
    if given is None:
        return ByteTokenizer()
    if isinstance(given, str | os.PathLike):
        path = epath.Path(given)
        if not path.exists():
            raise FileNotFoundError(f"there is no tokenizer file {os.fspath(given)!r}")
        if path.suffix == ".json":
            made = HuggingFaceTokenizer(path.read_text())
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
        return HuggingFaceTokenizer(given.to_str())
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
