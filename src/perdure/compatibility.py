"""Which extension works with which agent, asked of the code itself.

`python -m perdure.compatibility` prints the table of docs/compatibility.md.
"""

import dataclasses
import re
from typing import Any

import numpy as np

from perdure.core import registry
from perdure.core.errors import Refused
from perdure.core.extension import Extension
from perdure.core.records import Spec
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


def example(name: str, spec: Spec) -> Extension:
    """An extension with its defaults; what has none gets a number, or a dataset of one episode."""
    cls = registry.resolve("extensions", name)
    given: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            given[field.name] = 1.0 if field.type in (float, "float") else sample(spec)
    return cls(**given)


def companions(extension: Extension, spec: Spec, agent: Any) -> tuple[Extension, ...]:
    """The extension with those listed before it that its needs, and an agent that normalises observations, ask for."""
    wanted = [COMPANIONS[need] for need in sorted(extension.all_needs() & COMPANIONS.keys())]
    first = [example(name, spec) for name in wanted]
    if agent.normalize_observations and any("phi_star" in part.provides for part in (*first, extension)):
        first.insert(0, example("cloning_pretrain", spec))
    return (*first, extension)


def sample(spec: Spec) -> TransitionDataset:
    """One episode of five steps in a world of `spec`."""
    obs = np.linspace(0.0, 0.5, 6 * spec.obs_shape[0], dtype=np.float32).reshape(6, -1)
    indices, middles = np.arange(5, dtype=np.int32) % spec.action_dim, np.zeros((5, spec.action_dim), np.float32)
    ends = np.arange(5) == 4
    return TransitionDataset(
        obs=obs[:-1],
        action=indices if spec.discrete else middles,
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
    spec = catalogue.pure(WORLDS[discrete], {}).spec
    extension, agent = example(name, spec), registry.resolve("agents", agent_name)()
    parts = companions(extension, spec, agent)
    refused = verdict(agent, parts, discrete)
    if refused is None:
        return "yes" if len(parts) == 1 else f"yes, after {_names(parts[:-1])}"
    found = re.findall(r" needs (\w+(?:, \w+)*?)(?:, which|;|$)", refused)
    missing = sorted({need for needs in found for need in needs.split(", ")})
    return f"no: {', '.join(missing)}" if missing else f"no: {refused.split(') ', 1)[-1]}"


def _names(parts):
    targets = {target: name for name, target in registry.names("extensions").items()}
    return ", ".join(targets[f"{type(part).__module__}:{type(part).__qualname__}"] for part in parts)


if __name__ == "__main__":
    print(table(), end="")
