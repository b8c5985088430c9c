"""Tar files and arrays in them, written by the standard library and numpy."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def npy(array: np.ndarray) -> bytes:
    """An array in numpy's format."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def pack(path: Path, contents: Mapping[str, bytes]) -> Path:
    """A tar file with these members."""
    with tarfile.open(path, "w") as tar:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path
