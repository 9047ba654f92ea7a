"""Draws that are a pure function of their names: the same in every process and under every hash seed."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

_MASK = (1 << 64) - 1
_SYLLABLES = [consonant + vowel for consonant in "bdgklmnprt" for vowel in "aeiou"]


def number(*parts: object) -> int:
    """A 64-bit number that depends on the parts, in order, and on nothing else."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def identifier(prefix: str, short: bool, *parts: object) -> str:
    """`prefix` and what tells the id from others of its kind: `-` and four hex digits, or a syllable alone."""
    drawn = number(*parts)
    return prefix + _SYLLABLES[drawn % len(_SYLLABLES)] if short else f"{prefix}-{drawn & 0xFFFF:04x}"


class Draws:
    """A stream of draws that begins at `number(*parts)` (SplitMix64: Steele, Lea and Flood 2014)."""

    def __init__(self, *parts: object):
        self._state = number(*parts)

    def bits(self) -> int:
        """64 random bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    def below(self, count: int) -> int:
        """A whole number in [0, count)."""
        return self.bits() * count >> 64

    def between(self, low: int, high: int, step: int = 1) -> int:
        """One of low, low + step, ... up to high."""
        return low + step * self.below((high - low) // step + 1)

    def happens(self, probability: float) -> bool:
        """True with that probability."""
        return self.bits() < probability * 2.0**64

    def choice(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different items in random order."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in range(count)]

    def weighted(self, weights: Mapping[T, float]) -> T:
        """A key, each with a probability in proportion to its weight; some weight must be positive."""
        total = sum(weights.values())
        point, last = self.bits() / 2.0**64 * total, None
        for key, weight in weights.items():
            if weight <= 0:
                continue
            point, last = point - weight, key
            if point < 0:
                break
        assert last is not None, "some weight is positive"
        return last
