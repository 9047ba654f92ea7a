"""Experts: policies from outside that know the raw observations and the world's own units.

A stateless expert is called with one observation [D] or a batch of them [..., D], and gives actions
[..., A] in world units (float32), or indices [...] (int32) where actions are discrete. A stateful one has
`init_state(n)`, a pytree of arrays [n, ...] for n copies at the start of their episodes, and
`expert(state, obs_N) -> (action_N, state)`. Either is a component: frozen, and equal to another by value, since
it is part of what a compiled program is known by.

Suffixes: N environment copies, A numbers of an action, D numbers of an observation.
"""

import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core.component import component
from perdure.core.errors import ConfigError, told
from perdure.core.records import Spec
from perdure.rl import ranges

COPIES = 2
"""How many copies a check asks about."""


@runtime_checkable
class StatefulExpert(Protocol):
    """An expert that remembers: its state starts anew with every episode."""

    def init_state(self, n: int) -> Any: ...
    def __call__(self, state: Any, obs: Any) -> tuple[Any, Any]: ...


class PIDState(NamedTuple):
    """What a `PID` remembers of each copy, [N] each."""

    integral: jax.Array
    """Of the error over the episode's time."""
    error: jax.Array
    """At the last step."""
    started: jax.Array
    """Whether there was a last step."""


@component
class PID:
    """A proportional-integral-derivative controller of one observed number by one action, in world units.

    u = proportional e + integral (the sum of e time_step) + derivative (e - the last e) / time_step, with
    e = setpoint - obs[index] (Åström and Hägglund, 1995, chapter 3), the derivative 0 at an episode's first step.
    The integral stays within +-`integral_limit`, which keeps it from winding up; u within +-`limit`.
    """

    index: int = 0
    """Which number of the observation is controlled."""
    setpoint: float = 0.0
    proportional: float = 1.0
    integral: float = 0.0
    derivative: float = 0.0
    time_step: float = 1.0
    """Seconds of a step, above zero."""
    limit: float = math.inf
    """Largest size of the action, above zero."""
    integral_limit: float = math.inf
    """Largest size of the integral of the error, above zero."""

    def __post_init__(self):
        for name in ("setpoint", "proportional", "integral", "derivative", "time_step"):
            if not math.isfinite(getattr(self, name)):
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be a finite number")
        ranges.check(
            self,
            index=ranges.AT_LEAST_ZERO,
            time_step=ranges.POSITIVE,
            limit=ranges.POSITIVE,
            integral_limit=ranges.POSITIVE,
        )

    def init_state(self, n: int) -> PIDState:
        """No error seen yet."""
        return PIDState(jnp.zeros(n), jnp.zeros(n), jnp.zeros(n, bool))

    def __call__(self, state: PIDState, obs: jax.Array) -> tuple[jax.Array, PIDState]:
        """Actions [N, 1] for observations [N, D]; raises ConfigError where D does not reach `index`."""
        if self.index >= obs.shape[-1]:
            raise ConfigError(f"index is {self.index}; an observation has {obs.shape[-1]} numbers, counted from 0")
        error = self.setpoint - obs[..., self.index]
        total = state.integral + error * self.time_step
        total = jnp.clip(total, -self.integral_limit, self.integral_limit)
        slope = jnp.where(state.started, (error - state.error) / self.time_step, 0.0)
        output = self.proportional * error + self.integral * total + self.derivative * slope
        action = jnp.clip(output, -self.limit, self.limit)[..., None]
        return action, PIDState(total, error, jnp.ones_like(state.started))


def is_stateful(expert: Any) -> bool:
    """Whether the expert has a state of its own, and so is called with it."""
    return isinstance(expert, StatefulExpert)


def start(expert: Any, n: int) -> Any:
    """The expert's state for `n` copies at the start of their episodes; () for a stateless one."""
    return expert.init_state(n) if is_stateful(expert) else ()


def ask(expert: Any, state: Any, obs_N: jax.Array) -> tuple[jax.Array, Any]:
    """What either kind of expert does in N copies, in world units, and its state after it."""
    return expert(state, obs_N) if is_stateful(expert) else (expert(obs_N), state)


