"""Agent, world and extensions bound into one trainer, once it is clear that they can work together."""

import dataclasses
from typing import Any

from perdure.core.errors import ConfigError, Refused
from perdure.core.extension import Run, check_extensions
from perdure.rl import experts, loop, windows

CHUNK_ROWS = 65_536
"""Rows of one seed that a call of the compiled program may return; bounds its buffers."""


def trainer(
    agent: Any,
    world: Any,
    extensions: tuple[Any, ...] = (),
    *,
    n_envs: int = 1,
    window_steps: int = 128,
    total_steps: int = 1_000_000,
    reward: Any = None,
    detector: Any = None,
    boundary_source: str = "none",
    expert: Any = None,
) -> loop.Trainer:
    """A checked trainer. `total_steps` sizes the replay store (the smaller of capacity and budget).

    `expert` is the agent's own, which extensions may ask. Raises Refused where agent, world and
    extensions do not fit, ConfigError for sizes or an expert that do not.
    """
    spec, name, where = world.spec, type(agent).__name__, getattr(world, "name", type(world).__name__)
    kind = "discrete" if spec.discrete else "continuous"
    if kind not in agent.actions:
        raise Refused(f"{name} acts in {' and '.join(sorted(agent.actions))} worlds; {where} is {kind}")
    if len(spec.obs_shape) not in (1, 3):
        raise Refused(
            f"{name} reads flat observations, or images [height, width, channels]; "
            f"{where} gives shape {list(spec.obs_shape)}"
        )
    extensions = tuple(extensions)
    for place, each in [("expert", expert), *_experts(extensions)]:
        if each is not None:
            experts.check(each, spec, place)
    world = _windowed(agent, world, f"{name} has a memory, but {where}")
    extensions = tuple(windows.extension(world, each) for each in extensions)
    spec, expert = world.spec, windows.expert(world, expert)
    brought = {
        "boundary": boundary_source != "none",
        "agent_expert": expert is not None,
        "simulator": hasattr(world, "step"),
    }
    offers = agent.offers | {f"{kind}_actions"} | {need for need, there in brought.items() if there}
    check_extensions(extensions, offers, name, Run(spec, agent, extensions, expert))
    if n_envs < 1 or window_steps < 1:
        raise ConfigError(f"rollout has n_envs {n_envs} and window_steps {window_steps}; both must be at least 1")
    built = loop.Trainer(
        agent, world, extensions, n_envs, window_steps, reward=reward, detector=detector, expert=expert
    )
    if built.on_policy:
        agent.feed.check(window_steps * n_envs)
        if window_steps * n_envs > total_steps:
            raise ConfigError(
                f"a window has window_steps * n_envs = {window_steps * n_envs} steps, the run {total_steps}; "
                f"{name} learns from whole windows, so make rollout.window_steps smaller or the run longer"
            )
    return dataclasses.replace(
        built,
        store_rows=0 if built.on_policy else agent.feed.rows(total_steps, n_envs),
        chunk_rounds=max(1, CHUNK_ROWS // (window_steps * n_envs)),
    )


def _windowed(agent, world, opening):
    """The world as an agent sees it: in windows of its observations, if it has a memory."""
    memory = getattr(agent, "memory", None)
    if memory is None:
        return world
    if not hasattr(world, "step"):
        raise Refused(f"{opening} is stepped on the host; set algorithm.kwargs.memory: null")
    if len(world.spec.obs_shape) != 1:
        raise Refused(f"{opening} shows images; set algorithm.kwargs.memory: null")
    return windows.Windowed(world, memory.window)


def _experts(extensions):
    """The experts that extensions bring, each with its place."""
    for position, each in enumerate(extensions):
        yield f"extensions[{position}].expert_policy", getattr(each, "expert_policy", None)
