"""Servers of the OpenEnv protocol as text worlds: a session for each environment, its messages as text.

Written against openenv 0.10: an observation, a reward that may be None, and `done`. The protocol does not tell
a limit from an end; a client whose observation (or result) carries `metadata` with `truncated` says so.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from perdure.core import registry, seeds
from perdure.core.errors import ConfigError, MissingExtra, PerdureError, RunFailed
from perdure.worlds.text import spaces

REFUSED = "VALIDATION_ERROR"
"""The code by which a server says that an action does not have its schema."""


class OpenEnvWorld(gymnasium.Env):
    """A session with a server, `base_url`, or with a client that is given (an object or "package.module:factory").

    An action is a mapping of the server's action fields; text is sent as {`action_field`: text} where that is
    given, else as the first JSON object in it. Text without one, and what the server refuses by its schema, is
    not carried out and costs `invalid_cost`. An observation is its field `observation_field`, or all of it as JSON.
    `done` is a termination unless metadata.truncated; a reward of None is 0. Resets hand out seeds of the lane,
    which servers that take none ignore; options["task"] is handed to the server's reset. `turns` truncates.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium declares it so)

    def __init__(
        self,
        base_url: str | None = None,
        client: Any = None,
        action_field: str | None = None,
        observation_field: str | None = None,
        turns: int = 100,
        invalid_cost: float = 0.1,
    ):
        if (base_url is None) == (client is None):
            raise ConfigError("an OpenEnv world needs base_url or client, and not both")
        if turns < 1:
            raise ConfigError(f"turns is {turns}; an episode has at least one")
        self.base_url = base_url
        self.client = _client(base_url) if base_url is not None else _given(client)
        self._action_field, self._observation_field = action_field, observation_field
        self._turns, self._cost = turns, float(invalid_cost)
        self.observation_space, self.action_space = spaces.AnyText(), spaces.AnyText()
        self.spec = EnvSpec(id="OpenEnvWorld", entry_point=f"{__name__}:OpenEnvWorld", max_episode_steps=turns)
        self._seed: int | None = None
        self._episode, self._turn, self._over, self._said = -1, 0, True, ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode on the server."""
        super().reset(seed=seed)
        if seed is not None or self._seed is None:
            self._seed, self._episode = int(self.np_random.integers(2**32)) if seed is None else int(seed), -1
        self._episode += 1
        task = (options or {}).get("task") or {}
        if not isinstance(task, Mapping):
            raise ConfigError(f"the task is {task!r}; give the keyword arguments of the server's reset as a mapping")
        result = self.client.reset(**{"seed": seeds.stream(self._seed, "world", self._episode), **task})
        self._turn, self._over, self._said = 0, False, self._told(result)
        return self._said, {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Send an action; one that is none leaves the server as it is."""
        if self._over:
            raise PerdureError("the OpenEnv world has no episode open; call reset() before step()")
        self._turn += 1
        result = self._sent(self._payload(action))
        if result is None:
            self._over = self._turn >= self._turns
            return self._said, -self._cost, False, self._over, {"action_valid": False}
        cut = bool(_metadata(result).get("truncated"))
        terminated = bool(result.done) and not cut
        truncated = not terminated and (bool(result.done) or self._turn >= self._turns)
        self._over, self._said = terminated or truncated, self._told(result)
        reward = 0.0 if result.reward is None else float(result.reward)
        return self._said, reward, terminated, truncated, {"action_valid": True}

    def state(self) -> Any:
        """What the server says of its state, as JSON values."""
        return _plain(self.client.state())

    def describe_run(self) -> dict[str, Any]:
        """Where the worlds of this run live."""
        return {"openenv": self.base_url or type(self.client).__name__}

    def close(self) -> None:
        """End the session."""
        self.client.close()

    def _payload(self, action: Any) -> dict[str, Any] | None:
        if isinstance(action, str) and self._action_field is not None:
            return {self._action_field: action}
        return spaces.as_object(action)

    def _sent(self, payload: dict[str, Any] | None) -> Any:
        """The server's result, or None for an action that it refuses."""
        if payload is None:
            return None
        try:
            return self.client.step(payload)
        except RuntimeError as error:
            if REFUSED in str(error):
                return None
            raise

    def _told(self, result: Any) -> str:
        """The observation as text."""
        seen = _plain(result.observation)
        if self._observation_field is not None:
            if not isinstance(seen, Mapping) or self._observation_field not in seen:
                raise RunFailed(
                    f"the server's observation has no {self._observation_field!r}, but {_keys(seen)}; "
                    "name one of them as observation_field"
                )
            seen = seen[self._observation_field]
        return seen if isinstance(seen, str) else json.dumps(seen, default=str)


def _client(base_url: str) -> Any:
    """A session with a server through the generic client, whose actions and observations are mappings."""
    try:
        from openenv.core import GenericEnvClient
    except ImportError as error:
        raise MissingExtra("openenv", "openenv") from error
    return GenericEnvClient(base_url=base_url).sync()


def _given(client: Any) -> Any:
    """A client that is ready to be called: made by its factory, its calls made synchronous where it offers that."""
    made = registry.load(client, "client")() if isinstance(client, str) else client
    if inspect.iscoroutinefunction(made.reset):
        made = _synchronous(made)
    return made


def _synchronous(client: Any) -> Any:
    sync: Callable[[], Any] | None = getattr(client, "sync", None)
    if sync is None:
        raise ConfigError(f"client: {type(client).__name__} is asynchronous and has no sync(); give a synchronous one")
    return sync()


def _metadata(result: Any) -> Mapping[str, Any]:
    """The metadata of a result or of its observation, empty where there is none."""
    seen = _plain(result.observation)
    inner = seen.get("metadata") if isinstance(seen, Mapping) else None
    found = getattr(result, "metadata", None) or inner
    return found if isinstance(found, Mapping) else {}


def _plain(value: Any) -> Any:
    """A model of pydantic as the mapping that it is."""
    return value.model_dump() if hasattr(value, "model_dump") else value


def _keys(seen: Any) -> str:
    return ", ".join(map(str, seen)) if isinstance(seen, Mapping) else f"is a {type(seen).__name__}"
