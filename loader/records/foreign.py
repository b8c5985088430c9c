"""Values of other libraries as numpy arrays, without importing those libraries.

Whatever has `__array__` is an array: tensors of torch, series of pandas, columns of Arrow. An
*image* of Hugging Face is a dict of bytes and a path; here it is its bytes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

_OWN = (np.ndarray, np.generic, jax.Array)


def is_foreign(value: Any) -> bool:
    """Whether this is an array of another library."""
    return not isinstance(value, _OWN) and hasattr(value, "__array__")


def as_array(value: Any, where: Callable[[int], str], number: int = 0) -> Any:
    """The value as an array: numpy's and JAX's own as they are, texts as objects.

    `where(number)` is what an error calls the value.
    """
    if isinstance(value, str | bytes):  # np.str_ and np.bytes_ too
        return np.asarray(value, object)
    if not isinstance(value, _OWN):
        try:
            given, value = value, np.asarray(value)
        except Exception as error:  # one of the other library, of whatever class
            raise ValueError(
                f"{where(number)} is a {type(value).__name__}, which numpy cannot read ({error}): "
                "give it as numpy, for example tensor.detach().cpu().numpy()"
            ) from error
        if value.dtype.kind in "US" and _mixes_texts(given):
            raise ValueError(
                f"{where(number)} holds texts and numbers: give a list of one or the other"
            )
    # Texts of numpy have a length in their dtype: as objects all of them are alike.
    return value.astype(object) if getattr(value.dtype, "kind", None) in ("U", "S") else value


def _mixes_texts(value: Any) -> bool:
    """Whether a list holds something beside texts, which numpy would turn into texts."""
    listed = np.asarray(value, object) if isinstance(value, list | tuple) else np.empty(0)
    return not all(isinstance(one, str | bytes) for one in listed.flat)


def in_numpy(value: Any) -> Any:
    """The value, in numpy if it is an array of another library."""
    return as_array(value, lambda _: "an array of an operator") if is_foreign(value) else value


def is_image(value: Any) -> bool:
    """Whether this is an image, or a sound, as Hugging Face stores it."""
    return type(value) is dict and value.keys() == {"bytes", "path"}


def image_bytes(image: dict[str, Any], where: Callable[[int], str], number: int) -> bytes:
    """The bytes of an image, read from its path if they are not there."""
    if image["bytes"] is not None:
        return image["bytes"]
    if image["path"] is None:
        raise ValueError(f"{where(number)} has neither bytes nor a path: leave such records out")
    try:
        return Path(image["path"]).read_bytes()
    except OSError as error:
        raise ValueError(
            f"{where(number)} is the file {image['path']!r}, which cannot be read "
            f"({error.strerror}): give its bytes, or a path that is on this machine"
        ) from error
