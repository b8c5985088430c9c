"""Eight CPU devices for every test, set before JAX is imported; Ctrl-C that is heard; `--full`."""

import os
import signal

import pytest

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in what a shell runs in the background, and in all processes that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.faults.table"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="repeat what is repeated to the full count"
    )
    parser.addoption("--attack-seed", default=None, help="of tests/attack; --full takes a new one")


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--full"))
