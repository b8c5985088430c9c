"""Conversations: how they are known, and the operators that learn their answers."""

from typing import Any

from loader.command.init.chosen import Chosen
from loader.command.init.found import QUESTION, Table
from loader.command.init.leaves import Leaf
from loader.command.init.sentences import BYTES_VOCABULARY, row_length
from operators import ChatTemplate
from operators.text.chat_messages import KEYS, LISTS, conversations
from operators.text.chat_template import TEMPLATES

_DEFAULT = "chatml"
_ANSWERS = ("assistant", "gpt", "model", "bot")  # what data sets call the one who answers
_BOTH = ["tokens", "loss_mask"]


def is_chat(value: dict[str, Any]) -> bool:
    """Whether this object of a line has messages, each of somebody."""
    messages = next((value[key] for key in LISTS if key in value), None)
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(one, dict) and any(key in one for key, _ in KEYS) for one in messages)
    )


def of_chats(text: Leaf, chosen: Chosen) -> Chosen:
    """A language model of the answers. The leaf has texts of JSON."""
    template, said = _template(text)
    tokens = ChatTemplate(**{key: template[key] for key in template if key != "kind"})
    length = row_length([len(row) for row in tokens({text.name: text.rows})["tokens"]])
    chosen.steps += [
        (template, said),
        (
            {"kind": "TruncateTokens", "leaf": _BOTH, "length": length, "side": "left"},
            [
                f"{QUESTION}of a longer conversation the end is kept here, and shorter ones are "
                "padded. Are they to be packed, several to a row, so that all is used? "
                "operators/README.md says how, under Chats"
            ],
        ),
        ({"kind": "PadTokens", "leaf": _BOTH, "length": length}, []),
        ({"kind": "ShiftTargets"}, ["one token less: each with the one after it"]),
    ]
    chosen.task = {"kind": "NextToken", "vocabulary": BYTES_VOCABULARY, "tokens": "tokens"}
    return chosen


def _template(text: Leaf) -> tuple[Table, list[str]]:
    """The operator that writes conversations with these roles, and what is said of it."""
    chats = conversations({text.name: text.rows}, text.name)
    roles = list(dict.fromkeys(message.role for chat in chats for message in chat))
    step: Table = {"kind": "ChatTemplate", "messages": text.name}
    known = set(dict(TEMPLATES[_DEFAULT].turns))
    if set(roles) <= known:
        step["template"] = _DEFAULT
        words = "which template does your model have?"
    else:
        step["template"] = {r: f"<|im_start|>{r}\n{{content}}<|im_end|>\n" for r in roles}
        step["answers"] = next((role for role in _ANSWERS if role in roles), roles[-1])
        words = f"{step['answers']} answers here. Is that so, and which template has your model?"
    return step, [
        f"{QUESTION}{words} Answers alone are learned",
        f"{QUESTION}bytes are the tokens here. For a tokenizer of yours, add tokenizer = "
        '"tokenizer.json", or a SentencePiece model, and say its vocabulary in [train]',
    ]
