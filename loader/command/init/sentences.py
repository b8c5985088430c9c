"""The operators for texts and tokens: rows of one length, and the token that follows each."""

import numpy as np

from loader.command.config.writing import as_toml
from loader.command.init.chosen import Chosen
from loader.command.init.found import QUESTION, Found, listed_some
from loader.command.init.leaves import Leaf, largest

_LENGTHS = (33, 65, 129, 257, 513)  # one token more than what a model sees
BYTES_VOCABULARY = 259


def of_text(text: Leaf, others: list[str], chosen: Chosen) -> Chosen:
    """A language model of the bytes of a text."""
    length = row_length([len(each.encode()) + 1 for each in text.rows])
    tokenize = {"kind": "Tokenize", "leaf": text.name, "eos": True}
    said = [
        f"{QUESTION}bytes are the tokens here. For a tokenizer of yours, add tokenizer = "
        '"tokenizer.json", or a SentencePiece model, and say its vocabulary in [train]'
    ]
    if len(others) > 1:
        said.append(f"{QUESTION}is {text.name} the text? There are {listed_some(others)}")
    chosen.steps.append((tokenize, said))
    _to_rows(chosen, "tokens", length)
    chosen.steps[1][1].append(
        f"{QUESTION}longer texts are cut here, and shorter ones are padded. Are they to be packed, "
        "several to a row, so that all is used? The end of this file says how"
    )
    chosen.leaves = [text.name]
    chosen.task = {"kind": "NextToken", "vocabulary": BYTES_VOCABULARY, "tokens": "tokens"}
    chosen.instead = _PACKED, _packed(text.name, length)
    return chosen


def of_tokens(tokens: Leaf, found: Found, chosen: Chosen) -> Chosen:
    """A language model of tokens that are there already."""
    if tokens.kind in ("sequence", "even"):
        _to_rows(chosen, tokens.name, row_length([len(row) for row in tokens.rows]))
    else:
        chosen.steps.append(({"kind": "ShiftTargets", "leaf": tokens.name}, []))
    chosen.leaves = [tokens.name]
    most, count, all_ = largest(found, tokens.name) or (tokens.most, len(tokens.rows), False)
    vocabulary = found.vocabulary or most + 1
    chosen.task = {"kind": "NextToken", "vocabulary": vocabulary, "tokens": tokens.name}
    words = f"The largest token of {count:,} records is {most}"
    if found.vocabulary is not None or all_:
        words = f"The largest token of all is {vocabulary - 1}"
    chosen.note("task", f"{QUESTION}how large is the vocabulary of the tokenizer? {words}")
    return chosen


def _to_rows(chosen: Chosen, leaf: str, length: int) -> None:
    words = f"nine of ten that were looked at fit into {length}" if length < _LENGTHS[-1] else ""
    chosen.steps += [
        ({"kind": "CropTokens", "leaf": leaf, "length": length}, [words] if words else []),
        ({"kind": "PadTokens", "leaf": leaf, "length": length}, []),
        ({"kind": "ShiftTargets", "leaf": leaf}, ["one token less: each with the one after it"]),
    ]


def row_length(lengths: list[int]) -> int:
    """That of a row into which nine of ten fit, if it is not too long."""
    most = np.quantile(lengths, 0.9)
    return next((length for length in _LENGTHS if most <= length), _LENGTHS[-1])


_PACKED = (
    "To pack texts: make [source] above [[source]], put these lines after it, and take out "
    "Tokenize, CropTokens and PadTokens. All texts are tokenised once then, and kept"
)


def _packed(leaf: str, length: int) -> list[str]:
    """The lines that pack texts, in place of those that pad them."""
    select = {"kind": "Select", "leaves": [leaf]}
    tokenize = {"kind": "Tokenize", "leaf": leaf, "eos": True}
    return [
        "[[source]]",
        'kind = "Mapped"',
        f"operators = {as_toml([select, tokenize])}",
        "[[source]]",
        'kind = "Packed"',
        f"row_length = {length}",
        'long = "split"',
    ]
