"""Image files in a folder for each class."""

import os
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from loader.records.integers import Int64s
from loader.records.spec import Spec
from loader.sources.files import FilesSource
from loader.sources.reading import sampled_fingerprint
from loader.sources.storage.listings import objects_below
from loader.sources.storage.paths import Path, files_of, here
from loader.sources.storage.requests import Found
from loader.sources.storage.stores import address_of, checked_address, is_address, split

# Those that DecodeImage reads, also written in capitals.
SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"),
)


class ImageFolderSource(FilesSource):
    """Every image below a folder, with the class that its folder names.

    A record is `{"image": the bytes of the file, "label": int32}`, such as `DecodeImage` takes.
    `folder` has a folder for each class. `classes` are their names, sorted, and the label is the
    place of the name in them. Images may be in further folders below that of their class. They come
    class by class, sorted by their paths. What begins with a dot is skipped, and so are files that
    have no suffix of an image. `labels` has the label of each record. No file is read before its
    record is asked for.

    A class without an image is refused, because with its folder the labels of all classes after it
    might go. `classes` says which there are, and then a class may be empty: give it for a part of
    the data that must have the labels of another part, as `classes=train.classes`.

    `cache` keeps the images that were read on local disk.
    """

    owned_rows = True
    thread_safe = True

    def __init__(
        self, folder: Path, *, classes: Sequence[str] | None = None, cache: Any = None
    ) -> None:
        if is_address(os.fspath(folder)):
            self.folder = checked_address(os.fspath(folder)).rstrip("/")
            found = _classes_in_store(self.folder, cache)
        else:
            self.folder = _checked_folder(os.fspath(folder).removeprefix("file://"))
            found = {
                name: _images(os.path.join(self.folder, name))
                for name in _class_folders(self.folder)
            }
        if classes is not None and (others := sorted(set(found) - set(classes))):
            raise ValueError(
                f"the folders {others} of {self.folder!r} are not in classes={list(classes)}: name "
                "them there, or move them away"
            )
        self.classes = tuple(found if classes is None else classes)
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(f"classes={list(self.classes)} has a name twice: each is one label")
        images = [found.get(name, []) for name in self.classes]
        counts = [len(paths) for paths in images]
        if classes is None and 0 in counts:
            raise ValueError(
                f"class {self.classes[counts.index(0)]!r} has no image in {self.folder!r} (a file "
                f"with one of {', '.join(SUFFIXES)}): put some there, delete the folder, or give "
                "classes=[...] with all names, so that a class may be empty"
            )
        if not any(counts):
            raise ValueError(f"the source is empty: no image of {list(self.classes)} in {folder!r}")
        self._files = files_of([file for files in images for file in files], cache=cache)
        self.labels = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        self.labels.setflags(write=False)
        self._leaf, self._text = "image", False

    def gather(self, indices: Int64s) -> dict[str, np.ndarray]:
        return {**super().gather(indices), "label": self.labels[indices]}

    def record_spec(self) -> Spec:
        return {**super().record_spec(), "label": jax.ShapeDtypeStruct((), np.dtype(np.int32))}

    def fingerprint(self) -> dict[str, Any]:
        # Below the folder: the same files elsewhere are the same data.
        begin = len(os.path.join(self.folder, ""))
        names = [path[begin:].replace(os.sep, "/") for path in self.paths]
        sizes = self._files.sizes_now().tolist()
        files = [list(pair) for pair in zip(names, sizes, strict=True)]
        return {"files": files, "classes": list(self.classes), **sampled_fingerprint(self)}

    def __repr__(self) -> str:
        return f"ImageFolderSource({len(self)} images of {len(self.classes)} classes)"


def _checked_folder(folder: str) -> str:
    if not os.path.isdir(folder):
        what = "is a file" if os.path.exists(folder) else "is not there"
        raise ValueError(f"{folder!r} {what}: name a folder that has a folder for each class")
    return os.path.abspath(folder)


def _class_folders(folder: str) -> list[str]:
    """The names of the folders in it, sorted."""
    entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    names = sorted(entry.name for entry in entries if entry.is_dir())
    loose = sorted(e.name for e in entries if e.is_file() and _is_image(e.name))
    if not names:
        raise _no_classes(folder)
    _warn_of_loose(loose, folder)
    return names


def _no_classes(folder: str) -> ValueError:
    return ValueError(
        f"there is no folder in {folder!r}, and each class needs one: for images without labels "
        "use FilesSource(paths, leaf='image', text=False)"
    )


def _warn_of_loose(names: list[str], folder: str) -> None:
    if names:
        warnings.warn(
            f"{len(names)} images are in {folder!r} itself, {names[0]!r} first, and are left out: "
            "move each into the folder of its class",
            stacklevel=4,
        )


def _classes_in_store(folder: str, cache: Any) -> dict[str, list[Found]]:
    """The images of each class in a folder of a store, as one listing shows them."""
    root, key = split(folder)
    if root.startswith("http"):
        raise ValueError(
            f"{folder!r} is a folder, and nothing says what there is in one at an address of http: "
            "give that of the bucket (gs://, s3://, az://)"
        )
    begin = len(key) + 1 if key else 0
    classes: dict[str, list[Found]] = {}
    loose = []
    for found in objects_below(root, key, cache):
        *folders, name = found.path[begin:].split("/")
        if any(part.startswith(".") for part in folders):
            continue
        if not folders:
            loose += [name] if _is_image(name) else []
            continue
        images = classes.setdefault(folders[0], [])
        if _is_image(name):
            images.append(found._replace(path=address_of(root, found.path)))
    if not classes:
        raise _no_classes(folder)
    _warn_of_loose(loose, folder)
    return dict(sorted(classes.items()))


def _images(folder: str) -> list[Found]:
    """The images below a folder, sorted. A folder that cannot be read, or that comes again
    through a link, is refused: images would be missing, or come twice."""

    def refuse(error: OSError) -> None:
        raise error

    found, seen = [], dict[str, str]()
    for parent, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        if (first := seen.setdefault(os.path.realpath(parent), parent)) != parent:
            raise ValueError(
                f"{parent!r} is the folder {first!r} again, through a link: its images would come "
                "twice; remove the link"
            )
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(parent, name) for name in files if _is_image(name)]
    return [here(path) for path in sorted(found)]


def _is_image(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith(SUFFIXES)
