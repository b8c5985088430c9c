"""What is fetched next, and what goes for it: from plans alone, without a thread or a file.

A *stream* is what one loader will read, step by step. The steps of a stream are arranged in their
order: a piece that is not in the cache is given out to be fetched. Where there is no room for it,
that piece goes which is needed furthest ahead, as seen from the step that is being arranged, which
is Belady's rule: for pieces of one size no other way fetches less. It may be one that an arranged
step has yet to read. Then the fetch waits for that, however long: any other choice would be read
again sooner. Of pieces for which no need is known, that goes which was used first.

Of several streams, the one whose next need is the nearest comes first, in steps from where it
reads. A piece is needed as soon as any of them needs it. If nothing else is left, one goes that
another stream was to read: its steps are then arranged anew from there.

A plan is looked at only as far as a choice depends on it, and never further than `horizon` pairs of
a step and a piece: what is needed after that counts as not needed.
"""

import dataclasses
import heapq
import operator
from collections.abc import Callable, Iterator

from loader.records.words import bytes_in_words
from loader.sources.storage.cache.stream import Needs, Sizes, Stream

Name = int | str  # of a stream

NEVER = 2**60  # steps ahead
_SOME_TIME = 2**62  # more than that, wherever the reader is: it was not looked at yet
# Pairs of a step and a piece that may be arranged ahead of the reader. Where all is there, that is
# all the work there is: with 2**20, batches of local files came at 0.37 of their speed.
_AHEAD = 2**14
_HORIZON = 3 * 2**20  # and known ahead of what is arranged
_CHECKED = 2**13  # that are looked at before a stream begins
_STEPS_AT_ONCE = 256  # that are passed over in one go


class TooSmall(ValueError):
    """A step of a stream does not fit into the cache."""

    def __init__(self, message: str, stream: Name) -> None:
        super().__init__(message)
        self.stream = stream


@dataclasses.dataclass(frozen=True)
class Fetch:
    """A piece to fetch now, for a step of a stream, and those that go from the cache before."""

    piece: int
    let_go: tuple[int, ...]
    stream: Name | None = None
    step: int | None = None


