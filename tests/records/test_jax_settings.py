"""What JAX and flax keep private may go with any release: the loader goes on the plain way."""

import json
import re
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from loader import DataLoader, Shuffle
from loader.modules.module import IterationCount, Mirror
from loader.partition.mesh import get_incontext_mesh
from loader.records import jax_settings
from loader.records.digest import content_key
from tests.data import unlike_records
from tests.test_layers import ROOT

RUN = """
import json, jax
from loader import DataLoader, Shuffle
from loader.records.digest import content_key
from tests.data import unlike_records
mesh = jax.make_mesh((jax.device_count(),), ("data",))
loader = DataLoader(unlike_records(23), batch_size=8, order=Shuffle(3), epochs=2, mesh=mesh)
keys = [content_key(batch) for batch in loader]
counted = [loader.get_operation_stats(), loader.batcher.get_operation_stats()]
variables = [v.get_value() for v in (loader.epoch, loader.position, loader.idx, loader.current)]
print(json.dumps([keys, counted, variables]))
"""

TAKEN_AWAY = {
    "nothing": "",
    "jax._src": "sys.modules['jax._src.mesh'] = sys.modules['jax._src.distributed'] = None",
    "batched_device_put": "sys.modules['jaxlib.xla_client'] = None",
    "TraceAnnotation.is_enabled": (
        "class Plain(jax.profiler.TraceAnnotation): is_enabled = None\n"
        "jax.profiler.TraceAnnotation = Plain"
    ),
    "_raw_value": (
        "import loader.records.jax_settings as settings; settings._slot_is_known = lambda: False"
    ),
}


@pytest.mark.parametrize("taken", TAKEN_AWAY)
def test_batches_and_counters_are_the_same_without_what_is_private(taken: str):
    script = f"import sys, jax, flax.nnx, grain\n{TAKEN_AWAY[taken]}\n{RUN}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    keys, counted, variables = json.loads(done.stdout)
    loader = DataLoader(unlike_records(23), batch_size=8, order=Shuffle(3), epochs=2)
    assert keys == [content_key(batch) for batch in loader]
    assert counted == [{"applied_count": 46, "skipped_count": 2}] * 2
    assert variables == [1, 46, 5, [39, 45]]


# One by one


class OtherVariable:
    """A variable of a flax that keeps values elsewhere."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get_value(self) -> Any:
        return self._value


class OtherFlax:
    Variable = OtherVariable


def test_a_flax_that_keeps_values_elsewhere_is_noticed(monkeypatch: pytest.MonkeyPatch):
    assert jax_settings._slot_is_known.__wrapped__()
    monkeypatch.setattr(jax_settings, "nnx", OtherFlax)
    assert not jax_settings._slot_is_known.__wrapped__()


@pytest.mark.parametrize("public", ["set_raw_value", "set_value"])
def test_variables_are_written_by_what_flax_has(public: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax_settings, "_slot_is_known", lambda: False)
    count, mirror = IterationCount(np.zeros((), np.int64)), Mirror(None)
    if public == "set_value":
        for name in ("set_raw_value", "get_raw_value"):
            monkeypatch.delattr(nnx.Variable, name)
    for _ in range(3):
        count.add(2**40)
    assert count.get_value() == 3 * 2**40
    assert count.get_value().dtype == np.int64
    for value in (5, (3, 4), None):
        mirror.set_value(value)
        assert mirror.get_value() == value


@pytest.mark.filterwarnings("ignore:.with mesh:DeprecationWarning")
def test_without_the_mesh_of_the_with_statement_the_one_that_is_set_is_found(
    monkeypatch: pytest.MonkeyPatch,
):
    mesh = jax.make_mesh((8,), ("data",))
    with mesh:
        assert get_incontext_mesh() == mesh
    monkeypatch.setitem(sys.modules, "jax._src.mesh", None)
    with jax.set_mesh(mesh):
        assert get_incontext_mesh() == mesh
    with mesh, pytest.raises(AssertionError, match=r"enter `with jax\.set_mesh\(mesh\):`"):
        get_incontext_mesh()
    assert get_incontext_mesh(raise_error=False).empty


def test_a_function_of_jaxlib_that_is_gone_is_none(monkeypatch: pytest.MonkeyPatch):
    assert callable(jax_settings.batched_device_put.__wrapped__())
    monkeypatch.setitem(sys.modules, "jaxlib.xla_client", None)
    assert jax_settings.batched_device_put.__wrapped__() is None


class Annotation:
    """An annotation that does not say whether a trace is being taken."""

    def __init__(self, name: str) -> None:
        self.name = name


def test_without_a_way_to_ask_every_stage_is_annotated(monkeypatch: pytest.MonkeyPatch):
    with jax_settings.traced("read"):
        pass
    monkeypatch.setattr(jax_settings, "_is_tracing", jax_settings._is_tracing.__wrapped__)
    monkeypatch.setattr(jax.profiler, "TraceAnnotation", Annotation)
    assert jax_settings.traced("read").name == "gristmill/read"  # pyright: ignore[reportAttributeAccessIssue]


def test_nothing_private_is_used_elsewhere():
    private = re.compile(r"jax\._src|(?<![a-z])_raw_value")
    for path in [*ROOT.glob("loader/**/*.py"), *ROOT.glob("operators/**/*.py")]:
        assert path.name == "jax_settings.py" or not private.search(path.read_text()), path
