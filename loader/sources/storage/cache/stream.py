"""What one loader will read: which pieces each of its steps needs, as far as was looked ahead.

A step is *read* when its batch was made. It is *arranged* when all of its pieces are in the cache,
or were given out to be fetched; steps are arranged in their order. So there are three places in a
plan: `read` <= `front` <= `known`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

_TRIMMED = 64  # uses that are over may stay in a list as long as this

Needs = Callable[[int], Iterable[int]]
Sizes = Mapping[int, int] | Sequence[int]


class Stream:
    """The steps [first, end) of a plan. `needs(step)` are the pieces of a step, each once.

    They are fetched in that order.
    """

    def __init__(self, needs: Needs, first: int, end: int | None, sizes: Sizes) -> None:
        self.end = end
        self.read = self.front = self.known = first  # steps before are read, arranged, known
        self.most_bytes, self.most_step = 0, first  # of the known steps, the one that needs most
        self._needs = needs
        self._sizes = sizes
        self._pieces: dict[int, tuple[int, ...]] = {}  # of the known steps that are not read
        self._pairs: dict[int, int] = {first: 0}  # of step and piece, before each of these steps
        self._uses: dict[int, list[int]] = {}  # ascending steps that need a piece
        self._read_early: set[int] = set()  # steps after `read` that are read

    def pieces(self, step: int) -> tuple[int, ...]:
        """What a step needs, if it is not read."""
        while self.known <= step:
            self.look()
        return self._pieces[step]

    def look(self) -> None:
        """Look one step further."""
        step = self.known
        pieces = tuple(self._needs(step))
        for piece in pieces:
            uses = self._uses.get(piece)
            if uses is None:
                self._uses[piece] = [step]
            else:
                uses.append(step)
        self._pieces[step] = pieces
        self._pairs[step + 1] = self._pairs[step] + len(pieces)
        self.known = step + 1
        size = sum(map(self._sizes.__getitem__, pieces))
        if size > self.most_bytes:
            self.most_bytes, self.most_step = size, step

    def may_look(self, most_pairs: int) -> bool:
        """Whether there is more to see, of which less than this is known ahead of the front."""
        seen = self._pairs[self.known] - self._pairs[self.front]
        return seen < most_pairs and not self.is_end(self.known)

    def is_end(self, step: int) -> bool:
        return self.end is not None and step >= self.end

    @property
    def pairs_ahead(self) -> int:
        """Pairs of a step and a piece that are arranged and not read."""
        return self._pairs[self.front] - self._pairs[self.read]

    def next_use(self, piece: int, at: int) -> int | None:
        """The first known step from `at` on that needs the piece."""
        uses = self._uses.get(piece)
        if uses is None or uses[-1] < at:
            return None
        return uses[bisect_left(uses, at)]

    def look_for(self, piece: int, at: int, before: int, most_pairs: int) -> int | None:
        """As `next_use`, after a look at further steps, if need be, up to the step `before`."""
        use = self.next_use(piece, at)
        while use is None and self.known < before and self.may_look(most_pairs):
            self.look()
            uses = self._uses.get(piece)
            use = uses[-1] if uses is not None and uses[-1] >= at else None
        return use

    def next_unread(self, piece: int) -> int | None:
        """The first known step that needs the piece and is not read."""
        uses = self._uses.get(piece, [])
        left = range(bisect_left(uses, self.read), len(uses))
        return next((uses[n] for n in left if uses[n] not in self._read_early), None)

    def was_read(self, step: int) -> list[int]:
        """A step was read, perhaps before others that come first.

        What it gives is needed later than before though no step was arranged: pieces of steps that
        were read before they were arranged.
        """
        passed_over: list[int] = []
        if step >= self.read:
            self._read_early.add(step)
        while self.read in self._read_early:
            self._read_early.discard(self.read)
            pieces = self.pieces(self.read)
            if self.front == self.read:
                passed_over += pieces
            self._forget(self.read, pieces)
        return passed_over

    def _forget(self, step: int, pieces: tuple[int, ...]) -> None:
        self.read = step + 1
        self.front = max(self.front, self.read)
        del self._pieces[step], self._pairs[step]
        for piece in pieces:
            uses = self._uses[piece]
            if uses[-1] < self.read:
                del self._uses[piece]
            elif len(uses) > _TRIMMED and uses[len(uses) // 2] < self.read:
                del uses[: bisect_left(uses, self.read)]