class Schedule:
    """Says what to fetch into a cache of so many bytes. `sizes` are those of the pieces."""

    def __init__(
        self,
        most_bytes: int,
        sizes: Sizes,
        *,
        ahead: int = _AHEAD,
        horizon: int = _HORIZON,
    ) -> None:
        self.most_bytes = most_bytes
        self.allowed = most_bytes  # or less, where others need a part of it
        self.used = 0  # bytes of the pieces that are there, or being fetched
        self.hits = 0  # pieces that a step needed and that were there when it was arranged
        self.is_behind = False  # whether `next` has more to look at before it can say something
        self.has_room_after = -1  # of a stream alone: the step whose reading `next` waits for
        self._sizes: Sizes = sizes
        self._ahead, self._horizon = ahead, horizon
        self._streams: dict[Name, Stream] = {}
        self._there: set[int] = set()
        self._under_way: set[int] = set()
        self._given_out: dict[Name, set[int]] = {}  # for the step that is being arranged
        # Of each piece that is there at least one entry: how far ahead it is needed (negative, for
        # the furthest is to be first), when it was used, and its number. What is needed comes
        # nearer as it is read, so an entry never says too little: it is put right when it is met.
        self._heap: list[tuple[int, int, int]] = []
        self._uses = 0
        self._passed = 0  # steps by which all that is in the heap has come nearer

    # Streams.

    def begin(self, name: Name, needs: Needs, first: int, end: int | None) -> None:
        """Take up a plan. `TooSmall` if a step does not fit into the cache, as far as is seen."""
        stream = Stream(needs, first, end, self._sizes)
        while stream.may_look(min(_CHECKED, self._horizon)):
            stream.look()
        self._refuse_what_does_not_fit(name, stream)
        self._streams[name], self._given_out[name] = stream, set()

    def end(self, name: Name) -> None:
        """Forget a plan."""
        if self._streams.pop(name, None) is not None:
            self._rebuild()  # what it needed is needed later now, or never

    def was_read(self, name: Name, step: int) -> None:
        """The batch of a step was made."""
        stream = self._streams.get(name)
        if stream is not None:
            read = stream.read
            passed_over = stream.was_read(step)
            if len(self._streams) == 1:
                self._passed += stream.read - read
            for piece in passed_over:
                self._given_out[name].clear()
                if piece in self._there:
                    self._touch(piece)

    def pieces(self, name: Name, step: int) -> tuple[int, ...]:
        """What a step that is not read needs."""
        return self._streams[name].pieces(step)

    def is_arranged(self, name: Name, step: int) -> bool:
        return step < self._streams[name].front

    def read(self, name: Name) -> int:
        """The first step that is not read."""
        return self._streams[name].read

    def front(self, name: Name) -> int:
        """The first step that is not arranged."""
        return self._streams[name].front

    def is_due(self, piece: int) -> bool:
        """Whether `next` gives the piece out for a step that is read next."""
        return any(
            stream.front == stream.read and stream.next_use(piece, stream.read) == stream.read
            for stream in self._streams.values()
        )

    def look_ahead(self) -> bool:
        """Look somewhat further, before a choice depends on it. Whether there was more to see."""
        for stream in self._streams.values():
            if stream.may_look(self._horizon):
                for _ in range(_STEPS_AT_ONCE):
                    if stream.may_look(self._horizon):
                        stream.look()
                return True
        return False

    @property
    def least_bytes(self) -> int:
        """What the step needs that needs most, of all that are known."""
        return max((stream.most_bytes for stream in self._streams.values()), default=0)

    # Pieces.

    @property
    def there(self) -> set[int]:
        """The pieces that are there, or being fetched."""
        return self._there

    def add(self, piece: int) -> None:
        """A piece was found to be there."""
        if piece not in self._there:
            self._there.add(piece)
            self.used += self._sizes[piece]
            self._touch(piece)

    def fetched(self, piece: int) -> None:
        """What was given out is there now, or has failed."""
        self._under_way.discard(piece)

    def lost(self, piece: int) -> None:
        """A piece is not there after all: it will be given out again where it is needed."""
        if piece in self._there:
            self._remove(piece)

    # What to do next.

    def next(self) -> Fetch | None:
        """The next fetch, which counts as begun; None until something is read or fetched."""
        self.is_behind = False
        nearest = sorted(self._streams.items(), key=lambda one: one[1].front - one[1].read)
        for name, stream in nearest:
            fetch = self._next_of(name, stream)
            if fetch is not None:
                return fetch
        return None

    def take(self, piece: int) -> Fetch | None:
        """A fetch of a piece that is wanted now, outside of any plan; None if there is no room."""
        if piece in self._there:
            return None
        self.allowed = max(self.allowed, self._sizes[piece])
        let_go = self._room(self._sizes[piece], None, 0)
        if let_go is None:
            return None
        fetch = self._begun(Fetch(piece, let_go))
        heapq.heappush(self._heap, (-_SOME_TIME, 0, piece))  # the first to go, if no plan needs it
        return fetch

    def shrink(self) -> tuple[int, ...]:
        """What goes so that there are at most `allowed` bytes."""
        let_go = self._room(0, None, 0) or ()
        for piece in let_go:
            self._remove(piece)
        return let_go

    def _next_of(self, name: Name, stream: Stream) -> Fetch | None:
        for _ in range(_STEPS_AT_ONCE):
            step = stream.front
            if stream.is_end(step) or stream.pairs_ahead >= self._ahead:
                return None
            pieces = stream.pieces(step)
            self._refuse_what_does_not_fit(name, stream)
            if self._there.issuperset(pieces):
                self._pass(name, stream, pieces)
                continue
            missing = next(piece for piece in pieces if piece not in self._there)
            let_go = self._room(self._sizes[missing], stream, step - stream.read)
            if let_go is None:
                return None
            self._given_out[name].add(missing)
            fetch = self._begun(Fetch(missing, let_go, name, step))
            self._touch(missing)
            return fetch
        self.is_behind = True
        return None

    def _pass(self, name: Name, stream: Stream, pieces: tuple[int, ...]) -> None:
        """A step is arranged."""
        self.hits += len(pieces) - len(self._given_out[name])
        self._given_out[name].clear()
        stream.front += 1
        self._touch(*pieces)

    def _begun(self, fetch: Fetch) -> Fetch:
        for piece in fetch.let_go:
            self._remove(piece)
        self._there.add(fetch.piece)
        self.used += self._sizes[fetch.piece]
        self._under_way.add(fetch.piece)
        return fetch

    def _remove(self, piece: int) -> None:
        self._there.discard(piece)
        self._under_way.discard(piece)
        self.used -= self._sizes[piece]
        for name, stream in self._streams.items():
            use = stream.next_unread(piece)
            if use is not None and use < stream.front:  # it was to be read there
                stream.front = use
                self._given_out[name].clear()

    # What goes.

    def _room(self, size: int, stream: Stream | None, ahead: int) -> tuple[int, ...] | None:
        """What goes for a piece that is needed so many steps ahead; None if it has to wait."""
        missing, chosen = size - (self.allowed - self.used), []
        if missing <= 0:
            return ()
        for distance, piece in self._furthest(stream):
            if stream is not None:
                # A step that is read next may take anything but what it needs itself.
                if distance <= ahead and (ahead > 0 or self._is_due(stream, piece)):
                    self.has_room_after = stream.front - 1
                    return None
                if (use := stream.next_unread(piece)) is not None and use < stream.front:
                    self.has_room_after = use
                    return None
            if piece in self._under_way:
                continue
            chosen.append(piece)
            missing -= self._sizes[piece]
            if missing <= 0:
                return tuple(chosen)
        return None

    def _is_due(self, stream: Stream, piece: int) -> bool:
        return stream.next_use(piece, stream.read) == stream.front

    def _furthest(self, stream: Stream | None) -> Iterator[tuple[int, int]]:
        """The pieces that are there, with how far ahead they are needed: the furthest first.

        For `stream`, what its arranged steps will read does not count.
        """
        aside: dict[int, tuple[int, int, int]] = {}
        found: list[tuple[int, int, int]] = []
        try:
            while self._heap or found:
                if found and (not self._heap or found[0] <= self._heap[0]):
                    far, _, piece = heapq.heappop(found)
                    yield -far - self._passed, piece
                    continue
                entry = heapq.heappop(self._heap)
                stored, used, piece = entry
                if piece not in self._there or piece in aside:
                    continue
                if (far := self._far(piece, lambda each: each.front)) < -stored:
                    heapq.heappush(self._heap, (-far, used, piece))
                    continue
                aside[piece] = entry
                if stream is None or len(self._streams) > 1:
                    far = self._far(piece, lambda each: each.front if each is stream else each.read)
                heapq.heappush(found, (-far, used, piece))
        finally:
            for entry in aside.values():
                heapq.heappush(self._heap, entry)

    def _far(self, piece: int, at: Callable[[Stream], int]) -> int:
        """In how many steps the first stream needs a piece, from a place in each plan on.

        Counted from where the heap counts, so that it stays the same while one stream is read.
        """
        least = NEVER
        for stream in self._streams.values():
            use = stream.look_for(piece, at(stream), stream.read + least, self._horizon)
            if use is not None:
                least = min(least, use - stream.read)
        return NEVER if least == NEVER else least + self._passed

    def _touch(self, *pieces: int) -> None:
        """Pieces are used: how far ahead the next use is, is found out when it matters."""
        most = 4 * len(self._there) + 1024
        for piece in pieces:
            self._uses += 1
            heapq.heappush(self._heap, (-_SOME_TIME, self._uses, piece))
            if len(self._heap) > most:
                self._rebuild()

    def _rebuild(self) -> None:
        last = {piece: used for _, used, piece in sorted(self._heap, key=operator.itemgetter(1))}
        self._heap = [
            (-_SOME_TIME, used, piece) for piece, used in last.items() if piece in self._there
        ]
        heapq.heapify(self._heap)

    def _refuse_what_does_not_fit(self, name: Name, stream: Stream) -> None:
        self.allowed = max(self.allowed, stream.most_bytes)
        if stream.most_bytes <= self.most_bytes:
            return
        while stream.may_look(self._horizon):
            stream.look()
        raise TooSmall(
            f"the cache holds {self.most_bytes:,} bytes, and batch {stream.most_step} alone needs "
            f"{stream.most_bytes:,} ({bytes_in_words(stream.most_bytes)}): give DiskCache(folder, "
            f"most_bytes={stream.most_bytes}) or more, smaller batches, or an order that reads "
            "fewer files at once, such as BlockShuffle",
            name,
        )
