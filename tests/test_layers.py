"""The architecture: a room imports from itself and the rooms above it, from nothing below."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = [
    "loader/records",
    "loader/modules",
    "loader/order",
    "loader/transforms",
    "loader/sources",
    "loader/batchers",
    "loader/partition",
    "loader/sharding",
    "loader/state",
    "loader/runtime",
    "loader/data_loader.py",
    "loader/testing.py",
    "operators",
    "loader/command",
    "loader/__init__.py",
    "loader/__main__.py",
]


def room_of(path: Path) -> int:
    places = [path.relative_to(ROOT), *path.relative_to(ROOT).parents]
    found = [ROOMS.index(str(place)) for place in places if str(place) in ROOMS]
    assert found, f"{path} is in none of the rooms of {__file__}"
    return found[0]


def file_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path if path.is_dir() else path.with_suffix(".py")


def imports_of(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return [name for name in names if name.split(".")[0] in ("loader", "operators")]


def test_a_room_imports_only_from_itself_and_from_the_rooms_above_it():
    for path in [*ROOT.glob("loader/**/*.py"), *ROOT.glob("operators/**/*.py")]:
        for name in imports_of(path):
            assert name != "loader", f"{path} imports the whole package"
            assert room_of(file_of(name)) <= room_of(path), f"{path} imports {name}, a room below"


def test_every_room_says_what_is_in_it_and_what_it_may_import():
    for room in ROOMS:
        if (ROOT / room).is_dir():
            docstring = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text()))
            assert docstring, f"{room}/__init__.py has no docstring"
            assert "import" in docstring, f"{room}/__init__.py does not say what it may import"
