"""The formats that are found, each with the function that writes its source."""

from collections.abc import Callable

from loader.command.init import arrays, hugging_face, images, records, texts
from loader.command.init.files import Files, parts_of
from loader.command.init.found import Found, listed_some
from loader.command.init.magic import HEAD_BYTES, UNREADABLE, format_of, suffix_of
from loader.command.init.places import Place

#: What is known by a whole folder: each gives None for a folder that is something else.
OF_FOLDERS: tuple[Callable[[Place], Found | None], ...] = (hugging_face.saved, arrays.chunked)

#: What is known by its files: `magic.format_of` says which of these a file is.
OF_FILES: dict[str, Callable[[Files, str], Found]] = {
    "ArrayRecord": records.array_record,
    "TFRecord": records.tfrecord,
    "tar": records.tar,
    "Parquet": records.parquet,
    "lines of JSON": texts.json_lines,
    "text": texts.lines,
    "image": images.images,
    "npy": arrays.npy,
    "tokens": arrays.tokens,
}
_BESIDE = ("README", "LICENSE", "license", "readme", "_")  # what begins so tells of the data
_ABOUT = (
    *(".md", ".json", ".yaml", ".yml", ".toml", ".html", ".pdf", ".py", ".sh", ".ipynb"),
    *(".csv", ".tsv", ".crc", ".index"),
)
_WORDS = {"": "of no format that we know", "text": "plain text", "tokens": "raw numbers"}
_LOOKED_INTO = 3  # files of each suffix


def find(place: Place, name: str) -> Found:
    """The source of what is at this place. `name` begins the names of what it keeps."""
    if place.named is None:
        for look in OF_FOLDERS:
            if (found := look(place)) is not None:
                return found
    format_, names, about = _format_of_all(place)
    in_folders = format_ == "image" and place.named is None
    train, held, rest = (tuple(names), (), ()) if in_folders else parts_of(names)
    found = OF_FILES[format_](Files(place, train), name)
    if held:
        found.held_out = _held_out(found, Files(place, held))
        found.note(
            "", f"files to train on: {len(train)}, held out: {len(held)}, as their names say"
        )
    if rest or about:
        found.note("", f"not read: {listed_some([*rest, *about])}")
    return found


def _held_out(found: Found, files: Files) -> dict:
    """The same source over other files."""
    if "arrays" in found.source:
        return OF_FILES["npy"](files, "").source
    if found.source["kind"] == "ParquetSource":
        records.fill_too(found, records.parquet(files, ""))
    key = "tokens" if "tokens" in found.source else "paths"
    return {**found.source, key: files.paths()}


def _format_of_all(place: Place) -> tuple[str, list[str], list[str]]:
    """The one format of all files, those that are of it, and those that tell of the data."""
    by_suffix: dict[str, list[str]] = {}
    for name in place.names:
        if place.named is not None or not name.rpartition("/")[2].startswith(_BESIDE):
            by_suffix.setdefault(suffix_of(name), []).append(name)
    data: dict[str, list[str]] = {}  # by format, in each the file that was looked into first
    about: dict[str, list[str]] = {}
    for suffix, own in by_suffix.items():
        into = about if place.named is None and suffix in _ABOUT else data
        for name in own[:: max(1, len(own) // _LOOKED_INTO)]:
            if size := place.size(name):
                format_ = _format(place, name, size)
                into.setdefault(format_, []).extend([name, *own])
    rest = [name for own in about.values() for name in own] if data else []
    format_, names = _only_one(place, data or about)
    return format_, sorted(set(names)), sorted(set(rest))


def _format(place: Place, name: str, size: int) -> str:
    try:
        return format_of(name, place.head(name, HEAD_BYTES), size)
    except (ValueError, EOFError) as error:
        raise ValueError(
            f"{place.path(name)} is not a whole file: {error}; write or copy it again"
        ) from error


def _only_one(place: Place, names: dict[str, list[str]]) -> tuple[str, list[str]]:
    if not names:
        raise ValueError(f"{place} has no file with anything in it: write or copy it again")
    first = {format_: place.path(own[0]) for format_, own in names.items()}
    if len(names) > 1:
        kinds = [f"{path} is {_WORDS.get(f, f)}" for f, path in first.items()]
        known = next((f for f in names if f in OF_FILES), next(iter(names)))
        glob = place.path(f"*{suffix_of(names[known][0])}")
        raise ValueError(
            f"{place} has files of several formats: {listed_some(kinds)}; give a glob of those "
            f"that are the data, such as '{glob}'"
        )
    ((format_, path),) = first.items()
    if format_ in UNREADABLE:
        raise ValueError(f"{path} {UNREADABLE[format_]}")
    if format_ not in OF_FILES:
        raise ValueError(
            f"{path} is of no format that we know; there are {', '.join(OF_FILES)}, saved "
            "data sets of Hugging Face, zarr and N5: write it as one of them, or write a source of "
            "your own and its configuration"
        )
    return format_, names[format_]
