"""What the classic-control worlds share: a state with a clock, and tasks made of checked constants."""

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core.errors import ConfigError, nearest

Task = TypeVar("Task", bound=tuple)


class State(NamedTuple):
    """A body and the steps its episode has lasted."""

    body: jax.Array
    """Positions and velocities, float32; the order is the world's."""
    t: jax.Array
    """Steps taken since the reset, int32."""


def begin(body: jax.Array) -> State:
    """The state at the start of an episode."""
    return State(body, jnp.zeros((), jnp.int32))


def task(defaults: Task, params: Mapping[str, Any], world: str, positive: Collection[str] = ()) -> Task:
    """`defaults` with `params` put in, every field a float32 scalar array.

    Fields stand for the constants themselves, never for something computed from them, so that
    a line between two tasks is the drift between the two physics.

    Raises ConfigError naming the world and the parameter: a name that is not a field (with the
    nearest one), a value that is not a finite single-precision number, or one of `positive`
    that is not above zero.
    """
    known = type(defaults)._fields  # type: ignore[attr-defined]
    for name in params:
        if name not in known:
            raise ConfigError(f"{world} has no parameter {name!r}; {nearest(name, known)}")
    values = {name: _number(params.get(name, value), name, world) for name, value in zip(known, defaults, strict=True)}
    for name in positive:
        if not values[name] > 0:
            raise ConfigError(f"{world}: {name} is {params[name]!r}; it must be above zero")
    return type(defaults)(**{name: jnp.asarray(value) for name, value in values.items()})


def check_horizon(horizon: int, world: str) -> None:
    """Raise ConfigError unless `horizon` is at least one step."""
    if isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1:
        raise ConfigError(f"{world}: horizon is {horizon!r}; an episode needs a whole number of steps, at least one")


def _number(value: Any, name: str, world: str) -> np.float32:
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise ConfigError(f"{world}: {name} is {value!r}; it must be a finite number")
    return np.float32(number)
