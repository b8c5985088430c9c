"""Tests that measure time, on a machine that others use too."""

import functools
from collections.abc import Callable
from typing import Any

_ATTEMPTS = 5


def in_one_of_several_attempts(test: Callable[..., Any]) -> Callable[..., Any]:
    """The test must hold in one of a few attempts.

    What is planted shows whenever the machine is not taken away in mid-measurement; what is not
    there shows in none of them.
    """

    @functools.wraps(test)
    def attempts(*args: Any, **kwargs: Any) -> Any:
        for _ in range(_ATTEMPTS - 1):
            try:
                return test(*args, **kwargs)
            except AssertionError:
                continue
        return test(*args, **kwargs)

    return attempts
