"""gymnax environments as pure worlds: their parameters are the task, their time limit is a truncation.

Needs gymnax 1.0 or newer, which tells a time limit from a termination.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError, MissingExtra, Refused, UnknownName, nearest
from perdure.core.records import Spec

LIMIT = "max_steps_in_episode"


@component
class GymnaxWorld:
    """A gymnax environment by its id, such as "CartPole-v1"; `kwargs` are its constructor's, as pairs.

    A regime may change any parameter that is a float; parameters that count something stay as they
    are, since shapes may depend on them. gymnax's own derived constants (CartPole's total_mass and polemass_length)
    follow what they are derived from, unless they are given.
    """

    env_id: str
    kwargs: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self):
        _loaded(self.env_id, self.kwargs)

    @property
    def spec(self) -> Spec:
        """Read from the spaces under the default parameters; raises Refused for a space it cannot read."""
        env, params = _loaded(self.env_id, self.kwargs)
        from gymnax.environments import spaces

        seen, acts = env.observation_space(params), env.action_space(params)
        if not isinstance(seen, spaces.Box | spaces.Discrete):
            raise Refused(f"gymnax/{self.env_id}: observation space {seen} is not read; choose another environment")
        shape, horizon = tuple(int(size) for size in seen.shape), int(getattr(params, LIMIT))
        if isinstance(acts, spaces.Discrete):
            return Spec(shape, int(acts.n), discrete=True, horizon=horizon)
        if not isinstance(acts, spaces.Box):
            raise Refused(f"gymnax/{self.env_id}: action space {acts} is not one of Discrete and Box; choose another")
        size = int(jnp.prod(jnp.array(acts.shape, jnp.int32)))
        low, high = (jnp.broadcast_to(jnp.asarray(bound), acts.shape).ravel() for bound in (acts.low, acts.high))
        return Spec(shape, size, discrete=False, low=tuple(low.tolist()), high=tuple(high.tolist()), horizon=horizon)

    def task(self, **params: float) -> Any:
        """gymnax's own parameter record with float32 arrays in it.

        Raises ConfigError for a name that is no parameter, one that is not a float, or a value that is not finite.
        """
        _, defaults = _loaded(self.env_id, self.kwargs)
        floats = {name: value for name, value in vars(defaults).items() if isinstance(value, float)}
        place = f"gymnax/{self.env_id}"
        for name, value in params.items():
            if name not in floats:
                fixed = name in vars(defaults)
                why = "is fixed when the program is compiled" if fixed else "is not a parameter"
                raise ConfigError(f"{place}: {name!r} {why}; {nearest(name, floats)}")
            if isinstance(value, str | bool) or not jnp.isfinite(value):
                raise ConfigError(f"{place}: {name} is {value!r}; it must be a finite number")
        values = _derived(floats | dict(params), params)
        return dataclasses.replace(
            defaults, **{name: jnp.asarray(value, jnp.float32) for name, value in values.items()}
        )

    def reset(self, key: jax.Array, task: Any) -> tuple[Any, jax.Array]:
        """As gymnax draws it."""
        env, _ = _loaded(self.env_id, self.kwargs)
        observation, state = env.reset_env(key, task)
        return _strong(state), _float32(observation)

    def step(self, key: jax.Array, state: Any, action: jax.Array, task: Any) -> tuple:
        """One step without gymnax's automatic reset."""
        env, _ = _loaded(self.env_id, self.kwargs)
        observation, following, reward, terminated, _ = env.step_env(key, state, action, task)
        following = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), following, state)
        truncated = env.is_truncated(following, task)
        reward = jnp.reshape(_float32(reward), ())
        return following, _float32(observation), reward, _flag(terminated), _flag(truncated)


@functools.cache
def _loaded(env_id: str, kwargs: tuple) -> tuple[Any, Any]:
    """The environment and its default parameters."""
    try:
        import gymnax
    except ModuleNotFoundError as error:  # gymnax itself, or what it needs and does not declare
        raise MissingExtra(error.name or "gymnax", "gymnax") from error
    if env_id not in gymnax.registered_envs:
        raise UnknownName(f"gymnax/{env_id} is not a gymnax environment; {nearest(env_id, gymnax.registered_envs)}")
    env, params = gymnax.make(env_id, **dict(kwargs))
    if not hasattr(env, "is_truncated"):
        raise Refused(f"gymnax/{env_id}: this gymnax does not tell a time limit apart; install gymnax 1.0 or newer")
    return env, params


def _derived(values, given):
    if {"total_mass", "polemass_length"} <= values.keys():
        derived = {
            "total_mass": values["masscart"] + values["masspole"],
            "polemass_length": values["masspole"] * values["length"],
        }
        return values | {name: value for name, value in derived.items() if name not in given}
    return values


def _strong(state):
    """Typed arrays throughout, so that a loop's state keeps its types."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), state)


def _float32(value):
    return jnp.asarray(value).astype(jnp.float32)


def _flag(value):
    return jnp.reshape(jnp.asarray(value, bool), ())
