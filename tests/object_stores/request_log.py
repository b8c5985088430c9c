"""What a store was asked for, and how the requests waited for one another."""

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass
class Request:
    """One request: what it was for, and when it came and was answered."""

    kind: str  # "read", "size" or "list"
    bucket: str
    key: str
    begin: int  # of the bytes asked for
    end: int
    began_s: float
    ended_s: float = 0.0  # when the answer was sent, or given up
    sent: int = 0  # bytes of content
    status: int = 0
    fault: str = ""  # what was done to it on purpose


class RequestLog(list[Request]):
    """All requests, in the order in which they came."""

    def of(self, *kinds: str) -> "RequestLog":
        """Those that were for this."""
        return RequestLog(request for request in self if request.kind in kinds)

    @property
    def bytes(self) -> int:
        """What was sent of objects."""
        return sum(request.sent for request in self)

    @property
    def keys(self) -> list[str]:
        return [request.key for request in self]


def longest_chain(requests: Iterable[Request]) -> int:
    """How many requests at most came one after the other, each after the answer to the last."""
    count, free_s = 0, float("-inf")
    for request in sorted(requests, key=lambda request: request.ended_s):
        if request.began_s >= free_s:
            count, free_s = count + 1, request.ended_s
    return count
