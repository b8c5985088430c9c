"""Object stores, by the addresses of what is in them.

An address is `gs://bucket/key`, `s3://bucket/key`, `az://container/key`, `http(s)://host/key` or
`memory://key`. What is before the key is the *root*: there is one store a root and process.
Credentials are found in obstore's own ways: in environment variables, in the files that the tools
of the clouds write, or from the machine. Nothing here keeps or shows one.
"""

import os
import urllib.parse
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from loader.records.errors import StorageError
from loader.records.optional import optional

SCHEMES = ("gs", "s3", "az", "http", "https", "memory")
_FILE = "file://"  # the root of what is on this machine
_SCHEME_END = "://"
_TIMEOUT = "GRISTMILL_STORAGE_TIMEOUT_S"
_SECOND_AFTER = "GRISTMILL_STORAGE_SECOND_AFTER_S"
_DEFAULTS_S = {_TIMEOUT: 60.0, _SECOND_AFTER: 1.0}

_OF_CLOUDS = {"gs": "GOOGLE_", "s3": "AWS_", "az": "AZURE_"}  # what obstore's variables begin with
# What they say of connections is not looked at by obstore where anything is given here.
_OF_CONNECTIONS = (
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only"),
    *("pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate"),
    *("proxy_excludes", "randomize_addresses", "read_timeout", "timeout", "user_agent"),
)

_stores: dict[tuple[str, float, int], Any] = {}
_memory: dict[str, Any] = {}
_used_by: dict[str, int] = {}  # the process that has used obstore


def is_address(path: str) -> bool:
    """Whether the path is that of an object in a store."""
    return _SCHEME_END in path and not path.startswith(_FILE)


def split(path: str) -> tuple[str, str]:
    """The root and the key of an address; a plain path is a file of this machine, absolute."""
    if not is_address(path):
        return _FILE, os.path.abspath(path)[1:]
    scheme, _, rest = path.partition(_SCHEME_END)
    if scheme == "memory":
        return "memory://", rest.lstrip("/")
    bucket, _, key = rest.partition("/")
    return f"{scheme}{_SCHEME_END}{bucket}", key


def address_of(root: str, key: str) -> str:
    """The address of an object: what `split` has split."""
    return f"{root}{key}" if root.endswith("/") else f"{root}/{key}"


def shown(path: str) -> str:
    """The path as messages show it: without what may be a secret, which is before @ or after ?."""
    if not is_address(path):
        return path
    scheme, _, rest = path.partition(_SCHEME_END)
    host, slash, key = rest.partition("?")[0].partition("/")
    return f"{scheme}{_SCHEME_END}{host.rpartition('@')[2]}{slash}{key}"


def checked_address(path: str) -> str:
    """The address, if it is one of a store that we know; else `ValueError`."""
    scheme, _, rest = path.partition(_SCHEME_END)
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ValueError(
            f"{shown(path)!r} is of a kind that is not known: give a plain path, file://, {known}"
        )
    if scheme.startswith("http") and (set(rest) & set("?#") or "@" in rest.partition("/")[0]):
        raise ValueError(
            f"{shown(path)!r} was given with a user name or with a query, and such addresses may "
            "hold a secret: use the address of the store (gs://, s3://, az://) with credentials in "
            "the environment"
        )
    if scheme != "memory" and not rest.partition("/")[0]:
        raise ValueError(f"{path!r} names no bucket: give {scheme}://BUCKET/KEY")
    return path


def timeout_s() -> float:
    """After how many seconds a request is given up, all its attempts together."""
    return _seconds(_TIMEOUT)


def second_after_s() -> float:
    """For how many seconds a request is waited for at least before a second one is sent."""
    return _seconds(_SECOND_AFTER)


def _seconds(name: str) -> float:
    given = os.environ.get(name, "")
    try:
        seconds = float(given) if given else _DEFAULTS_S[name]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{name} must be a number of seconds above 0, got {given!r}")
    return seconds


def store_of(root: str) -> Any:
    """The obstore store of this root, made when it is first asked for."""
    optional("obstore", "what is not a plain path without a cache", "cloud")
    from obstore import store as obstore

    if _used_by.setdefault("pid", os.getpid()) != os.getpid():
        raise StorageError(
            "this process is a fork of one that has read from a store, and what reads there does "
            "not outlive a fork: start processes with the method 'spawn' or 'forkserver'"
        )
    if root == "memory://":
        return _memory.get(root) or _memory.setdefault(root, obstore.MemoryStore())
    key = (root, timeout_s(), environment())
    return _stores.get(key) or _stores.setdefault(key, _opened(obstore, *key[:2]))


def environment() -> int:
    """What tells settings of the environment for stores from other ones."""
    begun = tuple(_OF_CLOUDS.values())
    return hash(frozenset(pair for pair in os.environ.items() if pair[0].startswith(begun)))


def _opened(obstore: Any, root: str, seconds: float) -> Any:
    if root == _FILE:
        return obstore.LocalStore()
    # How often and how long to try is decided in requests.py. Here only a silence is ended: a
    # third of the time leaves room for two more attempts.
    silence = timedelta(seconds=seconds / 3)
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=seconds),
        "read_timeout": silence,
        "connect_timeout": silence,
    }
    scheme = root.partition(_SCHEME_END)[0]
    if scheme in _OF_CLOUDS:
        names = {f"{_OF_CLOUDS[scheme]}{name.upper()}": name for name in _OF_CONNECTIONS}
        client |= {names[n]: value for n, value in os.environ.items() if n in names}
    elif scheme == "http":
        client["allow_http"] = True
    retries: Mapping[str, Any] = {"max_retries": 0}
    try:
        return obstore.from_url(
            urllib.parse.quote(root, safe=":/[]"), client_options=client, retry_config=retries
        )
    except Exception as error:
        raise StorageError(
            f"cannot open {shown(root)}: {type(error).__name__}; look at the environment variables "
            "of the store (GOOGLE_..., AWS_..., AZURE_...)"
        ) from None
