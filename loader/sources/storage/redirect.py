"""What obstore's environment variables say, told to the others that read from stores.

array_record and TensorStore have variables of their own. Those that are set already are left as
they are.
"""

import os
from typing import Any

from loader.sources.storage.stores import timeout_s

_GCS = "https://storage.googleapis.com"
_SILENCE_S = 5  # and no more than a third of the time there is, which leaves two more attempts


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on")


def redirect_array_record() -> None:
    """Send array_record where obstore goes for `gs://`. To skip signatures needs an address."""
    address = os.environ.get("GOOGLE_BASE_URL", "")
    if address or _is_on("GOOGLE_SKIP_SIGNATURE"):
        _follow("CLOUD_STORAGE_EMULATOR_ENDPOINT", address or _GCS)


def redirect_tensorstore() -> None:
    """Send TensorStore where obstore goes for `gs://`, and let it give up what gets no answer.

    It asks again itself then. Without this, one request without an answer holds up all later ones
    for the same bytes.
    """
    silence_s = max(1, min(_SILENCE_S, int(timeout_s() / 3)))
    _follow("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", str(silence_s))
    _follow("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
    if address := os.environ.get("GOOGLE_BASE_URL", ""):
        _follow("TENSORSTORE_GCS_HTTP_URL", address)


_followed: dict[str, str] = {}  # what was set here


def _follow(name: str, value: str) -> None:
    if os.environ.get(name, "") in ("", _followed.get(name)):
        os.environ[name] = _followed[name] = value


def s3_settings() -> dict[str, Any]:
    """What TensorStore's driver for `s3://` is to be given."""
    settings: dict[str, Any] = {}
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    if address := next((os.environ[name] for name in names if os.environ.get(name)), ""):
        settings["endpoint"] = address
        settings["aws_region"] = os.environ.get("AWS_REGION") or "us-east-1"
    elif region := os.environ.get("AWS_REGION"):
        settings["aws_region"] = region
    if _is_on("AWS_SKIP_SIGNATURE"):
        settings["aws_credentials"] = {"type": "anonymous"}
    return settings
