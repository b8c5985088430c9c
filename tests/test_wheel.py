"""What `pip wheel .` builds is what people install."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHIPPED = ["loader", "operators", "gristmill.py"]


def build(tmp_path: Path) -> Path:
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
    return wheel


def test_the_wheel_contains_all_rooms_and_works_under_both_names(tmp_path: Path):
    wheel = build(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        archive.extractall(tmp_path / "installed")
    modules = [path for name in SHIPPED[:2] for path in (ROOT / name).rglob("*.py")]
    expected = {str(path.relative_to(ROOT)) for path in modules}
    assert names == expected | {"gristmill.py", "loader/py.typed", "operators/py.typed"}
    script = (
        "import gristmill, loader\n"
        "assert gristmill.DataLoader is loader.DataLoader and gristmill.operators.Cast\n"
        "print(gristmill.__version__, gristmill.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
    )
    version, file = done.stdout.split() or [done.stderr, ""]
    assert wheel.name.startswith(f"gristmill-{version}-")
    assert file == str(tmp_path / "installed/gristmill.py")
