"""How reward components read the info of a step: by key, dotted keys reaching into nested mappings."""

from collections.abc import Mapping
from typing import Any

from perdure.core.errors import ConfigError, nearest

ALWAYS = frozenset({"obs", "env_reward", "terminated", "truncated"})
"""Keys that whoever calls a component adds to the world's own info."""


def read(info: Mapping[str, Any], key: str) -> Any:
    """The value at a key such as "ledger.cash"; ConfigError naming what exists where it is missing."""
    if key in info:
        return info[key]
    value: Any = info
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ConfigError(f"a reward component reads info[{key!r}], which is missing; {nearest(key, keys(info))}")
        value = value[part]
    return value


def reads(info: Mapping[str, Any], key: str) -> bool:
    """Whether `read` would find the key."""
    return key in info or key in keys(info)


def number(xp: Any, value: Any) -> Any:
    """The value as an array of the default float type (double in numpy, single in jax.numpy)."""
    return xp.asarray(value, dtype=float)


def keys(info: Mapping[str, Any]) -> frozenset[str]:
    """Every key that `read` understands, the inner nodes of nested mappings left out."""
    found: set[str] = set()
    for key, value in info.items():
        if isinstance(value, Mapping):
            found.update(f"{key}.{inner}" for inner in keys(value))
        else:
            found.add(str(key))
    return frozenset(found)
