"""What `pip wheel .` builds is what people install."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHIPPED = ["loader", "operators", "gristmill.py"]


def test_the_wheel_contains_all_rooms_and_nothing_else(tmp_path: Path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in [*SHIPPED, "pyproject.toml", "README.md", "LICENSE"]:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    # Without isolation: the backend is installed with the other packages for tests.
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "."]
    done = subprocess.run(
        [*command, "--wheel-dir", str(tmp_path)], cwd=tree, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("gristmill-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = [path for name in SHIPPED[:2] for path in (ROOT / name).rglob("*.py")]
    expected = {str(path.relative_to(ROOT)) for path in modules}
    assert names == expected | {"gristmill.py", "loader/py.typed", "operators/py.typed"}
