"""ChatTemplate: the text of a conversation, which tokens count, conversations that are wrong."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tokenizers

from loader import DataLoader, Mapped, Packed, RowError, TextLinesSource, index_lengths
from loader.records.stacking import ragged_leaf
from operators import (
    AddSpecialTokens,
    ByteTokenizer,
    ChatTemplate,
    PadTokens,
    ShiftTargets,
    TruncateTokens,
)

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi\n"}, {"role": "assistant", "content": " hö "}],
    [
        {"role": "system", "content": "be\nkind"},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "assistant", "content": "really"},
        {"role": "user", "content": "ok"},
    ],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
]
TEMPLATE = {"system": "[{content}]", "user": "U:{content|trim};", "assistant": "A:{content}! \n"}


def rows_of(chats: Sequence[Any]) -> dict[str, Any]:
    texts = np.empty(len(chats), object)
    texts[:] = [chat if isinstance(chat, str | bytes) else json.dumps(chat) for chat in chats]
    return {"messages": texts}


def shown(rows: Any, row: int = 0) -> str:
    """The text of a row of bytes, with `<` and `>` around each stretch that counts."""
    text, before = "", False
    for token, counts in zip(rows["tokens"][row], rows["loss_mask"][row], strict=True):
        if counts != before:
            text += "<" if counts else ">"
        text, before = text + chr(token - 3), counts
    return text + (">" if before else "")


def test_answers_count_with_the_mark_that_ends_them():
    rows = ChatTemplate(template=TEMPLATE, begin="^")(rows_of(CHATS))
    assert shown(rows, 0) == "^U:hi;A:< h\u00c3\u00b6 !> \n"
    assert shown(rows, 1) == "^[be\nkind]U:1+1?;A:<2!> \nA:<really!> \nU:ok;"
    assert shown(rows, 2) == "^U:;A:<!> \n"
    users = ChatTemplate(template=TEMPLATE, answers=["user", "assistant"])(rows_of(CHATS))
    assert shown(users, 2) == "U:<;>A:<!> \n"
    bare = ChatTemplate(template={"user": "{content}", "assistant": "{content}"})
    made = bare(rows_of([CHATS[0], CHATS[2]]))
    assert [shown(made, row) for row in (0, 1)] == ["hi\n< h\u00c3\u00b6 >", ""]
    assert rows["tokens"][0].dtype == np.int32
    assert rows["loss_mask"][0].dtype == bool


def test_the_templates_of_models_are_written_as_those_models_have_them():
    chat = [{"role": "user", "content": " a "}, {"role": "assistant", "content": "b\n"}]
    for template, text in (
        ("chatml", "<|im_start|>user\n a <|im_end|>\n<|im_start|>assistant\n{b\n<|im_end|>}\n"),
        (
            "llama3",
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n{b<|eot_id|>}",
        ),
        (
            "gemma",
            "<bos><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\n{b<end_of_turn>}\n",
        ),
    ):
        rows = ChatTemplate(template=template)(rows_of([chat]))
        before, answer, after = text.replace("}", "{").split("{")
        assert ByteTokenizer().decode(rows["tokens"][0]) == before + answer + after
        counted = rows["tokens"][0][rows["loss_mask"][0]]
        assert ByteTokenizer().decode(counted) == answer


def in_bytes(lists: np.ndarray) -> np.ndarray:
    return ragged_leaf([np.array([text.encode() for text in one], object) for one in lists])


def test_messages_come_in_the_forms_that_data_sets_have(tmp_path: Path):
    expected = ChatTemplate()(rows_of(CHATS))
    shared = [[{"from": m["role"], "value": m["content"], "id": 3} for m in chat] for chat in CHATS]
    roles, contents = (
        ragged_leaf([np.array([m[key] for m in chat], object) for chat in CHATS])
        for key in ("role", "content")
    )
    for rows in (
        rows_of([json.dumps(chat).encode() for chat in CHATS]),
        rows_of([{"messages": chat, "source": "x"} for chat in CHATS]),
        rows_of([{"conversations": chat} for chat in shared]),
        {"messages": {"role": roles, "content": contents}},
        {"messages": {"from": in_bytes(roles), "value": in_bytes(contents)}},
    ):
        made = ChatTemplate()(rows)
        assert set(made) == {"tokens", "loss_mask"}
        for name in made:
            pairs = zip(made[name], expected[name], strict=True)
            assert all(np.array_equal(got, want) for got, want in pairs)
    lines = tmp_path / "chats.jsonl"
    lines.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS))
    operators = [ChatTemplate("text"), PadTokens(["tokens", "loss_mask"], 200)]
    batch = next(
        DataLoader(TextLinesSource(lines), batch_size=3, operators=operators).host_batches()
    )
    for row in range(3):
        assert np.array_equal(
            batch["tokens"][row][: len(expected["tokens"][row])], expected["tokens"][row]
        )
        assert batch["loss_mask"][row].sum() == expected["loss_mask"][row].sum()


def test_an_answer_of_weight_zero_is_read_and_not_learnt():
    chat = [{**m, "weight": n} for n, m in enumerate(CHATS[1][1:4])]
    assert (
        shown(ChatTemplate(template=TEMPLATE)(rows_of([chat]))) == "U:1+1?;A:<2!> \nA:<really!> \n"
    )
    chat[1]["weight"] = 0
    assert shown(ChatTemplate(template=TEMPLATE)(rows_of([chat]))) == "U:1+1?;A:2! \nA:<really!> \n"
    leaves = {
        key: ragged_leaf([np.array([m[key] for m in chat], object if key != "weight" else int)])
        for key in ("role", "content", "weight")
    }
    assert shown(ChatTemplate(template=TEMPLATE)({"messages": leaves})) == (
        "U:1+1?;A:2! \nA:<really!> \n"
    )


def test_no_token_is_half_of_an_answer_and_none_is_added(tmp_path: Path):
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = ["A:answer! user:question" * 3] * 50
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=120, special_tokens=["<s>", "</s>"])
    model.train_from_iterator(texts, trainer)
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    template = {"user": "user:{content}", "assistant": "A:{content}!</s>"}
    chat = [{"role": r, "content": c} for r, c in (("user", "question"), ("assistant", "answer"))]
    made = ChatTemplate(tokenizer=model, template=template, begin="<s>")(rows_of([chat] * 2))
    parts = [
        model.encode(text, add_special_tokens=False).ids
        for text in ("<s>user:questionA:", "answer!</s>")
    ]
    assert made["tokens"][1].tolist() == [*parts[0], *parts[1]]
    assert made["loss_mask"][1].tolist() == [False] * len(parts[0]) + [True] * len(parts[1])
    assert parts[0][0] == 0
    assert parts[1][-1] == 1
    pieces = tmp_path / "m.model"
    with pieces.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=file, vocab_size=40, minloglevel=2,
            hard_vocab_limit=False,
        )  # fmt: skip
    given = sentencepiece.SentencePieceProcessor(model_file=str(pieces), add_bos=True)
    made = ChatTemplate(tokenizer=given, template=template)(rows_of([chat]))
    assert given.bos_id() not in made["tokens"][0]
    assert ByteTokenizer(bos=True, eos=True) != ByteTokenizer()
    ends = ChatTemplate(tokenizer=ByteTokenizer(bos=True, eos=True))(rows_of([chat]))
    assert ends["tokens"][0].min() > 2


def test_packed_conversations_learn_answers_alone():
    records = [{"messages": json.dumps(chat)} for chat in CHATS]
    source = Mapped(records, [ChatTemplate(template=TEMPLATE)])
    packed = Packed(source, index_lengths(source), 64, leaf=["tokens", "loss_mask"])
    batches = [
        batch
        for operators in ([], [ShiftTargets()])
        for batch in DataLoader(packed, batch_size=2, operators=operators).host_batches()
    ]
    rows, shifted = batches
    counted = rows["loss_mask"] & (rows["segment_ids"] > 0)
    answers = [" h\u00f6 !", "2!", "really!", "!"]
    assert counted.sum() == sum(len(answer.encode()) for answer in answers)
    learnt = shifted["targets"][shifted["loss_mask"]]
    assert sorted(learnt.tolist()) == sorted(rows["tokens"][counted].tolist())


@dataclasses.dataclass(frozen=True)
class OnlySmall:
    """A tokenizer of a user's, which cannot take every text."""

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        if any(text != text.lower() for text in texts):
            raise LookupError("large letters")
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts]


