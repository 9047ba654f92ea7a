"""Greedy episodes of a policy in a host environment set aside for them."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from perdure.core import seeds
from perdure.core.errors import DataError
from perdure.core.records import Evaluation, Fact, Params, Said, Spec
from perdure.harness import worldstate

SAMPLES, TURNS = 3, 24
"""Episodes of an evaluation that are kept turn by turn, and turns of each."""


class Trial(NamedTuple):
    """One greedy episode."""

    score: float
    """Its return, or the mean reward in a never-ending world."""
    length: int
    facts: Mapping[str, Fact] = {}
    """What the world said of it in its last info."""
    turns: Sequence[Said] = ()
    """Its first turns, where the world speaks text."""


def control(env: Any, params: Params | None, controller: Any = None) -> None:
    """Put a configuration in force; None leaves the world as it comes."""
    if params is None:
        return
    if controller is None:
        from perdure.regimes import controllers

        controller = controllers.controller_for(env)
    controller.apply(env, params)


def run(env: Any, policy: Any, spec: Spec, seed: int, step: int, episodes: int) -> list[Trial]:
    """Some episodes of a frozen policy.

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
            return [
                _episode(env, begin, act, spec, seeds.stream(base, "evaluation", number)) for number in range(episodes)
            ]
    finally:
        if kept is not None:
            policy.load_state_dict(kept)


def said(saw: Any, action: Any, reward: float) -> list[Said]:
    """A turn as text; nothing where the world does not show text."""
    if not isinstance(saw, str):
        return []
    return [Said(saw, action if isinstance(action, str) else json.dumps(action, ensure_ascii=False), reward)]


def facts(info: Mapping[str, Any]) -> dict[str, Fact]:
    """What a world says of a finished episode; DataError for what is no number, label or list of labels."""
    found = dict(info.get("facts") or {})
    for name, value in found.items():
        labels = isinstance(value, list) and all(isinstance(each, str) for each in cast("list[Any]", value))
        number = isinstance(value, int | float) and math.isfinite(value)
        if not (value is None or labels or number or isinstance(value, str)):
            raise DataError(
                f"info['facts'][{name!r}] is {value!r}; a fact is a finite number, a text, a list of texts or None"
            )
    return found


def evaluation(found: Sequence[Sequence[Trial]], features: Mapping[str, np.ndarray] | None = None) -> Evaluation:
    """The episodes of every seed as one record; a fact is None in episodes of which the world did not say it."""
    names = dict.fromkeys(name for episodes in found for each in episodes for name in each.facts)
    return Evaluation(
        returns=np.array([[each.score for each in episodes] for episodes in found], np.float64),
        lengths=np.array([[each.length for each in episodes] for episodes in found], np.int64),
        metrics={},
        features=features or {},
        facts={name: [[each.facts.get(name) for each in episodes] for episodes in found] for name in names},
        samples=[[each.turns for each in episodes[:SAMPLES] if each.turns] for episodes in found],
    )


def _episode(env: Any, begin: Any, act: Any, spec: Spec, seed: int) -> Trial:
    observation, _ = env.reset(seed=seed)
    begin()
    total, length, over = 0.0, 0, False
    info: Mapping[str, Any] = {}
    turns: list[Said] = []
    while length < spec.horizon and not over:
        saw, action = observation, act(observation)
        observation, reward, terminated, truncated, info = env.step(action)
        turns += said(saw, action, float(reward)) if length < TURNS else []
        total, length = total + float(reward), length + 1
        over = spec.episodic and bool(terminated or truncated)
    return Trial(total if spec.episodic else total / length, length, facts(info), turns)
