"""The folder of a data set of Hugging Face, as its `save_to_disk` writes it."""

import json
from typing import Any

from loader.command.init.files import first_of_each
from loader.command.init.found import Found, by_key, made
from loader.command.init.places import Place
from loader.command.init.records import fill_too, with_columns
from loader.records.optional import optional
from loader.sources.storage.stores import is_address


def saved(place: Place) -> Found | None:
    """The data set in a folder, or one of those in the folder of a `DatasetDict`."""
    if place.has("dataset_dict.json"):
        names = json.loads(place.head("dataset_dict.json", 2**20)).get("splits", [])
        splits = first_of_each(names)
        train = splits.get("train") or next(iter(names))
        found = _of_folder(place.below(train))
        held = splits.get("validation") or splits.get("test")
        if held is not None and held != train:
            fill_too(found, _of_folder(place.below(held)))
            found.held_out = {**found.source, "dataset": place.path(held)}
        rest = [n for n in names if n not in (train, held)]
        if rest:
            found.note("dataset", f"not used: {', '.join(place.path(n) for n in rest)}")
        return found
    if place.has("state.json") and place.has("dataset_info.json"):
        return _of_folder(place)
    return None


def _of_folder(place: Place) -> Found:
    folder = place.path("")
    found = Found(
        "a saved data set of Hugging Face", {"kind": "HuggingFaceSource", "dataset": folder}
    )
    found.narrow = by_key("columns")
    if is_address(folder):
        made(found.source)  # which says why it cannot be read, and what to do
    datasets = optional("datasets", f"a data set in the folder {folder!r}", "hf")
    try:
        table = datasets.load_from_disk(folder).data.table
    except Exception:  # whatever it comes upon in a damaged file
        made(found.source)
        raise
    empty = {n: table.column(n).null_count for n in table.column_names}
    with_columns(found, table.schema, empty)
    _name_classes(found, place)
    return found


def _name_classes(found: Found, place: Place) -> None:
    """What the labels mean, if there is one column of them."""
    features: dict[str, Any] = json.loads(place.head("dataset_info.json", 2**24)).get(
        "features", {}
    )
    labels = {n: f["names"] for n, f in features.items() if f.get("_type") == "ClassLabel"}
    if len(labels) == 1:
        ((name, classes),) = labels.items()
        found.classes = len(classes)
        shown = ", ".join(f"{n} is {each}" for n, each in enumerate(classes[:6]))
        found.note("", f"{name}: {shown}{', and so on' if len(classes) > 6 else ''}")
