"""From conversations to tokens, of which only those of the answers count in the loss."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Unpack

import numpy as np

from loader.records.errors import RowError
from loader.records.spec import Spec, leaf_spec
from loader.records.stacking import ragged_leaf
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.leaves import name_of, names_of, put, without
from operators.text.chat_messages import conversations, refuse_other_leaves
from operators.text.chat_template import Part, Template, as_template
from operators.text.token_spec import LOSS_MASK
from operators.text.tokenizers import Tokenizer, as_tokenizer, of_parts


@dataclasses.dataclass(frozen=True)
class _ChatTemplate:
    leaf: str
    into: str
    mask: str
    tokenizer: Tokenizer
    template: Template
    answers: tuple[str, ...]

    @property
    def thread_safe(self) -> bool:
        return getattr(self.tokenizer, "thread_safe", False)

    def __call__(self, rows: Any) -> Any:
        chats: list[list[Part]] = []
        for row, messages in enumerate(conversations(rows, self.leaf)):
            try:
                chats.append(self.template.parts(messages, self.answers))
            except ValueError as error:
                raise RowError(row, str(error)) from error
        tokens, masks = [], []
        encoded = iter(self._encoded(chats))
        for parts in chats:
            own = [next(encoded) for _ in parts]
            tokens.append(np.concatenate(own))
            counts = [part.counts for part in parts]
            masks.append(np.repeat(counts, [len(part) for part in own]))
        rows = put(without(rows, self.leaf), self.into, ragged_leaf(tokens))
        return put(rows, self.mask, ragged_leaf(masks))

    def _encoded(self, chats: list[list[Part]]) -> list[np.ndarray]:
        """The tokens of all parts of all rows, which are made in one call."""
        try:
            return self.tokenizer.encode([part.text for parts in chats for part in parts])
        except Exception:
            for row, parts in enumerate(chats):
                try:
                    self.tokenizer.encode([part.text for part in parts])
                except Exception as error:
                    text = "".join(part.text for part in parts)
                    raise RowError(row, f"cannot tokenise {text[:40]!r}: {error}") from error
            raise

    def output_spec(self, spec: Spec) -> Spec:
        refuse_other_leaves(spec, self.leaf)
        spec = without(spec, self.leaf)
        spec = put(spec, self.into, leaf_spec((None,), np.dtype(np.int32)))
        return put(spec, self.mask, leaf_spec((None,), np.dtype(bool)))


class ChatTemplate(OperatorModule):
    """Conversations to int32 tokens, and a `loss_mask` that is True for the tokens of the answers.

    `messages` is a leaf of texts of JSON, or one with leaves `role` and `content` in it; it is
    replaced. `template` is "chatml", "llama3" or "gemma", or a text for each role, in which
    `{content}` is what was said. `begin` is a text before all, instead of the template's own.

    Messages of the roles in `answers` count, with the mark that ends them. The text is tokenised in
    parts, which begin and end where answers do, so no token is half of an answer. The tokenizer, as
    for `Tokenize`, adds no tokens of its own.
    """

    def __init__(
        self,
        messages: str = "messages",
        *,
        into: str = "tokens",
        tokenizer: Any = None,
        template: str | Mapping[str, str] = "chatml",
        begin: str | None = None,
        answers: str | Iterable[str] = "assistant",
        mask: str = LOSS_MASK,
        **options: Unpack[OperatorOptions],
    ) -> None:
        roles = names_of(answers)
        self._tokenizer = of_parts(as_tokenizer(tokenizer))
        transform = _ChatTemplate(
            name_of(messages),
            name_of(into),
            name_of(mask),
            self._tokenizer,
            as_template(template, begin, roles),
            roles,
        )
        super().__init__(transform, **options)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, which may also `decode`."""
        return self._tokenizer
