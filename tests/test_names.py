"""The names that people import, and what importing them costs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gristmill
import loader
import operators
from loader.command.main import main

LAZY = ["LoaderCheckpointHandler", "LoaderRestore", "LoaderSave", "TensorStoreSource"]


def test_both_names_of_the_package_give_the_same_objects():
    assert gristmill.__all__ == loader.__all__
    for name in loader.__all__:
        assert getattr(gristmill, name) is getattr(loader, name)
        assert name in dir(loader)
        assert name in dir(gristmill)
    assert not hasattr(gristmill, "__path__")


def test_operators_and_the_version_are_there_too():
    assert gristmill.operators is operators
    assert "operators" in dir(gristmill)
    exec("from gristmill import operators", names := {})
    assert names["operators"] is operators
    assert gristmill.__version__ == loader.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", loader.__version__)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with its modules first on the path."""
    path = os.pathsep.join([str(folder), str(Path(gristmill.__file__).parent)])
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", ["loader", "operators"])
@pytest.mark.parametrize("kind", ["file", "package"])
def test_another_package_of_that_name_is_named_with_the_remedy(
    name: str, kind: str, tmp_path: Path
):
    other = tmp_path / (f"{name}.py" if kind == "file" else f"{name}/__init__.py")
    other.parent.mkdir(exist_ok=True)
    other.write_text("raise SystemExit('it was run')")
    done = run(tmp_path, "-c", "import gristmill; gristmill.operators")
    assert "ImportError" in done.stderr
    message = done.stderr.splitlines()[-1]
    ours = Path(gristmill.__file__).parent
    assert f"needs its own package {name!r}, {ours}/{name}/__init__.py" in message
    assert f"Python finds {other}: rename that file or folder, or put {ours} before" in message
    done = run(tmp_path, "-c", "import gristmill; gristmill.main()")
    assert f"Python finds {other}: rename" in done.stderr


def test_the_command_says_its_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"gristmill {loader.__version__}\n"


@pytest.mark.parametrize("package", ["loader", "gristmill"])
def test_a_star_import_gives_every_name(package: str):
    names: dict[str, object] = {}
    exec(f"from {package} import *", names)
    assert set(loader.__all__) <= set(names)
    assert names["LoaderSave"] is loader.LoaderSave


def test_every_seed_class_and_type_name_is_there():
    assert {
        *("LoaderModule", "LoaderModuleConfig", "IterationCount", "CheckpointableIteratorModule"),
        *("StructuralModule", "StructuralConfig", "BatcherModule", "DefaultBatcher", "PadBatcher"),
        *("SharderModule", "SharderModuleConfig", "MeshSharder", "PartitionAxis"),
        *("PartitionManager", "AxisName", "LogicalAxisSpec", "ShardingRules", *LAZY),
    } <= set(loader.__all__)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from operators import Pad", "Pad is now PadTokens"),
        ("from operators import Crop", "Crop is now CropTokens"),
        ("from loader import PackBatcher", "use Packed"),
        ("from gristmill import PackBatcher", "use Packed"),
        ("from loader import Shufle", "cannot import name 'Shufle'"),
    ],
)
def test_an_old_name_gives_the_new_one(line: str, message: str):
    with pytest.raises(ImportError, match=message):
        exec(line)


@pytest.mark.parametrize("package", [loader, operators, gristmill])
def test_a_name_that_never_was_is_an_attribute_error(package: object):
    assert not hasattr(package, "nothing_of_the_kind")


def test_heavy_packages_are_imported_by_the_names_that_need_them():
    script = (
        "import sys, flax.nnx, grain\n"
        "for name in list(sys.modules):\n"  # flax and Grain have imported them: as if they had not
        "    if name.split('.')[0] in ('orbax', 'tensorstore'): del sys.modules[name]\n"
        "import loader, gristmill\n"
        "heavy = ('orbax.checkpoint', 'tensorstore', 'cv2', 'scipy', 'loader.state.orbax')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
