"""A stand-in for the stores of all clouds, to which the environment sends whoever asks for one."""

import os
from collections.abc import Iterator

import pytest

from loader.sources.storage import listings
from tests.object_stores.fake_store import FakeStore

BUCKET = "bucket"
_CLOUDS = ("GOOGLE_", "AWS_", "AZURE_", "GCE_", "TENSORSTORE_GCS", "CLOUD_STORAGE_EMULATOR")
# Nobody listens there: services that give credentials to machines of clouds are not asked.
_NOWHERE = "127.0.0.1:9"


def no_clouds() -> dict[str, str]:
    """An environment in which no service of a cloud is asked for credentials."""
    return {
        "GCE_METADATA_HOST": _NOWHERE, "GCE_METADATA_IP": _NOWHERE, "GCE_METADATA_ROOT": _NOWHERE,
        "AWS_METADATA_ENDPOINT": f"http://{_NOWHERE}", "AWS_EC2_METADATA_DISABLED": "true",
        "AZURE_MSI_ENDPOINT": f"http://{_NOWHERE}",
    }  # fmt: skip


def environment(url: str) -> dict[str, str]:
    """The variables that send clients of GCS, S3 and Azure there, without credentials.

    Each thing is asked for once: no second request is sent where an answer takes its time.
    """
    return {
        **no_clouds(),
        "GOOGLE_BASE_URL": url, "GOOGLE_SKIP_SIGNATURE": "true", "GOOGLE_ALLOW_HTTP": "true",
        "AWS_ENDPOINT_URL": url, "AWS_SKIP_SIGNATURE": "true", "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AZURE_STORAGE_ENDPOINT": url, "AZURE_SKIP_SIGNATURE": "true", "AZURE_ALLOW_HTTP": "true",
        "AZURE_STORAGE_ACCOUNT_NAME": "somebody",
        "GRISTMILL_STORAGE_SECOND_AFTER_S": "3600",
    }  # fmt: skip


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeStore]:
    """A store with an empty bucket, `BUCKET`."""
    for name in [name for name in os.environ if name.startswith(_CLOUDS)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(listings, "_listings", {})
    with FakeStore() as server:
        server.buckets[BUCKET] = {}
        for name, value in environment(server.url).items():
            monkeypatch.setenv(name, value)
        yield server
