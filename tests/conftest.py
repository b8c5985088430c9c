"""Eight CPU devices for every test, set before JAX is imported; and `--full`."""

import os

import pytest

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

pytest_plugins = ["tests.faults.table"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="repeat what is repeated to the full count"
    )
    parser.addoption("--attack-seed", default=None, help="of tests/attack; --full takes a new one")


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--full"))
