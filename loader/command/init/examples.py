"""What the bytes of records are: `tf.train.Example`, msgpack, or what only people know."""

from typing import Any

from loader.command.init.found import QUESTION, Found, Table, listed_some, made, spread
from loader.command.init.magic import is_image
from loader.sources.array_record.parsers import Msgpack
from loader.sources.tfrecord.wire import features_of

_BYTES, _FLOATS, _INTS = 1, 2, 3
_DTYPES = {_FLOATS: "float32", _INTS: "int64"}
_FILLS: dict[str, Any] = {"bytes": "", "str": "", "float32": 0.0, "int64": 0}


def with_parse(found: Found) -> Found:
    """The source with what parses its records, as some of them show it."""
    source = made(found.source)
    numbers = spread(source)
    blobs = list(map(bytes, source.gather(numbers)))
    examples = _examples(blobs)
    if examples is not None:
        _put_features(found, examples)
    elif _are_msgpack(blobs):
        found.source["parse"] = {"kind": "Msgpack"}
        found.what += " of msgpack maps"
    else:
        _ask(found, blobs)
    return found


def narrowed(table: Table, names: list[str]) -> Table:
    """The table with these features alone."""
    parse = table["parse"]
    parts = ("features", "defaults")
    kept = {p: {n: v for n, v in parse[p].items() if n in names} for p in parts if p in parse}
    return {**table, "parse": {"kind": "TFExample", **{p: v for p, v in kept.items() if v}}}


def _examples(blobs: list[bytes]) -> list[dict[str, Any]] | None:
    """The features of each record, if all are examples with some."""
    try:
        found = [features_of(blob) for blob in blobs]
    except ValueError:
        return None
    return found if all(found) else None


def _are_msgpack(blobs: list[bytes]) -> bool:
    try:
        return all(isinstance(Msgpack()(blob), dict) for blob in blobs)
    except Exception:  # whatever it comes upon in bytes that are something else
        return False


def _put_features(found: Found, examples: list[dict[str, Any]]) -> None:
    features, defaults, out = {}, {}, []
    for name in sorted({name for each in examples for name in each}):
        there = [each[name] for each in examples if name in each and each[name][0] is not None]
        word = _feature([kind for kind, _ in there], [values for _, values in there])
        if word is None:
            out.append(name)
            continue
        features[name] = word
        if len(there) < len(examples):
            defaults[name] = _FILLS[word.partition("[")[0]]
    if not features:
        raise ValueError(
            f"the examples of {found.source['paths']} have no feature that is of one kind"
        )
    parse: Table = {"kind": "TFExample", "features": features}
    found.source["parse"] = {**parse, "defaults": defaults} if defaults else parse
    found.what += " of tf.train.Example"
    found.narrow = narrowed
    found.note("parse", f"features as {len(examples)} records show them")
    if defaults:
        found.note(
            "parse",
            f"{QUESTION}{listed_some(defaults)}: not in all records. What is put there instead? "
            "Here, what defaults says",
        )
    if out:
        found.note("parse", f"left out, because they are of different kinds: {listed_some(out)}")
    wide = [n for n, word in features.items() if "[" in word and "?" not in word]
    if wide:
        found.note(
            "parse",
            f"{QUESTION}{listed_some(wide)}: rows of numbers, for an example does not say their "
            'shape. Is there one? For 28 x 28, write "...[28, 28]"',
        )


def _feature(kinds: list[Any], values: list[list[Any]]) -> str | None:
    """The word of a feature; None if it is of no single kind."""
    if len(set(kinds)) != 1:
        return None
    counts = {len(each) for each in values}
    word = _DTYPES.get(kinds[0]) or _bytes_or_text([v for each in values for v in each])
    if counts == {1}:
        return word
    if kinds[0] == _BYTES:
        return "bytes[?]"
    return f"{word}[{counts.pop()}]" if len(counts) == 1 and 0 not in counts else f"{word}[?]"


def _bytes_or_text(values: list[bytes]) -> str:
    if any(map(is_image, values)):
        return "bytes"
    try:
        texts = [value.decode() for value in values]
    except UnicodeDecodeError:
        return "bytes"
    return "bytes" if any("\0" in text for text in texts) else "str"


def _ask(found: Found, blobs: list[bytes]) -> None:
    """Records of which nothing is known but their lengths."""
    lengths = {len(blob) for blob in blobs}
    beginning = f"the first begins with {blobs[0][:8]!r}"
    if all(map(is_image, blobs)) or len(lengths) > 1 or 0 in lengths:
        found.note(
            "paths",
            f"{QUESTION}what parses a record? They are neither tf.train.Example nor msgpack, and "
            f'{beginning}. For a function of yours, add parse = {{ ref = "my_module:parse" }}',
        )
        return
    (length,) = lengths
    found.source["parse"] = {"kind": "RawArrays", "spec": {"data": f"uint8[{length}]"}}
    found.note(
        "parse",
        f"{QUESTION}what is in the {length} bytes of a record? They are neither tf.train.Example "
        f"nor msgpack, and {beginning}. If they are arrays one after the other, in the order of "
        'their names, say which: spec = { image = "uint8[8, 8]", label = "int32" }',
    )
