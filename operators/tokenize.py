"""From texts to token numbers.

A tokenizer is held as plain data (the JSON of a Hugging Face tokenizer, the bytes of a
SentencePiece model), so that it can travel, and a change of it is noticed when a state is restored.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any, Protocol, Unpack

import numpy as np
from etils import epath

from loader.operator import OperatorModule, OperatorOptions
from loader.spec import Spec, is_text, leaf_spec, ragged_leaf
from loader.transform import RowError
from operators.leaves import get, name_of, put, without
from operators.optional import optional


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
    tokenizer.no_padding()  # which would depend on the texts of the batch: Pad does it
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
            made: Any = HuggingFaceTokenizer(path.read_text())
            load: Any = functools.partial(_hugging_face, made.json)
        else:
            made = SentencePieceTokenizer(path.read_bytes())
            load = functools.partial(_sentence_piece, made.model)
        try:
            load()
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


@dataclasses.dataclass(frozen=True)
class _Tokenize:
    leaf: str
    into: str
    tokenizer: Tokenizer

    def __call__(self, rows: Any) -> Any:
        texts = get(rows, self.leaf).tolist()
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise RowError(
                    row, f"leaf {self.leaf!r} is a {type(text).__name__}, not a text: decode it"
                )
        try:
            tokens = ragged_leaf(self.tokenizer.encode(texts))
        except Exception as error:
            raise self._located(texts) or error from error
        return put(without(rows, self.leaf), self.into, tokens)

    def _located(self, texts: list[str]) -> RowError | None:
        """The error of the first text that cannot be encoded."""
        for row, text in enumerate(texts):
            try:
                self.tokenizer.encode([text])
            except Exception as error:
                return RowError(row, f"cannot tokenise {text[:40]!r}: {error}")
        return None

    def output_spec(self, spec: Spec) -> Spec:
        leaf = get(spec, self.leaf)
        if not is_text(leaf.dtype) or leaf.shape:
            raise ValueError(f"leaf {self.leaf!r} is {leaf.dtype}{list(leaf.shape)}, not a text")
        shape: Any = (None,)
        tokens = leaf_spec(shape, np.dtype(np.int32))
        return put(without(spec, self.leaf), self.into, tokens)


class Tokenize(OperatorModule):
    """Texts to int32 token numbers, of different lengths: put `Crop` and `Pad`, or packing, behind.

    `tokenizer` is None for bytes (`ByteTokenizer()`), a path to a Hugging Face `tokenizer.json` or
    a SentencePiece model, or such an object. The text is replaced by the tokens.
    """

    def __init__(
        self,
        leaf: str = "text",
        *,
        into: str = "tokens",
        tokenizer: Any = None,
        **options: Unpack[OperatorOptions],
    ) -> None:
        transform = _Tokenize(name_of(leaf), name_of(into), as_tokenizer(tokenizer))
        super().__init__(transform, **options)
