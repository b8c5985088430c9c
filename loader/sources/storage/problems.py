"""What went wrong with a store: whether it may pass, and a message that says what to do.

What obstore says of an error holds the address that was asked, headers and answers of the server.
A secret may be among them, so only what is known to be harmless is taken from it.
"""

import re

from loader.records.errors import StorageError
from loader.sources.storage.stores import shown, split

_CREDENTIALS = {
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or gcloud auth application-default login; for a public "
    "bucket GOOGLE_SKIP_SIGNATURE=true",
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_REGION; for a public bucket "
    "AWS_SKIP_SIGNATURE=true",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or another credential; for a "
    "public container AZURE_SKIP_SIGNATURE=true",
}
_PASSING = {408, 425, 429, *range(500, 600)} - {501, 505}
# Parts of obstore's messages, and what they mean.
_SIGNS = {
    "kind: Connect": "there is no connection",
    "kind: Timeout": "no answer came",
    "TimedOut": "no answer came",
    "kind: Interrupted": "the answer was cut off",
    "kind: Request": "the connection was broken off",
    "IncompleteMessage": "the connection was broken off",
    "kind: Decode": "the answer was damaged",
}
# What obstore asks where it looks for a credential. Of a store we only read, by GET and HEAD.
_FOR_CREDENTIALS = re.compile(r"token request|redential|performing (PUT|POST) |Missing(Bearer|Acc)")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "list request")


class Replaced(Exception):
    """The object is not the one that was listed."""


class OutOfDate(StorageError):
    """What was listed is not there any more, or not as it was."""


def may_pass(error: BaseException) -> bool:
    """Whether the same request may be answered the next time."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, Replaced | OSError | ValueError):
        return False
    status = _status(error)
    if status is not None:
        return status in _PASSING
    return type(error).__name__ in ("GenericError", "JoinError") and _sign(error) is not None


def problem(error: BaseException, path: str, seconds: float) -> BaseException:
    """The error to raise: what was wrong with this file, and what to do."""
    name, scheme = shown(path), path.partition("://")[0]
    kind, status = type(error).__name__, _status(error)
    credentials = _CREDENTIALS.get(scheme, "")
    if isinstance(error, StorageError | ImportError):
        return error
    if about_credentials(error):
        return StorageError(f"there are no credentials for {name}: give {credentials}")
    if isinstance(error, Replaced) or kind == "PreconditionError":
        return OutOfDate(
            f"{name} was replaced since the source was made: it has another version or size now; "
            "make the source again"
        )
    if may_pass(error):
        return StorageError(
            f"{name} was not answered for within {seconds:g} s ({words_of(error)}): look whether "
            "the store can be reached from here, and allow more time by "
            "GRISTMILL_STORAGE_TIMEOUT_S"
        )
    if status == 401 or kind == "UnauthenticatedError":
        return StorageError(f"the credentials for {name} were not accepted (401): {credentials}")
    if status == 403 or kind == "PermissionDeniedError":
        remedy = f"let them, or give others: {credentials}" if credentials else "ask its owner"
        return StorageError(f"{name} may not be read by whom the credentials are (403): {remedy}")
    if status == 404 or isinstance(error, FileNotFoundError):
        if any(sign in str(error) for sign in _NO_BUCKET):
            bucket = shown(split(path)[0])
            return StorageError(f"there is no bucket {bucket} (404), named by {name}: check it")
        return OutOfDate(
            f"there is no {name} (404): check the name, and of a folder name the files, "
            "FOLDER/*; if it was there, put it back"
        )
    return StorageError(f"{name} cannot be read: {words_of(error)}")


def about_credentials(error: BaseException) -> bool:
    """Whether no credential was found, or the service that gives them did not answer."""
    first = str(error).partition("\n")[0]
    return type(error).__name__ == "GenericError" and bool(
        _FOR_CREDENTIALS.search(re.sub(r"http\S*", "", first))
    )


def _status(error: BaseException) -> int | None:
    found = re.search(r"status code: (\d{3})", str(error).partition("\n")[0])
    return int(found[1]) if found else None


def _sign(error: BaseException) -> str | None:
    return next((words for sign, words in _SIGNS.items() if sign in str(error)), None)


def words_of(error: BaseException) -> str:
    """What the error says, as far as that is known to hold no secret."""
    if isinstance(error, ConnectionError | TimeoutError):
        return str(error) or "no answer came"
    status = _status(error)
    return f"it answered {status}" if status else _sign(error) or type(error).__name__
