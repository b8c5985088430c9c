"""The names that people import, and what importing them costs."""

import subprocess
import sys

import pytest

import gristmill
import loader
import operators

LAZY = ["LoaderCheckpointHandler", "LoaderRestore", "LoaderSave", "TensorStoreSource"]


def test_both_names_of_the_package_give_the_same_objects():
    assert gristmill.__all__ == loader.__all__
    for name in loader.__all__:
        assert getattr(gristmill, name) is getattr(loader, name)
        assert name in dir(loader)
        assert name in dir(gristmill)
    assert not hasattr(gristmill, "__path__")


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