def test_conversations_that_are_wrong_are_named_with_their_record():
    good = CHATS[0]
    for bad, words in (
        (
            [{"role": "tool", "content": "x"}],
            r"message 0 has the role 'tool', and the template has s",
        ),
        ([good[0], {"role": "user"}], "message 1 has null as 'content', which must be a text"),
        ([{"role": 3, "content": "x"}], "message 0 has 3 as 'role', which must be a text"),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            r"has \[{\"type\": \"text\"}\] as 'con",
        ),
        ([{"content": "x"}], r"message 0 has no role: it has \['content'\]"),
        (["x"], 'message 0 is "x", not an object'),
        ([], "there is no message: leave such records out with Filter"),
        ({"chat": good}, r"an object needs messages or conversations, it has \['chat'\]"),
        ({"messages": "x"}, 'messages must be a list, got "x"'),
        ("[", r"is not JSON: .*; got '\['"),
        (b"\xff", r"is not JSON: .*; got b'\\xff'"),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}],
            "message 0 has 'tool_calls', which a template cannot write",
        ),
    ):
        with pytest.raises(RowError, match=words) as caught:
            ChatTemplate(template=TEMPLATE)(rows_of([good, bad, good]))
        assert caught.value.row == 1
    unlike = {
        "role": ragged_leaf([np.array(["user"], object)]),
        "content": ragged_leaf([np.array([], object)]),
    }
    with pytest.raises(RowError, match=r"lists that differ in length: {'role': 1, 'content': 0}"):
        ChatTemplate()({"messages": unlike})
    for content, words in (
        (b"\xff", "leaf 'messages': 'utf-8' codec can't decode byte 0xff"),
        (np.datetime64("2026-01-02"), "message 0 has .*2026.* as 'content', which must be a text"),
    ):
        lists = {
            key: ragged_leaf([np.array([one], object)])
            for key, one in (("role", "user"), ("content", content))
        }
        with pytest.raises(RowError, match=words):
            ChatTemplate()({"messages": lists})
    chats = [[{"role": "user", "content": text}] for text in ("ab", "aB")]
    with pytest.raises(RowError, match=r"cannot tokenise 'u:aB': large letters") as caught:
        ChatTemplate(tokenizer=OnlySmall(), template={"user": "u:{content}"}, answers="user")(
            rows_of(chats)
        )
    assert caught.value.row == 1
    loader = DataLoader(rows_of([good, "?"]), batch_size=2, operators=[ChatTemplate()])
    with pytest.raises(ValueError, match="record 1: ChatTemplate: leaf 'messages' is not JSON"):
        next(loader.host_batches())


