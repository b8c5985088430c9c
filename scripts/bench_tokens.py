"""Operators on tokens, beside the same elsewhere: jinja2 and tokenizers for chats, else numpy.

Chats are beside what `apply_chat_template` of transformers does: a template of jinja2 is rendered,
the whole text is tokenised, and the mask is found from offsets; records must be the same. No
installed package masks tokens, cuts out spans, or adds tokens to arrays, so there the rival is the
same in numpy, written as plainly as it can be for a whole batch. All work in one thread.
"""

import functools
import importlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from bench_contest import Batches, Contest, Contestant, Promise, Result
from bench_contestants import Task, gristmill
from bench_data import Columns
from bench_images import alone
from bench_process import in_child
from bench_timing import Pace, hold

from loader import Sequential
from operators import (
    AddSpecialTokens,
    ChatTemplate,
    MaskTokens,
    PadTokens,
    SpanCorruption,
    TruncateTokens,
)

_ROWS, _BATCH, _LENGTH = 8192, 64, 568
_VOCABULARY, _MASK, _SENTINEL = 32_100, 31_000, 32_099
_CHATS, _CHAT_LENGTH = 2048, 512
_MARKS = ["<|im_start|>", "<|im_end|>"]
# As models have it, and what an answer is: from after "assistant\n" to the mark that ends it.
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
)

OnBatch = Callable[[np.ndarray], dict[str, np.ndarray]]


def tokens(pace: Pace) -> Iterator[Result]:
    """Operators on tokens, beside jinja2 and tokenizers, or numpy."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    yield hold(_chats(), pace)
    columns = in_child(_some_tokens)
    inputs, targets = 512, 114  # of 568 tokens
    same = {"tokens": _LENGTH, "targets": _LENGTH, "loss_mask": _LENGTH}
    spans = {"inputs": inputs, "inputs_mask": inputs, "targets": targets, "loss_mask": targets}
    marked = MaskTokens(mask_token=_MASK, vocab_size=_VOCABULARY, special=range(3), seed=0)
    yield hold(_contest("MaskTokens", columns, [marked], _masked, same), pace)
    cut = SpanCorruption(sentinels=_SENTINEL, end=1, seed=0)
    yield hold(_contest("SpanCorruption", columns, [cut], _cut_out, spans), pace)
    if not pace.quick:
        ends = [TruncateTokens("tokens", 510, side="left"), AddSpecialTokens(begin=1, end=2)]
        name = "TruncateTokens and AddSpecialTokens"
        yield hold(_contest(name, columns, ends, _ended, {"tokens": 512}), pace)


def _some_tokens() -> Columns:
    numbers = np.random.default_rng(0).integers(3, 30_000, (_ROWS, _LENGTH)).astype(np.int32)
    return Columns({"tokens": numbers, "label": np.arange(_ROWS, dtype=np.int32)})


def _contest(
    name: str,
    columns: Columns,
    operators: list[Any],
    rival: Callable[[np.random.Generator, np.ndarray], dict[str, np.ndarray]],
    lengths: dict[str, int],
) -> Contest:
    settings = {"prefetch": 0, "order": Sequential(), "operators": operators}
    ours = gristmill(Task(columns, _BATCH), lambda: columns.arrays, **settings)
    plain = functools.partial(_in_numpy, columns.arrays, rival)
    contestants = alone("numpy", plain, "numpy"), alone("gristmill", ours.make, "gristmill")
    shapes = {
        leaf: ((length,), "bool" if leaf.endswith("mask") else "int32")
        for leaf, length in lengths.items()
    }
    promise = Promise(_ROWS, {**shapes, "label": ((), "int32")})
    return Contest(f"operators, {name}", contestants, promise)


def _in_numpy(arrays: dict[str, np.ndarray], change: Any) -> Batches:
    rng = np.random.default_rng(0)
    while True:
        for start in range(0, _ROWS, _BATCH):
            rows = {name: array[start : start + _BATCH] for name, array in arrays.items()}
            yield {**change(rng, rows.pop("tokens")), **rows}


def _masked(rng: np.random.Generator, given: np.ndarray) -> dict[str, np.ndarray]:
    chosen = (rng.random(given.shape, np.float32) < 0.15) & (given >= 3) & (given != _MASK)
    kind = rng.random(given.shape, np.float32)
    hidden = np.where(chosen & (kind < 0.8), np.int32(_MASK), given)
    other = rng.integers(3, _VOCABULARY, given.shape, np.int32)
    hidden = np.where(chosen & (kind >= 0.8) & (kind < 0.9), other, hidden)
    return {"tokens": hidden, "targets": given, "loss_mask": chosen}


def _cut_out(rng: np.random.Generator, given: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of one length: 85 of 568 tokens in 28 spans."""
    count, length = given.shape
    noise, spans = 85, 28

    def ends(items: int) -> np.ndarray:
        places = rng.random((count, items - 1), np.float32).argsort(1)[:, : spans - 1] + 1
        return np.hstack([np.sort(places, 1), np.full((count, 1), items)])

    kept, cut = ends(length - noise), ends(noise)
    starts = kept + np.hstack([np.zeros((count, 1), int), cut[:, :-1]])
    turns = np.zeros((count, length + 1), int)
    np.put_along_axis(turns, starts, 1, 1)
    np.put_along_axis(turns, kept + cut, 1, 1)
    is_noise = turns.cumsum(1)[:, :-1] % 2 == 1
    sentinels = np.tile(_SENTINEL - np.arange(spans, dtype=np.int32), (count, 1))
    left = given.copy()
    np.put_along_axis(left, starts, sentinels, 1)
    stays = ~is_noise
    np.put_along_axis(stays, starts, True, 1)
    end = np.ones((count, 1), np.int32)
    inputs = np.hstack([left[stays].reshape(count, -1), end])
    # A sentinel before the tokens of each span.
    targets = np.empty((count, noise + spans), np.int32)
    before = np.hstack([np.zeros((count, 1), int), cut[:, :-1]]) + np.arange(spans)
    rest = np.ones(targets.shape, bool)
    np.put_along_axis(rest, before, False, 1)
    np.put_along_axis(targets, before, sentinels, 1)
    targets[rest] = given[is_noise]
    targets = np.hstack([targets, end])
    masks = np.ones(inputs.shape, bool), np.ones(targets.shape, bool)
    return {"inputs": inputs, "inputs_mask": masks[0], "targets": targets, "loss_mask": masks[1]}


