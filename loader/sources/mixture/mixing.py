"""Which component is at which position of a mixture: integers only, any position at once.

Positions come in blocks of 1000. Weights are turned into shares of a block, in 1024ths: a
component with share 1024 * a + f has `a` fixed places in every block, and in f of 1024 blocks one
more, a free place. Fixed and free places are the same in all blocks, spread by the seed.

The free places of a block are handed out along a line, on which every component has a stretch as
long as its f. In block b the r-th free place goes to the stretch that covers point 1024 * r + u,
where u moves up by one from block to block. Any 1000 positions in a row see every place once: the
places from some offset on in one block, those before it in the next, where u is one more. Two free
places that a component gets there would be 1023 apart in a stretch shorter than 1024. So
a component has, in every 1000 positions, `a` of them or one more: within one of its weight.
"""

import dataclasses
from fractions import Fraction

import numpy as np

from loader.order.permutation import hashed
from loader.records.integers import Int64s

BLOCK = 1000
CYCLE = 1024
_JITTER_BITS = 20


def shares(weights: dict[str, Fraction]) -> dict[str, int]:
    """The weights as whole parts of BLOCK * CYCLE, by largest remainder."""
    total = sum(weights.values())
    exact = {name: weight * BLOCK * CYCLE / total for name, weight in weights.items()}
    parts = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (parts[name] - exact[name], name))
    for name in by_remainder[: BLOCK * CYCLE - sum(parts.values())]:
        parts[name] += 1
    return parts


@dataclasses.dataclass(frozen=True, eq=False)
class Mixing:
    """The arithmetic of one mixture. Components are numbers here, in the order of their shares."""

    fixed: Int64s  # places of each component in a block
    stretch: Int64s  # the length of each component's stretch of the line of free places
    stretch_start: Int64s
    place_owner: Int64s  # of each place in a block: its component, or -1 where it is free
    free_rank: Int64s  # how many places before this one are free
    fixed_before: Int64s  # (components, places): fixed places of the component before this one
    phase: int

    @classmethod
    def of(cls, parts: list[int], seed: int) -> "Mixing":
        fixed, stretch = np.divmod(np.array(parts, np.int64), CYCLE)
        free_places = BLOCK - int(fixed.sum())
        owners = _spread(np.append(fixed, free_places), seed)
        owners[owners == len(parts)] = -1
        own = owners == np.arange(len(parts))[:, None]
        free = owners < 0
        return cls(
            fixed=fixed,
            stretch=stretch,
            stretch_start=np.cumsum(stretch) - stretch,
            place_owner=owners,
            free_rank=np.cumsum(free) - free,
            fixed_before=np.cumsum(own, axis=1) - own,
            phase=int(hashed(seed, "mixture phase", np.zeros(1, np.int64), CYCLE)[0]),
        )

    def components(self, positions: Int64s) -> Int64s:
        """The component at each position."""
        block, place = np.divmod(positions, BLOCK)
        point = self.free_rank[place] * CYCLE + (self.phase + block) % CYCLE
        ends = self.stretch_start + self.stretch
        owner = self.place_owner[place]
        return np.where(owner < 0, np.searchsorted(ends, point, side="right"), owner)

    def before(self, positions: Int64s, components: Int64s) -> Int64s:
        """How often each component comes before the position: its own position."""
        block, place = np.divmod(positions, BLOCK)
        start, stretch = self.stretch_start[components], self.stretch[components]
        # Its free places in earlier blocks: the blocks whose u is on its stretch, modulo CYCLE.
        since = (self.phase - start) % CYCLE
        free = _covered(since + block, stretch) - _covered(since, stretch)
        # Its free place in this block, if it has one and that comes before.
        u = (self.phase + block) % CYCLE
        rank = -((u - start) // CYCLE)
        has_one = rank * CYCLE + u < start + stretch
        before_it = self.free_rank[place] > rank
        return (
            block * self.fixed[components]
            + free
            + self.fixed_before[components, place]
            + (has_one & before_it)
        )


def _spread(counts: Int64s, seed: int) -> Int64s:
    """Each number as often as it counts, spread over the block: the seed moves each a little.

    The j-th of n is somewhere in the j-th of n equal parts of the block, so that short runs,
    such as a batch, are mixed much as the whole is.
    """
    numbers = np.repeat(np.arange(len(counts)), counts)
    which = np.arange(numbers.size) - np.repeat(np.cumsum(counts) - counts, counts)
    within = hashed(seed, "mixture places", np.arange(numbers.size), 1 << _JITTER_BITS)
    key = (((which << _JITTER_BITS) + within) << _JITTER_BITS) // counts[numbers]
    return numbers[np.argsort(key, kind="stable")]


def _covered(count: Int64s, stretch: Int64s) -> Int64s:
    """Of the first `count` numbers, those that are less than `stretch` modulo CYCLE."""
    return count // CYCLE * stretch + np.minimum(count % CYCLE, stretch)
