"""Fixed-width vectors from states of any structure, by hashing: what a context encoder reads.

`state_features` is the published one: a bag of key paths, whose values are never read. `value_features`
reads values too. Neither fails for any state: depth, breadth and text are read up to fixed limits.
"""

import enum
import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from perdure.core.errors import ConfigError

STATE_DIM = 4096
"""Default width of `state_features`."""
VALUE_DIM = 256
"""Default width of `value_features`."""

BUCKETS = 256
"""Entries of `state_features` that can differ from 0, whatever its width: the published code hashes into these."""
DEEPEST = 32
"""Levels of nesting that are read; what lies deeper counts as a leaf."""
MOST_NODES = 20_000
"""Nodes of one state that are read."""
MOST_TEXT = 65_536
"""Characters of a text that are read."""
MOST_KEY = 256
"""Characters of one key that are read."""
STEPS = 2.0
"""Bins of a number, each asinh unit: above 1 a factor of about 1.65 a bin."""


_Mapping = Mapping[Any, Any]


class HashMode(enum.StrEnum):
    """How a path becomes an index."""

    STABLE = "stable"
    """BLAKE2: the same in every process and on every machine."""
    PYTHON = "python"
    """Python's own `hash`, which differs from process to process unless PYTHONHASHSEED is set."""


class FeatureKind(enum.StrEnum):
    """What is read of a state."""

    KEYS = "keys"
    """`state_features`."""
    VALUES = "values"
    """`value_features`."""


class Leaf(NamedTuple):
    """Something in a state that holds nothing further, or a list, and the keys on the way to it."""

    path: str
    value: Any


def features(state: Any, *, kind: FeatureKind, hash_mode: HashMode, width: int) -> np.ndarray:
    """The features of `kind`, float32 [width]."""
    read = state_features if FeatureKind(kind) == FeatureKind.KEYS else value_features
    return read(state, hash_mode=hash_mode, width=width)


def state_features(state: Any, *, hash_mode: HashMode = HashMode.STABLE, width: int = STATE_DIM) -> np.ndarray:
    """How many leaves lie at each key path, hashed: float32 [width].

    Elements of a list share the path of the list; values are never read, so two states of one shape are equal
    here. Only the first 256 entries are ever used. A state that is JSON text is read as what it says.
    """
    counted = np.zeros(_checked(width), np.float32)
    buckets = min(width, BUCKETS)
    for path, count in Counter(leaf.path for leaf in leaves(state) if not isinstance(leaf.value, list)).items():
        counted[_hash(path, hash_mode) % buckets] += count
    return counted


def value_features(state: Any, *, hash_mode: HashMode = HashMode.STABLE, width: int = VALUE_DIM) -> np.ndarray:
    """Key paths with what stands there, hashed with signs over the whole width: float32 [width].

    A number counts in a logarithmic bin and by its squashed size, text as a whole and by its words, a truth value
    or null by itself; a list gives its length and, of its numbers, the least, the mean and the greatest. Entries are
    sign(x) log(1 + |x|) of the signed sums (Weinberger et al., 2009, arXiv:0902.2206, for the signs).
    """
    summed = np.zeros(_checked(width), np.float64)
    for name, amount in _value_marks(state):
        place = _hash(name, hash_mode)
        summed[(place >> 1) % width] += amount if place & 1 else -amount
    return (np.sign(summed) * np.log1p(np.abs(summed))).astype(np.float32)


def leaves(state: Any) -> Iterator[Leaf]:
    """Every leaf of a state, and every list before its elements. An empty container is a leaf."""
    waiting: list[tuple[str, Any, int]] = [("", _opened(state), 0)]
    left = MOST_NODES
    while waiting:
        path, value, depth = waiting.pop()
        value = _plain(value, left if depth < DEEPEST else 0)
        if isinstance(value, dict):
            waiting += [(f"{path}.{_key(key)}", below, depth + 1) for key, below in cast("_Mapping", value).items()]
        elif isinstance(value, list):
            yield Leaf(path, cast("list[Any]", value))
            waiting += [(path, below, depth + 1) for below in cast("list[Any]", value)]
        else:
            yield Leaf(path, value)
            continue
        left -= len(cast("list[Any]", value))


def _value_marks(state: Any) -> Iterable[tuple[str, float]]:
    """Names of what a state holds, and by how much each counts."""
    for path, value in leaves(state):
        if isinstance(value, list):
            yield from _list_marks(path, cast("list[Any]", value))
        elif isinstance(value, bool) or value is None:
            yield f"{path}={value}", 1.0
        elif isinstance(value, (int, float)):
            yield from _number_marks(path, value)
        elif isinstance(value, str):
            yield f"{path}={value[:MOST_KEY]!r}", 1.0
            for word in re.findall(r"\w+|[^\w\s]", value[:MOST_TEXT]):
                yield f"{path}~{word[:MOST_KEY]}", 1.0
        else:
            yield f"{path}:{type(value).__name__}", 1.0


def _list_marks(path: str, values: list[Any]) -> Iterable[tuple[str, float]]:
    yield from _number_marks(f"{path}#", len(values))
    numbers = [_float(each) for each in values if isinstance(each, (int, float)) and not isinstance(each, bool)]
    finite = [each for each in numbers if math.isfinite(each)]
    if finite:
        mean = sum(each / len(finite) for each in finite)
        for name, value in (("min", min(finite)), ("mean", mean), ("max", max(finite))):
            yield from _number_marks(f"{path}#{name}", value)


def _number_marks(path: str, value: float) -> Iterable[tuple[str, float]]:
    number = _float(value)
    if not math.isfinite(number):
        yield f"{path}={number}", 1.0
        return
    size = math.asinh(number)
    yield f"{path}@{round(STEPS * size)}", 1.0
    yield f"{path}@", math.tanh(size / 4)


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _opened(state: Any) -> Any:
    """JSON text as what it says; any other text as itself."""
    if isinstance(state, str) and len(state) <= MOST_TEXT and state.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(state)
        except (ValueError, RecursionError):
            return state
    return state


def _plain(value: Any, most: int) -> Any:
    """Mappings as dicts and arrays and tuples as lists, of at most `most` entries; None where none are left.

    NumPy's numbers become Python's.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.ravel()[:most].tolist() or None
    if isinstance(value, Mapping):
        return dict(itertools.islice(cast("_Mapping", value).items(), most)) or None
    if isinstance(value, (list, tuple)):
        return list(itertools.islice(cast("Iterable[Any]", value), most)) or None
    return value


def _key(key: Any) -> str:
    plain = isinstance(key, (str, float, bool, type(None))) or (isinstance(key, int) and abs(key) < 1 << 64)
    return (str(key) if plain else type(key).__name__)[:MOST_KEY]


def _hash(name: str, mode: HashMode) -> int:
    """A whole number of at least 0."""
    if HashMode(mode) == HashMode.PYTHON:
        return hash(name) & 0xFFFF_FFFF_FFFF_FFFF
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _checked(width: int) -> int:
    if width < 1:
        raise ConfigError(f"width is {width}; features have at least one entry")
    return width
