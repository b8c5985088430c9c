"""Files of records: ArrayRecord, TFRecord, tar files of WebDataset, Parquet."""

from typing import Any

import numpy as np

from loader.command.init.examples import with_parse
from loader.command.init.files import Files, keep_index
from loader.command.init.found import QUESTION, Found, Table, by_key
from loader.sources.arrow.forms import Form, forms_of
from loader.sources.parquet.footers import footers, metadata_of
from loader.sources.storage.paths import stored_files
from loader.sources.storage.stores import shown
from loader.sources.tar.members import find_members

_FOOTERS = 64  # that are looked at for nulls
_PICKLES = (".pkl", ".pickle", ".pyd", ".pth", ".pt")


def array_record(files: Files, name: str) -> Found:
    paths = files.paths()
    table: Table = {"kind": "ArrayRecordSource", "paths": paths}
    found = Found("ArrayRecord files", table)
    if files.far and not files.place.folder.startswith("gs://"):
        table["cache"] = {"kind": "DiskCache", "folder": f"{name}-cache", "most_bytes": "50GB"}
        found.note("cache", f"{QUESTION}how much of this disk may whole files take?")
    return with_parse(found)


def tfrecord(files: Files, name: str) -> Found:
    found = Found("TFRecord files", {"kind": "TFRecordSource", "paths": files.paths()})
    keep_index(found, files, name, "records are")
    return with_parse(found)


def tar(files: Files, name: str) -> Found:
    paths = files.paths()
    found = Found("tar files", {"kind": "TarSource", "paths": paths}, narrow=by_key("leaves"))
    keep_index(found, files, name, "members are")
    stored = stored_files(paths, "tar", absolute=True)
    members = find_members(stored, 0)
    counts = np.bincount(members.suffix, minlength=len(members.suffixes))
    in_all = [s for s, n in zip(members.suffixes, counts, strict=True) if n == len(members.keys)]
    taken = [suffix for suffix in in_all if not f".{suffix}".endswith(_PICKLES)]
    if not taken:
        raise ValueError(
            f"{shown(stored.paths[0])}: no member can be a leaf: there are "
            f"{', '.join(members.suffixes) or 'none'}, and a leaf must be in all records, and is "
            "not a pickle, which can run code"
        )
    if len(taken) < len(members.suffixes):
        found.source["leaves"] = taken
        out = [suffix for suffix in members.suffixes if suffix not in taken]
        found.note("leaves", f"left out, as pickles or not in all records: {', '.join(out)}")
    return found


def parquet(files: Files, name: str) -> Found:
    paths = files.paths()
    stored = stored_files(paths, "Parquet", absolute=True)
    known: Any = None
    empty: dict[str, int] = {}
    for file, footer in footers(stored):
        metadata = metadata_of(stored.paths[file], footer)
        known = known or metadata.schema.to_arrow_schema()
        count_nulls(metadata, empty)
        if file + 1 == _FOOTERS:
            break
    table: Table = {"kind": "ParquetSource", "paths": paths}
    found = Found("Parquet files", table, narrow=by_key("columns"))
    with_columns(found, known, empty)
    found.blocks = True
    return found


def count_nulls(metadata: Any, empty: dict[str, int]) -> None:
    """Add the nulls of each column, as far as the footer of a file says them."""
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for number in range(row_group.num_columns):
            column = row_group.column(number)
            name = column.path_in_schema.split(".list.")[0].replace(".", "/")
            if (said := column.statistics) is not None and said.has_null_count:
                empty[name] = empty.get(name, 0) + said.null_count


def fill_too(found: Found, held_out: Found) -> None:
    """What is put where there is nothing only in what is held out."""
    nulls = found.source.get("nulls", {})
    more = {n: v for n, v in held_out.source.get("nulls", {}).items() if n not in nulls}
    if more:
        found.source["nulls"] = {**nulls, **more}
        words = f"there is nothing (null) in {', '.join(more)} of what is held out"
        found.note("nulls", f"{QUESTION}{words}. What is put there instead?")


def with_columns(found: Found, schema: Any, empty: dict[str, int]) -> None:
    """Say which columns are taken, if not all, and what is put where there is nothing."""
    taken, out = {}, []
    for name in schema.names:
        try:
            taken |= forms_of(schema, [name], None)
        except ValueError:
            out.append(f"{name} ({schema.field(name).type})")
    if not taken:
        raise ValueError(
            f"no column can be a leaf: {'; '.join(out)}; convert them to numbers, texts (also "
            "JSON), or lists of one of them"
        )
    if out:
        found.source["columns"] = list(taken)
        found.note("columns", f"left out, because no leaf can hold them: {', '.join(out)}")
    nulls = {}
    for name, count in empty.items():
        form = taken.get(name)
        if count and isinstance(form, Form):
            nulls[name] = "" if form.dtype == object else False if form.dtype == bool else 0
    if nulls:
        found.source["nulls"] = nulls
        counts = ", ".join(f"{empty[name]:,} times in {name}" for name in nulls)
        found.note(
            "nulls", f"{QUESTION}there is nothing (null) {counts}. What is put there instead?"
        )
    every = found.narrow
    assert every is not None

    def narrow(table: Table, names: list[str]) -> Table:
        narrowed = every(table, names)
        kept = {n: fill for n, fill in table.get("nulls", {}).items() if n in names}
        rest = {key: value for key, value in narrowed.items() if key != "nulls"}
        return {**rest, "nulls": kept} if kept else rest

    found.narrow = narrow
