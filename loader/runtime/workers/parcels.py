"""Work as bytes, for workers elsewhere.

The source travels once, whatever becomes of the rest: a loader that moves has another plan and the
same source. So work is pickled with its source left out. Functions and classes of `__main__`
travel by value, large arrays as memory of their own, and memory-mapped files by name.
"""

import functools
import io
import mmap
import pickle
import types
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np

from loader.records.jax_settings import deciding_settings, under
from loader.records.work import Work

_SOURCE = "source"
_DEEPEST = 12  # levels that the search for what cannot be pickled goes down


class _Pickler(cloudpickle.Pickler):
    """Pickles memory-mapped arrays as file, offset and shape."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray) and (described := _described(obj)) is not None:
            return _mapped, described
        return super().reducer_override(obj)


class _WithoutSource(_Pickler):
    source: Any = None

    def persistent_id(self, obj: Any) -> str | None:
        return _SOURCE if obj is self.source else None


class _WithSource(pickle.Unpickler):
    source: Any = None

    def persistent_load(self, pid: str) -> Any:
        return self.source


def packed_source(source: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """The source as bytes, and the memory of its arrays, which is not copied."""
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(source)
    return file.getvalue(), buffers


def packed_whole(source: Any) -> bytes:
    """The source as bytes, with the memory of its arrays."""
    file = _begun()
    _Pickler(file, protocol=5).dump(source)
    return file.getvalue()


def unpacked(data: bytes) -> Any:
    file = io.BytesIO(data)
    with under(pickle.load(file)):
        return pickle.load(file)


def packed_view(work: Work) -> bytes:
    """All of the work but its source, as bytes."""
    file = _begun()
    pickler = _WithoutSource(file, protocol=5)
    pickler.source = work.source
    pickler.dump(work)
    return file.getvalue()


def unpacked_view(data: bytes, source: Any) -> Callable[[int], Any]:
    """What makes the steps of work that has this as its source."""
    file = io.BytesIO(data)
    settings = pickle.load(file)
    unpickler = _WithSource(file)
    unpickler.source = source
    with under(settings):
        return functools.partial(_made, settings, unpickler.load())


def _begun() -> io.BytesIO:
    """A file that begins with the settings of JAX of here, under which its rest is read."""
    file = io.BytesIO()
    pickle.dump(deciding_settings(), file)
    return file


def _made(settings: dict[str, Any], work: Work, step: int) -> Any:
    with under(settings):
        return work.make(step)


def refuse_what_cannot_travel(work: Work) -> None:
    """`TypeError` with the path to what cannot be pickled, if there is something."""
    for name, part in work.parts():
        if (error := _error(part)) is not None:
            path, error = _deepest(name, part, error, _DEEPEST)
            raise TypeError(
                f"{path} cannot be sent to a worker: {error}. Workers get it by pickle "
                "(cloudpickle): open files, locks and connections where they are first used, or "
                "leave them out in __getstate__; workers=Threads(n) needs none of this"
            ) from error


def _error(part: Any) -> Exception | None:
    try:
        _Pickler(io.BytesIO(), protocol=5, buffer_callback=lambda _: None).dump(part)
    except Exception as error:  # whatever it is, it is reported
        return error
    return None


def _deepest(name: str, part: Any, error: Exception, levels: int) -> tuple[str, Exception]:
    """The path to the innermost part that cannot be pickled, and its error."""
    for end, inner in _inner(part) if levels else ():
        if (its := _error(inner)) is not None:
            return _deepest(name + end, inner, its, levels - 1)
    return name, error


def _inner(part: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(part, dict):
        yield from ((f"[{key!r}]", value) for key, value in part.items())
    elif isinstance(part, list | tuple):
        yield from ((f"[{place}]", value) for place, value in enumerate(part))
    elif isinstance(part, functools.partial):
        yield from ((".func", part.func), (".args", part.args), (".keywords", part.keywords))
    elif isinstance(part, types.MethodType):
        yield ".__self__", part.__self__
    elif isinstance(part, types.FunctionType):
        names = part.__code__.co_freevars
        for name, cell in zip(names, part.__closure__ or (), strict=True):
            yield f" (its variable {name})", cell.cell_contents
        for name in part.__code__.co_names:
            if name in part.__globals__:
                yield f" (the global {name})", part.__globals__[name]
    else:
        yield from ((f".{name}", value) for name, value in getattr(part, "__dict__", {}).items())


def _described(array: np.ndarray) -> tuple[Any, ...] | None:
    """File, where in it, and layout of a memory-mapped array, or of a part of one."""
    file: Any = array
    while isinstance(file, np.ndarray) and not isinstance(file, np.memmap):
        file = file.base
    mapping = getattr(file, "_mmap", None)
    if not isinstance(file, np.memmap) or mapping is None or file.filename is None:
        return None  # in memory, perhaps a result of arithmetic
    if file.mode == "c" or not array.size or min(array.strides, default=0) < 0:
        return None  # what was written under "c" is not in the file
    first = np.frombuffer(mapping, np.uint8, 1).__array_interface__["data"][0]
    into = array.__array_interface__["data"][0] - first
    # numpy maps from a multiple of this on, and `offset` is that of the whole array.
    begins = file.offset - file.offset % mmap.ALLOCATIONGRANULARITY
    return str(file.filename), begins + into, array.dtype, array.shape, array.strides


def _mapped(
    file: str, offset: int, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]
) -> np.ndarray:
    size = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + dtype.itemsize
    memory = np.memmap(file, np.uint8, "r", offset, (size,))
    return np.ndarray(shape, dtype, memory, 0, strides)
