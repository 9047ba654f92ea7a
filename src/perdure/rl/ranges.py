"""Ranges of agents' numbers, checked when an agent is made."""

from typing import Any

from perdure.core.errors import ConfigError

ANY = float("inf")
SHARE = (0.0, 1.0)
POSITIVE = (1e-12, ANY)
AT_LEAST_ZERO = (0.0, ANY)
COUNT = (1, ANY)


def check(part: Any, **ranges: tuple[float, float]) -> None:
    """Raise ConfigError for the first field of `part` that leaves its range [low, high]; NaN always does."""
    for name, (low, high) in ranges.items():
        value = getattr(part, name)
        if not low <= value <= high:
            wanted = f"must be at least {low:g}" if high == ANY else f"lies in [{low:g}, {high:g}]"
            raise ConfigError(f"{name} is {value}; it {wanted}")