def agent_units(spec: Spec, action: Any) -> Any:
    """An action in world units as agents have it: the inverse of `collect.executed`, cut to [-1, 1].

    Indices stay as they are. A dimension without both bounds keeps its number, cut to [-1, 1]; one whose
    bounds are equal gives 0 for the only action there is.
    """
    if spec.discrete:
        return action
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    bounded = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(bounded, low, np.float32(-1)), np.where(bounded, high, np.float32(1))
    half = np.where(high > low, (high - low) / 2, np.float32(1))
    return jnp.clip((action - (high + low) / 2) / half, -1.0, 1.0)


def check(expert: Any, spec: Spec, place: str) -> None:
    """Raise ConfigError, naming `place`, unless `expert` acts in a world of `spec`; nothing is computed.

    It must be callable and hashable, and give actions of the right shape and type for observations of the right
    shape: a stateless one for a single one and for a batch, a stateful one for a few copies, with a state of
    [n, ...] arrays that keeps its shapes.
    """
    if not callable(expert):
        raise ConfigError(f"{place} is {expert!r}, which cannot be called; give a component with __call__(obs)")
    try:
        hash(expert)
    except TypeError as error:
        raise ConfigError(f"{place} is not hashable ({error}); make it a component of numbers and tuples") from None
    if is_stateful(expert):
        _check_stateful(expert, spec, place)
        return
    for leading in ((), (2, 3)):
        seen = jax.ShapeDtypeStruct((*leading, *spec.obs_shape), jnp.float32)
        _check_action(_traced(expert, seen, place=place), spec, leading, place)


def _check_stateful(expert, spec, place):
    seen = jax.ShapeDtypeStruct((COPIES, *spec.obs_shape), jnp.float32)
    before = _traced(lambda: expert.init_state(COPIES), place=f"{place}: init_state")
    for leaf in jax.tree.leaves(before):
        if leaf.shape[:1] != (COPIES,):
            raise ConfigError(
                f"{place}: init_state({COPIES}) has an array of shape {list(leaf.shape)}; "
                f"give every array a leading axis of the {COPIES} copies"
            )
    given = _traced(expert, before, seen, place=place)
    if not (isinstance(given, tuple) and len(given) == 2):
        raise ConfigError(f"{place} has init_state, so its call must return (action, state), not {_shapes(given)}")
    action, after = given
    _check_action(action, spec, (COPIES,), place)
    if _shapes(after) != _shapes(before) or jax.tree.structure(after) != jax.tree.structure(before):
        raise ConfigError(f"{place} turns a state of {_shapes(before)} into {_shapes(after)}; keep shapes and types")


def _check_action(action, spec, leading, place):
    """Refuse an action of the wrong shape or type for observations with those leading axes."""
    shape = leading if spec.discrete else (*leading, spec.action_dim)
    wanted = jax.ShapeDtypeStruct(shape, jnp.int32 if spec.discrete else jnp.float32)
    if _shapes(action) != _shapes(wanted) or jax.tree.structure(action) != jax.tree.structure(wanted):
        seen = [*leading, *spec.obs_shape]
        kind = "indices, one for each observation" if spec.discrete else "actions in world units"
        raise ConfigError(
            f"{place} gives {_shapes(action)} for observations of shape {seen}; "
            f"give {_shapes(wanted)} ({kind}), broadcasting over whatever axes lead"
        )


def _traced(call, *arguments, place):
    """The shapes that `call` gives; ConfigError where it fails."""
    try:
        return jax.eval_shape(call, *arguments)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    except Exception as error:  # A stranger's code may raise anything; whatever it is, it cannot act here.
        shapes = " and ".join(_shapes(each) for each in arguments) or "nothing"
        raise ConfigError(
            f"{place} raised {told(error)} when called with {shapes}; write it in jax.numpy for such observations"
        ) from error


def _shapes(tree):
    """Types and shapes as text, such as "float32[2,3]"."""
    return ", ".join(f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in jax.tree.leaves(tree)) or "nothing"
