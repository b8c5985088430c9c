"""Opens an array through TensorStore: from a path, a URL or a spec, with errors that name it."""

import os
from typing import Any

import tensorstore as ts

from loader.records.errors import StorageError
from loader.sources.storage.redirect import redirect_tensorstore, s3_settings
from loader.sources.storage.stores import is_address, timeout_s

DRIVERS = {"zarr.json": "zarr3", ".zarray": "zarr", "attributes.json": "n5"}


def is_spec(node: Any) -> bool:
    """Whether this part of a tree is the TensorStore spec of an array."""
    return isinstance(node, dict) and "driver" in node


def absolute(given: Any) -> Any:
    """What was given, such that it means the same array in a process that runs elsewhere."""
    if is_spec(given):
        return given
    if not isinstance(given, str | os.PathLike):
        raise TypeError(
            f"an array is given as a path, a URL or a TensorStore spec with a 'driver', got "
            f"{type(given).__name__}: arrays in memory are a source as they are"
        )
    path = os.fspath(given)
    return path if "://" in path else os.path.abspath(path)


def open_store(given: Any, context: ts.Context | None) -> tuple[str, ts.TensorStore]:
    """The open array, its domain beginning at 0, and the name that messages give it."""
    redirect_tensorstore()
    name, spec = _spec(given, context)
    return name, opened(spec, name, context)


def opened(spec: Any, name: str, context: ts.Context | None) -> ts.TensorStore:
    """The open array of a TensorStore spec, its domain beginning at 0."""
    try:
        store = answered(ts.open(spec, read=True, open=True, context=context), name)
    except StorageError:
        raise
    except (ValueError, NotImplementedError) as error:
        kind = FileNotFoundError if str(error).startswith("NOT_FOUND") else ValueError
        if '"group"' in str(error):
            raise ValueError(
                f"{name} is a zarr group, not an array: name an array, a folder inside it"
            ) from error
        raise kind(
            f"cannot open {name} as a TensorStore array (its metadata is missing, damaged, or asks "
            f"for what this TensorStore lacks): {reason(error)}"
        ) from error
    if any(store.domain.origin):
        store = store[ts.d[:].translate_to[0]]
    return store


def reason(error: BaseException | None) -> str:
    """TensorStore's message, without the spec that it appends."""
    return str(error).split(" [tensorstore_spec=")[0].split(" [source locations=")[0]


def answered(future: Any, name: str) -> Any:
    """What TensorStore gives. A store that does not answer in time is given up, and named."""
    if not is_address(name):
        return future.result()
    try:
        return future.result(timeout=timeout_s())
    except TimeoutError:
        raise StorageError(
            f"{name} was not answered for within {timeout_s():g} s: look whether the store can be "
            "reached from here, and allow more time by GRISTMILL_STORAGE_TIMEOUT_S"
        ) from None


def _spec(given: Any, context: ts.Context | None) -> tuple[str, Any]:
    if is_spec(given):
        kvstore = given.get("kvstore", {})
        path = kvstore if isinstance(kvstore, str) else kvstore.get("path")
        given = {**given, "kvstore": _where(kvstore)} if kvstore else given
        return path or f"<{given['driver']}>", given
    if "|" in given and "://" in given:  # a TensorStore URL that names its driver
        return given, given
    if "://" in given:
        kvstore: Any = _where(given if given.endswith("/") else f"{given}/")
    elif not os.path.exists(given):
        raise FileNotFoundError(f"there is no array {given!r}: check the path")
    else:
        kvstore = {"driver": "file", "path": f"{given}/"}
    return given, {"driver": _driver(given, kvstore, context), "kvstore": kvstore}


def _where(kvstore: Any) -> Any:
    """The place, with what obstore's environment variables say of `s3://`."""
    if isinstance(kvstore, str) and kvstore.startswith("az://"):
        raise ValueError(
            f"{kvstore!r}: TensorStore itself reads gs://, s3://, http(s):// and local files: give "
            "the array by its address alone"
        )
    if isinstance(kvstore, str) and kvstore.startswith("s3://"):
        bucket, _, path = kvstore.removeprefix("s3://").partition("/")
        kvstore = {"driver": "s3", "bucket": bucket, "path": path}
    if isinstance(kvstore, dict) and kvstore.get("driver") == "s3":
        return {**s3_settings(), **kvstore}
    return kvstore


def _driver(name: str, kvstore: Any, context: ts.Context | None) -> str:
    try:
        files = answered(ts.KvStore.open(kvstore, context=context), name)
        for file, driver in DRIVERS.items():
            if answered(files.read(file), name).state == "value":
                return driver
    except StorageError:
        raise
    except ValueError as error:
        raise ValueError(f"cannot read {name}: {reason(error)}") from error
    raise no_array(name)


def no_array(name: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"there is no array in {name}: it holds none of {', '.join(DRIVERS)}. Name the folder of "
        "one array (of a zarr group, a folder inside it), or give a spec such as "
        "{'driver': 'zarr3', 'kvstore': ...}"
    )
