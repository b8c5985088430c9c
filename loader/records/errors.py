"""Errors that several rooms raise and catch."""


class RowError(ValueError):
    """One of the rows that a transform was given is wrong. The loader adds the record's name."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class SpecMismatch(ValueError):
    """A batch is not what its spec says, or a record is unlike the one it is stacked with.

    `row` is the number of that record among those that were stacked, if it is about one.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row
