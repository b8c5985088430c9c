"""Image files: in a folder for each class, or by themselves."""

from loader.command.init.files import Files, first_of_each, split_of
from loader.command.init.found import Found, made
from loader.command.init.places import Place


def images(files: Files, name: str) -> Found:
    """Images with the classes that their folders name; without labels, where there are none."""
    place = files.place
    if place.named is not None or any("/" not in each for each in files.names):
        return _without_labels(files)
    tops = sorted({each.partition("/")[0] for each in files.names})
    if all(map(split_of, tops)):
        return _of_parts(place, tops, files)
    table = {"kind": "ImageFolderSource", "folder": place.path("")}
    found = Found("images in a folder for each class", table)
    _name_classes(found)
    return found


def _without_labels(files: Files) -> Found:
    table = {"kind": "FilesSource", "paths": files.paths(), "leaf": "image", "text": False}
    return Found("image files", table)


def _of_parts(place: Place, tops: list[str], files: Files) -> Found:
    """A folder that has folders such as `train` and `test`, and each the classes."""
    splits = first_of_each(tops)
    train = splits.get("train") or tops[0]
    own = tuple(name for name in files.names if name.startswith(f"{train}/"))
    held = splits.get("validation") or splits.get("test")
    if any(name.count("/") < 2 for name in own):
        found = _without_labels(Files(place, own))
    else:
        table = {"kind": "ImageFolderSource", "folder": place.path(train)}
        found = Found("images in a folder for each class", table)
        classes = _name_classes(found)
        if held is not None and held != train:
            # The labels of the training images: a class may be missing here.
            found.held_out = {**table, "folder": place.path(held), "classes": classes}
    rest = [top for top in tops if top not in (train, found.held_out and held)]
    if rest:
        found.note("", f"not used: {', '.join(place.path(top) for top in rest)}")
    return found


def _name_classes(found: Found) -> list[str]:
    classes = list(made(found.source).classes)
    found.classes = len(classes)
    shown = ", ".join(f"{n} is {name}" for n, name in enumerate(classes[:6]))
    found.note("", f"labels: {shown}{', and so on' if len(classes) > 6 else ''}")
    return classes
