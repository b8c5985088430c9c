"""From texts to token numbers."""

import dataclasses
from typing import Any, Unpack

import numpy as np

from loader.records.errors import RowError
from loader.records.spec import Spec, is_text, leaf_spec
from loader.records.stacking import ragged_leaf
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.leaves import get, name_of, put, without
from operators.text.tokenizers import Tokenizer, as_tokenizer


@dataclasses.dataclass(frozen=True)
class _Tokenize:
    leaf: str
    into: str
    tokenizer: Tokenizer

    @property
    def thread_safe(self) -> bool:
        return getattr(self.tokenizer, "thread_safe", False)

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
        tokens = leaf_spec((None,), np.dtype(np.int32))
        return put(without(spec, self.leaf), self.into, tokens)


class Tokenize(OperatorModule):
    """Texts to int32 token numbers of different lengths; cropping, padding or packing follow.

    `tokenizer` is None for bytes (`ByteTokenizer()`), a path to a Hugging Face `tokenizer.json` or
    a SentencePiece model, or such an object. The text is replaced by the tokens.

    With `bos=True` each text begins with the tokenizer's begin-of-text token, with `eos=True` it
    ends with its end-of-text token; one that the tokenizer adds by itself is not added twice. A
    Hugging Face file may not say which tokens these are. Then name them: `eos="<|endoftext|>"`.
    """

    def __init__(
        self,
        leaf: str = "text",
        *,
        into: str = "tokens",
        tokenizer: Any = None,
        bos: bool | str = False,
        eos: bool | str = False,
        **options: Unpack[OperatorOptions],
    ) -> None:
        self._tokenizer = as_tokenizer(tokenizer, bos, eos)
        super().__init__(_Tokenize(name_of(leaf), name_of(into), self._tokenizer), **options)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, which may also `decode`."""
        return self._tokenizer
