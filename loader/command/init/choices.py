"""What is done with the leaves: which are taken, what the operators are, what is learned."""

from collections.abc import Iterable

from loader.command.init import chats, pictures, sentences
from loader.command.init.chosen import Chosen
from loader.command.init.found import QUESTION, Found, listed_some
from loader.command.init.leaves import (
    Leaf,
    Looked,
    label_of,
    largest,
    target_of,
    text_of,
    tokens_of,
)


def choose(found: Found, looked: Looked) -> Chosen:
    """What these leaves are good for: images first, then tokens and texts, then numbers."""
    flat = {n: leaf for n, leaf in looked.leaves.items() if "/" not in n}
    top = Looked(flat, looked.count, looked.bad)
    if images := top.of("image", "pixels"):
        chosen = _of_images(images, found, top)
    elif (tokens := tokens_of(top)) is not None:
        chosen = sentences.of_tokens(tokens, found, Chosen(32))
    elif found.chats:
        chosen = chats.of_chats(top.leaves["text"], Chosen(32))
    elif (text := text_of(top)) is not None:
        texts = [leaf.name for leaf in top.of("text")]
        chosen = sentences.of_text(text, texts, Chosen(32))
        label, _ = label_of(top)
        if label is not None:
            chosen.note(
                "task",
                f"{QUESTION}the next token of the text is learned here. Is it {label.name} that is "
                "to be found? Then take that leaf too, and write a task of your own "
                "(configs/README.md)",
            )
    else:
        chosen = _of_numbers(found, top)
    if chosen.leaves is None:
        padded = [step.get("leaf") for step, _ in chosen.steps]
        some = [leaf for leaf in looked.leaves.values() if leaf.name not in padded]
        out = {leaf.name.partition("/")[0] for leaf in some if leaf.ragged or leaf.kind == "wide"}
        tops = dict.fromkeys(name.partition("/")[0] for name in looked.leaves)
        chosen.leaves = [name for name in tops if name not in out] if out else None
    return chosen


def _of_images(images: list[Leaf], found: Found, looked: Looked) -> Chosen:
    image = images[0]
    chosen = Chosen(64)
    chosen.steps, chosen.held_out_steps = pictures.steps(image, looked.count)
    if len(images) > 1:
        names = listed_some(leaf.name for leaf in images)
        chosen.note("task", f"{QUESTION}which of {names} is seen?")
    _classify(chosen, image.name, found, looked)
    return chosen


def _of_numbers(found: Found, looked: Looked) -> Chosen:
    """The class of a row of numbers, or the number that belongs to it."""
    chosen = Chosen(256)
    label, _ = label_of(looked)
    vectors = [leaf for leaf in looked.of("vector", "even") if leaf is not label]
    seen = max(vectors, key=lambda leaf: leaf.rows[0].size, default=None)
    target, guesses = target_of(looked, seen)
    sought = label or target
    rest = [
        leaf
        for leaf in looked.of("number", "integer")
        if leaf is not sought and not leaf.numbers_records
    ]
    if seen is None and rest and sought is not None:
        seen = next((leaf for leaf in rest if leaf.kind == "number"), rest[0])
        if len(rest) > 1:
            names = listed_some(leaf.name for leaf in rest)
            chosen.note(
                "task",
                f"{QUESTION}the model sees one leaf: which of {names}? To let it see several, put "
                "them together in an operator of yours, or write them as one array",
            )
    if seen is not None and seen.kind == "even":
        length = len(seen.rows[0])
        pad = {
            "kind": "PadTokens",
            "leaf": seen.name,
            "length": length,
            "mask": f"{seen.name}_mask",
        }
        chosen.steps.append((pad, [f"lists: all that were looked at have {length} numbers"]))
    if seen is not None and label is not None:
        _classify(chosen, seen.name, found, looked)
        return chosen
    if seen is None or target is None or target is seen:
        _nothing(chosen, looked)
        return chosen
    if guesses:
        words = f"{QUESTION}is {target.name} to be found? {_guessed(guesses)}"
        chosen.note("task", f"{words}{_texts_like_labels(looked)}")
    chosen.leaves = _that_fit(looked, [seen.name, target.name])
    chosen.task = {"kind": "Regress", "input": seen.name, "target": target.name}
    return chosen


def _nothing(chosen: Chosen, looked: Looked) -> None:
    words = (
        "what is to be learned? No leaf was found that looks like a label, a text or a number to "
        'find, so there is no [train]. With one: task = { kind = "Classify", input = "...", '
        'label = "...", classes = 10 }'
    )
    chosen.note("", f"{QUESTION}{words}{_texts_like_labels(looked)}")


def _texts_like_labels(looked: Looked) -> str:
    """What is said of texts that come again and again."""
    names = [leaf.name for leaf in looked.of("text") if len(set(leaf.rows)) < len(leaf.rows)]
    if not names:
        return ""
    return f". A label must be a whole number: if it is {listed_some(names)}, write it as one"


def _classify(chosen: Chosen, input_: str, found: Found, looked: Looked) -> None:
    label, others = label_of(looked)
    if label is None:
        _nothing(chosen, looked)
        return
    classes = found.classes
    if others:
        chosen.note("task", f"{QUESTION}is {label.name} the label? {_guessed(others)}")
    if classes is None:
        most, count, all_ = largest(found, label.name) or (label.most, looked.count, False)
        classes = max(most + 1, 2)
        words = f"The largest label of {count:,} records is {most}"
        chosen.note("task", words if all_ else f"{QUESTION}how many classes are there? {words}")
    if label.kind == "flag":
        words = "true and false as the numbers of two classes"
        chosen.steps.append(({"kind": "Cast", "leaf": label.name, "dtype": "int32"}, [words]))
        if chosen.held_out_steps is not None:
            chosen.held_out_steps.append(chosen.steps[-1][0])
    chosen.leaves = _that_fit(looked, [input_, label.name])
    task = {"kind": "Classify", "input": input_, "label": label.name, "classes": classes}
    chosen.task = task


def _guessed(others: list[str]) -> str:
    if len(others) == 1:
        return "Its name does not say so, and nothing else looks like it"
    return f"Names do not say so. It might be one of {listed_some(others)}"


def _that_fit(looked: Looked, needed: Iterable[str]) -> list[str]:
    """Those that are needed, and whatever else has a place on a device and is small."""
    small = [leaf.name for leaf in looked.of("integer", "flag", "number")]
    return [name for name in looked.leaves if name in needed or name in small]
