"""Which extension works with which agent, asked of the code itself.

`python -m perdure.compatibility` prints the table of docs/compatibility.md.
"""

import dataclasses
from typing import Any

import numpy as np

from perdure.core import registry
from perdure.core.errors import Refused
from perdure.core.extension import Extension
from perdure.rl import learner
from perdure.rl.dataset import TransitionDataset
from perdure.worlds import catalogue

WORLDS = {True: "perdure/cartpole", False: "perdure/pendulum"}
"""Discrete actions or not -> the world that stands for such worlds."""
COMPANIONS = {"phi_star": "mc_pretrain"}
"""A need -> the extension that is listed first where another has it."""


def columns() -> list[tuple[str, bool]]:
    """(agent, discrete) for each kind of actions of each agent."""
    kinds = {"discrete": True, "continuous": False}
    agents = [(name, registry.resolve("agents", name)) for name in sorted(registry.names("agents"))]
    return [(name, kinds[kind]) for name, agent in agents for kind in sorted(agent.actions)]


def example(name: str, discrete: bool) -> Extension:
    """An extension with its defaults; what has none gets a number, or a dataset of one episode."""
    cls = registry.resolve("extensions", name)
    given: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            given[field.name] = 1.0 if field.type in (float, "float") else sample(discrete)
    return cls(**given)


def companions(extension: Extension, discrete: bool) -> tuple[Extension, ...]:
    """The extension with those listed before it that its needs ask for."""
    first = [example(COMPANIONS[need], discrete) for need in sorted(extension.all_needs() & COMPANIONS.keys())]
    return (*first, extension)


def sample(discrete: bool) -> TransitionDataset:
    """One episode of five steps in the world of that kind of actions."""
    spec = catalogue.pure(WORLDS[discrete], {}).spec
    obs = np.linspace(0.0, 0.5, 6 * spec.obs_shape[0], dtype=np.float32).reshape(6, -1)
    action = np.arange(5, dtype=np.int32) % spec.action_dim if discrete else np.zeros((5, spec.action_dim), np.float32)
    ends = np.arange(5) == 4
    return TransitionDataset(
        obs=obs[:-1],
        action=action,
        reward=np.ones(5, np.float32),
        terminated=ends,
        truncated=np.zeros(5, bool),
        next_obs=obs[1:],
        is_expert=np.zeros(5, bool),
    )


def verdict(agent: Any, parts: tuple[Extension, ...], discrete: bool, **run: Any) -> str | None:
    """Why the agent refuses the extensions in a run with an expert and an oracle; None: it does not."""
    world = WORLDS[discrete]
    brought = {"expert": registry.resolve("experts", world)(), "boundary_source": "oracle", "total_steps": 100_000}
    try:
        learner.trainer(agent, catalogue.pure(world, {}), parts, **brought, **run)
    except Refused as error:
        return str(error)
    return None


def table() -> str:
    """Every registered extension with every agent and kind of actions, as Markdown."""
    heads = [f"{name} {'discrete' if discrete else 'continuous'}" for name, discrete in columns()]
    lines = [f"| extension | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for name in sorted(registry.names("extensions")):
        cells = [_cell(name, agent, discrete) for agent, discrete in columns()]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(name, agent_name, discrete):
    extension = example(name, discrete)
    agent = registry.resolve("agents", agent_name)()
    refused = verdict(agent, companions(extension, discrete), discrete)
    if refused is None:
        return "yes"
    missing = sorted(need for need in extension.all_needs() if f" needs {need}" in refused or f", {need}" in refused)
    return f"no: {', '.join(missing)}" if missing else f"no: {refused.split(') ', 1)[-1]}"


if __name__ == "__main__":
    print(table(), end="")
