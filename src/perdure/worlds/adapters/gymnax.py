"""gymnax environments as pure worlds: their parameters are the task, their time limit is a truncation.

Needs gymnax 1.0 or newer, which tells a time limit from a termination.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core.component import component
from perdure.core.errors import ConfigError, MissingExtra, Refused, UnknownName, nearest
from perdure.core.records import Spec


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
        return _loaded(self.env_id, self.kwargs).spec

    def task(self, **params: float) -> dict[str, jax.Array]:
        """Every float parameter by gymnax's own name, as float32 scalars.

        Raises ConfigError for a name that is no parameter, one that is not a float, or a value that is not finite.
        """
        defaults, place = _loaded(self.env_id, self.kwargs).params, f"gymnax/{self.env_id}"
        floats = {name: value for name, value in vars(defaults).items() if isinstance(value, float)}
        for name, value in params.items():
            if name not in floats:
                why = "is fixed when the program is compiled" if hasattr(defaults, name) else "is not a parameter"
                raise ConfigError(f"{place}: {name!r} {why}; {nearest(name, floats)}")
            if isinstance(value, str | bool) or not np.isfinite(value):
                raise ConfigError(f"{place}: {name} is {value!r}; it must be a finite number")
        values = _derived(floats | dict(params), params)
        return {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}

    def reset(self, key: jax.Array, task: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
        """As gymnax draws it."""
        loaded = _loaded(self.env_id, self.kwargs)
        observation, state = loaded.env.reset_env(key, dataclasses.replace(loaded.params, **task))
        return _strong(state), loaded.observe(observation)

    def step(self, key: jax.Array, state: Any, action: jax.Array, task: dict[str, jax.Array]) -> tuple:
        """One step without gymnax's automatic reset."""
        loaded = _loaded(self.env_id, self.kwargs)
        params = dataclasses.replace(loaded.params, **task)
        observation, following, reward, terminated, _ = loaded.env.step_env(key, state, action, params)
        following = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), following, state)
        truncated = loaded.env.is_truncated(following, params)
        reward = jnp.reshape(jnp.asarray(reward).astype(jnp.float32), ())
        return following, loaded.observe(observation), reward, _flag(terminated), _flag(truncated)


class _Loaded(NamedTuple):
    """A gymnax environment, its default parameters and what they say of its spaces."""

    env: Any
    params: Any
    spec: Spec
    categories: int
    """How many observations there are if they are discrete, else 0."""

    def observe(self, observation: Any) -> jax.Array:
        """float32, a discrete observation as a one-hot vector."""
        if self.categories:
            return jax.nn.one_hot(observation, self.categories, dtype=jnp.float32)
        return jnp.asarray(observation).astype(jnp.float32)


@functools.cache
def _loaded(env_id: str, kwargs: tuple) -> _Loaded:
    try:
        import gymnax
    except ModuleNotFoundError as error:  # gymnax itself, or what it needs and does not declare
        raise MissingExtra(error.name or "gymnax", "gymnax") from error
    if env_id not in gymnax.registered_envs:
        raise UnknownName(f"gymnax/{env_id} is not a gymnax environment; {nearest(env_id, gymnax.registered_envs)}")
    with jax.ensure_compile_time_eval():
        try:
            env, params = gymnax.make(env_id, **dict(kwargs))
        except TypeError as error:
            raise ConfigError(f"gymnax/{env_id} cannot be built with {dict(kwargs)}: {error}") from error
        if not hasattr(env, "is_truncated"):
            raise Refused(f"gymnax/{env_id}: this gymnax does not tell a time limit apart; install gymnax 1.0 or newer")
        seen, acts = env.observation_space(params), env.action_space(params)
        return _Loaded(env, params, _spec(env_id, seen, acts, int(params.max_steps_in_episode)), _categories(seen))


def _spec(env_id, seen, acts, horizon):
    from gymnax.environments import spaces

    if not isinstance(seen, spaces.Box | spaces.Discrete):
        raise Refused(f"gymnax/{env_id}: observation space {seen} is not read; choose another environment")
    if not isinstance(acts, spaces.Box | spaces.Discrete):
        raise Refused(
            f"gymnax/{env_id}: action space {acts} is not one of Discrete and Box; choose another environment"
        )
    shape = tuple(int(size) for size in seen.shape) if isinstance(seen, spaces.Box) else (_categories(seen),)
    if isinstance(acts, spaces.Discrete):
        return Spec(shape, int(acts.n), discrete=True, horizon=horizon)
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), acts.shape).ravel() for bound in (acts.low, acts.high))
    return Spec(shape, low.size, discrete=False, low=tuple(low.tolist()), high=tuple(high.tolist()), horizon=horizon)


def _categories(seen):
    return int(getattr(seen, "n", 0))


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


def _flag(value):
    return jnp.reshape(jnp.asarray(value, bool), ())
