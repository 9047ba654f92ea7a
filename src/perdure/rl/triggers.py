"""When an extension acts: every so many updates, or when the boundary source reports a shift."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from perdure.core.errors import ConfigError
from perdure.rl.phases import Context

T = TypeVar("T")

TRIGGERS = ("interval", "shift")


def check_interval(interval: int) -> None:
    """Raise ConfigError unless `interval` is a number of updates."""
    if interval < 1:
        raise ConfigError(f"interval is {interval}; give at least 1 update")


def check(trigger: str, interval: int) -> None:
    """Raise ConfigError for a trigger that does not exist, or an interval that never passes."""
    if trigger not in TRIGGERS:
        raise ConfigError(f"trigger is {trigger!r}; give 'interval' or 'shift'")
    check_interval(interval)


def needs(trigger: str) -> frozenset[str]:
    """What an extension with this trigger needs: a boundary source, if it waits for shifts."""
    return frozenset({"boundary"} if trigger == "shift" else ())


def due(ctx: Context, trigger: str, interval: int) -> jax.Array:
    """In post_update: whether to act now."""
    return ctx.crossed(interval) if trigger == "interval" else jnp.asarray(ctx.shift)


def once(when: jax.Array, change: Callable[[T], T], state: T) -> T:
    """`change(state)` where `when` holds, else `state`; nothing is computed unless it holds for some seed.

    Shifts are told to each seed by itself, and a mapped `cond` computes both of its sides for
    all. A mapped loop runs as long as any seed asks for it, which here is not at all or once.
    """

    def body(carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        pending, state = carry
        return jnp.zeros_like(pending), change(state)

    return jax.lax.while_loop(lambda carry: carry[0], body, (jnp.asarray(when), state))[1]
