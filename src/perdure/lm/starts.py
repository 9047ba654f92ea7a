"""Where the episodes of an update begin: worlds reset by one seed a group, or copies of worlds that never end."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from perdure.core import capabilities, seeds
from perdure.harness import worldstate


class Start(NamedTuple):
    """A world that is about to be acted in."""

    env: Any
    observation: Any
    recorded: bool
    """Whether its rows enter the trace."""


def is_endless(env: Any) -> bool:
    """Whether a world says that it never ends."""
    return bool(capabilities.capability(env, "persistent"))


def reset(envs: Sequence[Any], seed: int, first: int, size: int) -> list[Start]:
    """Every world reset, each group of `size` by one seed; groups are counted over the run from `first` on."""
    opened: list[Start] = []
    for lane, env in enumerate(envs):
        with worldstate.failing(f"episode {lane} of group {first + lane // size}: reset", env):
            observation, _ = env.reset(seed=seeds.stream(seed, "world", first + lane // size))
        opened.append(Start(env, observation, True))
    return opened


def begun(envs: Sequence[Any], seed: int) -> list[Any]:
    """What worlds that never end show after their only reset."""
    shown: list[Any] = []
    for lane, env in enumerate(envs):
        with worldstate.failing(f"world {lane}: reset", env):
            shown.append(env.reset(seed=seeds.stream(seed, "world", lane))[0])
    return shown


def forked(envs: Sequence[Any], observations: Sequence[Any], size: int) -> list[Start]:
    """Each living world, which alone is recorded, and `size` - 1 copies of it as it stands."""
    opened: list[Start] = []
    for env, observation in zip(envs, observations, strict=True):
        copies = [capabilities.capability(env, "fork")() for _ in range(size - 1)]
        opened += [Start(env, observation, True), *(Start(copy, observation, False) for copy in copies)]
    return opened