def test_settings_and_leaves_that_cannot_be_are_refused():
    make: Any = ChatTemplate
    for settings, message in (
        ({"template": "vicuna"}, r"template must be one of \['chatml', 'llama3', 'gemma'\], or"),
        ({"template": ["user"]}, r"template must be one of .* got \['user'\]"),
        ({"begin": True}, "begin must be a text, such as '<s>', or None, got True"),
        ({"template": {"user": "x"}}, r"the template of 'user' must hold {content} .* once, got"),
        ({"template": {"user": "{content}{content|trim}"}}, "must hold {content}"),
        ({"template": {"user": 3}}, "a template has a text for each role, got 'user': 3"),
        ({"template": {"user": "{content}"}}, r"answers must be roles of .*\['user'\], got \['ass"),
        ({"answers": "model"}, "answers must be roles of the template, which has .*'assistant'"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**settings)
    for data, message in (
        ({"messages": np.arange(3)}, "where messages are needed: a text of JSON"),
        (
            {"messages": {"a": np.arange(3)}},
            r"leaf 'messages' is a dict of \['a'\], where messages",
        ),
        ({"chat": np.arange(3)}, "there is no leaf 'messages'"),
    ):
        with pytest.raises(ValueError, match=message):
            DataLoader(data, batch_size=2, operators=[make()]).batch_spec()


def test_a_mask_goes_with_its_tokens_or_is_not_lost_in_silence():
    chats = rows_of(CHATS)
    both = ["tokens", "loss_mask"]
    cut = TruncateTokens(both, 40, side="left")(ChatTemplate()(chats))
    padded = PadTokens(both, 50)(cut)
    for row in range(3):
        assert np.array_equal(padded["loss_mask"][row][:40], cut["loss_mask"][row])
    assert not padded["loss_mask"][:, 40:].any()
    message = r"'loss_mask' already, .* pad it too, PadTokens\(\['tokens', 'loss_mask'\], 50\)"
    with pytest.raises(ValueError, match=message):
        DataLoader(chats, batch_size=3, operators=[ChatTemplate(), PadTokens("tokens", 50)])
    with pytest.raises(RowError, match=r"leaf 'loss_mask' has .* items and leaf 'tokens' has 40"):
        PadTokens(both, 200)(TruncateTokens("tokens", 40)(ChatTemplate()(chats)))
    operators = [ChatTemplate(), AddSpecialTokens(end=2)]
    with pytest.raises(ValueError, match="a leaf 'loss_mask', with a value for each token"):
        DataLoader(chats, batch_size=3, operators=operators)
