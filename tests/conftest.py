"""Eight CPU devices for every test, set before JAX is imported; Ctrl-C that is heard; `--full`.

What XLA compiles is kept in a folder for as long as the tests run: most tests compile what another
test has compiled, in this process or in another one.
"""

import atexit
import gc
import os
import shutil
import signal
import tempfile

import pytest

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # which pytest's own worker processes are given
    _compiled = tempfile.mkdtemp(prefix="compiled-")
    atexit.register(shutil.rmtree, _compiled, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled
    # Smaller things are compiled about as fast as they are read.
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.05"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in what a shell runs in the background, and in all processes that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.faults.table", "tests.object_stores.fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="repeat what is repeated to the full count"
    )
    parser.addoption("--attack-seed", default=None, help="of tests/attack; --full takes a new one")


def pytest_collection_finish() -> None:
    # The imported modules are hundreds of thousands of objects. Many tests collect what they have
    # left, and would go through all of them each time.
    gc.collect()
    gc.freeze()


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--full"))
