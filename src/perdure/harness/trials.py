"""Greedy episodes of a policy in a host environment set aside for them."""

from collections.abc import Mapping
from typing import Any

from perdure.core import seeds
from perdure.core.records import Params, Spec
from perdure.harness import worldstate


def control(env: Any, params: Params | None, controller: Any = None) -> None:
    """Put a configuration in force; None leaves the world as it comes."""
    if params is None:
        return
    if controller is None:
        from perdure.regimes import controllers

        controller = controllers.controller_for(env)
    controller.apply(env, params)


def run(env: Any, policy: Any, spec: Spec, seed: int, step: int, episodes: int) -> tuple[list[float], list[int]]:
    """(scores, lengths) of some episodes; the score is the return, or the mean reward in a never-ending world.

    Episode i is reset with a seed made of (`seed`, `step`, i), and cut after `spec.horizon` steps. A
    policy's random state is put back afterwards where it offers `state_dict` and `load_state_dict`;
    one that follows episodes may offer `begin_episode()`, which is called after each reset.
    """
    act = getattr(policy, "act_greedy", None)
    kept: Mapping[str, Any] | None = None
    if act is None:
        act = policy.act
        kept = policy.state_dict() if hasattr(policy, "state_dict") and hasattr(policy, "load_state_dict") else None
    base = seeds.stream(seed, "evaluation", step)
    try:
        with worldstate.failing(f"step {step}: an evaluation", env):
            begin = getattr(policy, "begin_episode", lambda: None)
            found = [
                _episode(env, begin, act, spec, seeds.stream(base, "evaluation", number)) for number in range(episodes)
            ]
    finally:
        if kept is not None:
            policy.load_state_dict(kept)
    return [score for score, _ in found], [length for _, length in found]


def _episode(env: Any, begin: Any, act: Any, spec: Spec, seed: int) -> tuple[float, int]:
    observation, _ = env.reset(seed=seed)
    begin()
    total, length, over = 0.0, 0, False
    while length < spec.horizon and not over:
        observation, reward, terminated, truncated, _ = env.step(act(observation))
        total, length = total + float(reward), length + 1
        over = spec.episodic and bool(terminated or truncated)
    return (total if spec.episodic else total / length), length