def _ended(_: np.random.Generator, given: np.ndarray) -> dict[str, np.ndarray]:
    first, last = (np.full((len(given), 1), number, np.int32) for number in (1, 2))
    return {"tokens": np.hstack([first, given[:, -510:], last])}


# Chats


def _chats() -> Contest:
    columns, model = in_child(_some_chats)
    both = ["tokens", "loss_mask"]
    operators = [
        ChatTemplate(tokenizer=_tokenizer(model)),
        TruncateTokens(both, _CHAT_LENGTH),
        PadTokens(both, _CHAT_LENGTH),
    ]
    settings = {"prefetch": 0, "order": Sequential(), "operators": operators}
    ours = gristmill(Task(columns, _BATCH), lambda: columns.arrays, **settings)
    theirs = functools.partial(_by_jinja, columns.arrays, model)
    contestants = (
        Contestant("jinja2 and tokenizers", theirs, "jinja2", "jinja2", ahead=1),
        alone("gristmill", ours.make, "gristmill"),
    )
    shapes = {
        "tokens": ((_CHAT_LENGTH,), "int32"),
        "loss_mask": ((_CHAT_LENGTH,), "bool"),
        "label": ((), "int32"),
    }
    rows = next(_by_jinja(columns.arrays, model, _CHATS))
    promise = Promise(_CHATS, shapes, lambda labels: {leaf: rows[leaf][labels] for leaf in both})
    return Contest("operators, ChatTemplate", contestants, promise)


def _some_chats() -> tuple[Columns, str]:
    """Conversations of invented words, and a tokenizer trained on them, as its JSON."""
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, rng.integers(2, 9)))) for _ in range(5000)]
    chats = np.empty(_CHATS, object)
    for number in range(_CHATS):
        turns = [
            {"role": role, "content": " ".join(rng.choice(words, rng.integers(5, 60)))}
            for role in ("user", "assistant") * int(rng.integers(1, 4))
        ]
        chats[number] = json.dumps(turns)
    library: Any = importlib.import_module("tokenizers")
    model = library.Tokenizer(library.models.BPE())
    model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = library.trainers.BpeTrainer(vocab_size=4000, special_tokens=_MARKS)
    model.train_from_iterator([f"{text}\n" for text in chats[:500]], trainer)
    labels = np.arange(_CHATS, dtype=np.int32)
    return Columns({"messages": chats, "label": labels}), model.to_str()


def _tokenizer(model: str) -> Any:
    library: Any = importlib.import_module("tokenizers")
    return library.Tokenizer.from_str(model)


def _by_jinja(arrays: dict[str, np.ndarray], model: str, size: int = _BATCH) -> Batches:
    jinja2: Any = importlib.import_module("jinja2")
    template = jinja2.Environment(keep_trailing_newline=True).from_string(_CHATML)
    tokenizer = _tokenizer(model)
    while True:
        for start in range(0, _CHATS, size):
            rows = {name: array[start : start + size] for name, array in arrays.items()}
            chats = [json.loads(chat) for chat in rows.pop("messages")]
            texts = [template.render(messages=chat) for chat in chats]
            shape = len(texts), _CHAT_LENGTH
            made, mask = np.zeros(shape, np.int32), np.zeros(shape, bool)
            for row, found in enumerate(tokenizer.encode_batch(texts)):
                count = min(len(found.ids), _CHAT_LENGTH)
                made[row, :count] = found.ids[:count]
                for begin, end in _answers(texts[row], chats[row]):
                    first, last = found.char_to_token(begin), found.char_to_token(end - 1)
                    mask[row, first : last + 1] = True
            yield {"tokens": made, "loss_mask": mask, **rows}


def _answers(text: str, chat: list[dict[str, str]]) -> Iterator[tuple[int, int]]:
    """Where answers begin and end in the text, with the mark after them."""
    at = 0
    for message in chat:
        at = text.index("\n", at) + 1
        end = at + len(message["content"]) + len(_MARKS[1])
        if message["role"] == "assistant":
            yield at, end
        at = end + 1
