"""Errors that several rooms raise and catch."""


class RowError(ValueError):
    """What is wrong with one row of those a transform was given. The loader names the record."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row
