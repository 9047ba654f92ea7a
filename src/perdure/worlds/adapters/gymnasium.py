"""Gymnasium environments of every origin: built by id, read as a Spec, and observed as float32 arrays."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from perdure.core import registry
from perdure.core.capabilities import capability
from perdure.core.errors import ConfigError, MissingExtra, PerdureError, Refused, RunFailed, UnknownName, nearest
from perdure.core.records import Spec
from perdure.worlds import catalogue

UNLIMITED = 1000
"""Spec.horizon of an environment that sets no limit: the length of an evaluation."""
_VERSIONED = re.compile(r"-v\d+$")


class MissingEnvironment(MissingExtra):
    """An environment whose own library is absent; the message names what brings it."""

    def __init__(self, message: str):
        ImportError.__init__(self, message)


def face(world: str, **kwargs: Any) -> Any:
    """The Gymnasium face of a pure world by its id, such as "perdure/cartpole"; `kwargs` are the world's fields."""
    from perdure.worlds.adapters.face import (
        WorldEnv,  # Loads JAX, which a world that is stepped in Python does without.
    )

    return WorldEnv(catalogue.pure(world, kwargs), world, kwargs)


def make(env_id: str, kwargs: Mapping[str, Any] | None = None, place: str = "environment.id") -> gymnasium.Env:
    """Build an environment from a Gymnasium id, a "package.module:factory" or a pure world's id.

    Raises UnknownName with the nearest names, MissingEnvironment where the environment's own
    library is not installed, and ConfigError where the factory fails or makes something else.
    """
    kwargs = dict(kwargs or {})
    if catalogue.is_pure(env_id):
        from perdure.worlds.adapters.face import WorldEnv

        return WorldEnv(catalogue.pure(env_id, kwargs, place.removesuffix(".id")), env_id, kwargs)
    if env_id in registry.names("text_worlds"):
        return _built(lambda: registry.resolve("text_worlds", env_id, place)(**kwargs), env_id, place)
    if ":" in env_id and not _VERSIONED.search(env_id):
        env = _built(lambda: registry.load(env_id, place)(**kwargs), env_id, place)
    else:
        env = _built(lambda: gymnasium.make(env_id, **kwargs), env_id, place)
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(f"{place}: {env_id!r} made a {type(env).__name__}; it must make a gymnasium.Env")
    return env


def spec_of(env: gymnasium.Env) -> Spec:
    """What an agent must know of an environment.

    Box observations are flattened, Discrete ones are one-hot; Box actions are flattened. The
    horizon is the environment's own limit, or 1000. It is episodic unless it (or a wrapper) has the attribute
    `persistent = True`. Raises Refused, naming the space, for any other.
    """
    low, high = (), ()
    if isinstance(env.action_space, spaces.Box):
        low, high = (tuple(bound.ravel().tolist()) for bound in (env.action_space.low, env.action_space.high))
    limit = env.spec.max_episode_steps if env.spec is not None else None
    return Spec(
        obs_shape=_observed_shape(env.observation_space),
        action_dim=_action_count(env.action_space),
        discrete=isinstance(env.action_space, spaces.Discrete),
        low=low,
        high=high,
        horizon=limit or UNLIMITED,
        episodic=not capability(env, "persistent"),
    )


def encode_observation(space: spaces.Space, observation: Any, step: int | None = None) -> np.ndarray:
    """An observation as the float32 vector that `spec_of` declares.

    Raises RunFailed, naming `step`, if a number of it is not finite or its shape is not the space's.
    """
    at = "an observation" if step is None else f"the observation at step {step}"
    if isinstance(space, spaces.Discrete):
        index = int(observation) - int(space.start)
        if not 0 <= index < space.n:
            raise RunFailed(f"{at} is {observation!r}, outside {space}; mend the environment")
        return np.eye(int(space.n), dtype=np.float32)[index]
    array = np.asarray(observation, np.float32)
    if array.shape != space.shape:
        raise RunFailed(f"{at} has shape {array.shape}, its space {space.shape}; mend the environment")
    if not np.isfinite(array).all():
        raise RunFailed(f"{at} is not finite ({_first_bad(array)}); mend the environment or stop it earlier")
    return array.ravel()


def decode_action(space: spaces.Space, action: Any) -> Any:
    """What `env.step` takes for an agent's action: an index, or a vector in world units that is cut at the bounds."""
    if isinstance(space, spaces.Discrete):
        return int(action) + int(space.start)
    assert isinstance(space, spaces.Box), f"spec_of refuses {space}"
    return np.clip(np.asarray(action, space.dtype).reshape(space.shape), space.low, space.high)


def _built(build: Callable[[], Any], env_id: str, place: str) -> Any:
    """What `build()` returns, its failures told in the document's terms."""
    needs = f"{place}: {env_id!r} needs a library that is not installed"
    try:
        return build()
    except PerdureError:
        raise
    except gymnasium.error.UnregisteredEnv as error:
        raise UnknownName(f"{place} is {env_id!r}, which is not registered ({error}); {_nearest_id(env_id)}") from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingEnvironment(f"{needs}: {error}") from error
    except ModuleNotFoundError as error:
        raise MissingEnvironment(f"{needs}; install the package that has the module {error.name!r}") from error
    except Exception as error:  # A stranger's code may raise anything; whatever it is, the run cannot begin.
        beside = f"{place.removesuffix('.id')}.kwargs"
        raise ConfigError(f"{place}: {env_id!r} raised {type(error).__name__}: {error}; check {beside}") from error


def _nearest_id(env_id: str) -> str:
    """A near id if there is one; all of them are too many to list."""
    hint = nearest(env_id, [*gymnasium.registry, *registry.names("worlds"), *registry.names("text_worlds")])
    return (
        hint if hint.startswith("did you mean") else "`perdure list worlds` and gymnasium.pprint_registry() list them"
    )


def _observed_shape(space: spaces.Space) -> tuple[int, ...]:
    if isinstance(space, spaces.Box):
        return (int(np.prod(space.shape)),)
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    raise Refused(f"observation space {space} is not read; wrap it with gymnasium.wrappers.FlattenObservation")


def _action_count(space: spaces.Space) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.Box):
        return int(np.prod(space.shape))
    raise Refused(
        f"action space {space} is not one of Discrete and Box; wrap it with gymnasium.wrappers.TransformAction"
    )


def _first_bad(array: np.ndarray) -> str:
    position = int(np.argmin(np.isfinite(array.ravel())))
    return f"number {position} is {array.ravel()[position]}"
