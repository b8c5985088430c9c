"""Errors that several rooms raise and catch, and whose fault an error is."""

import errno
from typing import Any

_OPERATOR = "_gristmill_operator"


class RowError(ValueError):
    """One of the rows that a transform was given is wrong. The loader adds the record's name."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row

    def at(self, row: int) -> "RowError":
        """The same error, of a row that has another number further up."""
        moved = RowError(row, str(self))
        mark_operator(moved, operator_of(self))
        return moved


class SpecMismatch(ValueError):
    """A batch is not what its spec says, or a record is unlike the one it is stacked with.

    `row` is the number of that record among those that were stacked, if it is about one.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class StorageError(ValueError):
    """What holds the records has failed, or is not what it was: no record is to blame.

    With an `errno` it may go well the next time.
    """

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.errno)


def mark_operator(error: BaseException, operator: str | None) -> None:
    """Note that an operator has raised this, if one has: whatever it is, it is about a record."""
    if operator is not None:
        error.__dict__.setdefault(_OPERATOR, operator)


def operator_of(error: BaseException) -> str | None:
    """The operator that has raised this, if one has."""
    return error.__dict__.get(_OPERATOR)


def is_of_storage(error: BaseException) -> bool:
    """Whether the machine is to blame, not a record: an error of the system or a timeout, raised by
    a read, or too little memory, wherever."""
    if isinstance(error, MemoryError):
        return True
    if operator_of(error) is not None:
        return False
    return isinstance(error, StorageError) or errno_of(error) is not None


def may_pass(error: BaseException) -> bool:
    """Whether the storage is to blame, and may have recovered when it is asked again."""
    return is_of_storage(error) and errno_of(error) is not None


def errno_of(error: BaseException) -> int | None:
    """The number of the system's error; timeouts have one, whatever has raised them."""
    if isinstance(error, TimeoutError) and error.errno is None:
        return errno.ETIMEDOUT
    return error.errno if isinstance(error, OSError | StorageError) else None
