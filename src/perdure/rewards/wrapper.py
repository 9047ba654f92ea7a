"""The Gymnasium face of a reward specification: a wrapper, to be the outermost one."""

from typing import Any

import gymnasium
import numpy as np

from perdure.core.capabilities import regime_from_info, regime_origin_from_info
from perdure.rewards.reading import keys
from perdure.rewards.spec import RewardSpec
from perdure.rewards.watch import ConstantWatch


class RewardWrapper(gymnasium.Wrapper):
    """Replaces the environment's reward by a specification's.

    Written into each step's info: "reward_components" (name -> weighted contribution), "reward_raw"
    (name -> unweighted value), "reward_bounds" ({"lb", "ub"} of a step under the regime, None where
    unknown), "env_reward" (what the environment itself gave), and "reward_warnings" (messages) on the
    few steps that have any. Weights follow the regime in the environment's own info, or else the one
    last named by `use_regime`.
    """

    def __init__(self, env: gymnasium.Env, spec: RewardSpec, place: str = "reward", watch_steps: int = 10_000):
        super().__init__(env)
        self._spec, self._place = spec, place
        self._watch = ConstantWatch(spec, watch_steps)
        self._regime: tuple[str | None, str | None] = (None, None)
        self._memory: tuple[Any, ...] | None = None
        self._checked = False

    def use_regime(self, regime_id: str | None, origin: str | None = None) -> None:
        """Say which regime is in force from the next step on (a capability; see core.capabilities)."""
        self._regime = (regime_id, origin)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and what the components remember of the episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._memory = self._spec.start(np, _readable(info, observation, 0.0, False, False))
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; the first one raises ConfigError if the info lacks a key that a component reads."""
        assert self._memory is not None, "step before reset"
        observation, given, terminated, truncated, info = self.env.step(action)
        readable = _readable(info, observation, given, terminated, truncated)
        if not self._checked:
            self._spec.check(keys(readable), self._place)
            self._checked = True
        regime = self._regime_of(info)
        with np.errstate(all="ignore"):  # Whoever collects refuses a reward that is not finite, and says where.
            found = self._spec.step(np, self._memory, action, readable, self._spec.weights(*regime))
        self._memory = found.memory
        low, high = self._spec.bounds(*regime)
        told = {
            **info,
            "env_reward": float(given),
            "reward_components": {name: float(value) for name, value in found.contributions.items()},
            "reward_raw": {name: float(value) for name, value in found.raw.items()},
            "reward_bounds": {"lb": low, "ub": high},
        }
        messages = self._watch.observe(found.raw)
        if messages:
            told["reward_warnings"] = messages
        return observation, float(found.reward), bool(terminated), bool(truncated), told

    def _regime_of(self, info: dict[str, Any]) -> tuple[str | None, str | None]:
        name, _ = regime_from_info(info)
        return self._regime if name is None else (name, regime_origin_from_info(info))


def probe(env: gymnasium.Env, spec: RewardSpec, place: str = "reward", seed: int = 0) -> None:
    """Reset and step `env` once, and raise ConfigError if its info lacks a key that the reward reads.

    The environment has moved afterwards: probe one that is thrown away, or reset it with a seed.
    """
    env.reset(seed=seed)
    env.action_space.seed(seed)
    *_, info = env.step(env.action_space.sample())
    spec.check(keys(info), place)


def _readable(info: dict[str, Any], observation: Any, reward: Any, terminated: bool, truncated: bool) -> dict[str, Any]:
    return {
        **info,
        "obs": observation,
        "env_reward": float(reward),
        "terminated": terminated,
        "truncated": truncated,
    }
