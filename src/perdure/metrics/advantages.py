"""Advantages of a window of steps by generalised advantage estimation, on plain lists.

Schulman et al. 2016 (arXiv 1506.02438). Without episode lengths every sample is an episode of its
own, so that the advantage is reward minus value and discount and decay do nothing (`degenerate`);
that reproduces published baselines of language policies.
"""

# pyright: strict

import enum
import warnings
from collections.abc import Iterable, Sequence

from perdure.core.errors import PerdureError


class GAEMode(enum.StrEnum):
    """Where episodes end: nowhere known, or as the window's flags say."""

    DEGENERATE = "degenerate"
    EPISODIC = "episodic"


def episode_lengths_from(flags: Iterable[bool]) -> list[int]:
    """Lengths of the episodes that `flags` (True where one ends) cut a window into; an unfinished tail counts."""
    lengths, length = list[int](), 0
    for ended in flags:
        length += 1
        if ended:
            lengths.append(length)
            length = 0
    return [*lengths, length] if length else lengths


def compute_gae(
    rewards: Sequence[float],
    values: Sequence[float],
    episode_lengths: Sequence[int] | None,
    gamma: float,
    lam: float,
    *,
    bootstrap: Sequence[float] | None = None,
    average_reward: float | None = None,
) -> tuple[list[float], list[float]]:
    """Advantages and returns (advantage plus value) of every sample, episode after episode.

    `bootstrap` holds the value of the state after each episode's last step: 0 where the episode
    terminated (the default everywhere), V(s_T) where it was truncated or the window ends.
    `average_reward` is subtracted from every reward and takes the place of the discount, which is
    then 1. Lengths that do not add up to the window give a warning and count as None.
    """
    _check(rewards, values, gamma, lam)
    lengths = _lengths(episode_lengths, len(rewards))
    if bootstrap is not None and len(bootstrap) != len(lengths):
        raise PerdureError(f"bootstrap has {len(bootstrap)} values for {len(lengths)} episodes; give one an episode")
    discount, centre = (gamma, 0.0) if average_reward is None else (1.0, average_reward)
    advantages = [0.0] * len(rewards)
    end = len(rewards)
    for episode in reversed(range(len(lengths))):
        advantage, following = 0.0, 0.0 if bootstrap is None else bootstrap[episode]
        for row in reversed(range(end - lengths[episode], end)):
            error = rewards[row] - centre + discount * following - values[row]
            advantage = error + discount * lam * advantage
            advantages[row], following = advantage, values[row]
        end -= lengths[episode]
    return advantages, [advantage + value for advantage, value in zip(advantages, values, strict=True)]


def _lengths(episode_lengths: Sequence[int] | None, rows: int) -> list[int]:
    if episode_lengths is None:
        return [1] * rows
    lengths = [int(length) for length in episode_lengths]
    if sum(lengths) == rows and all(length > 0 for length in lengths):
        return lengths
    warnings.warn(
        f"episode lengths {lengths[:8]} sum to {sum(lengths)}, the window has {rows} steps; "
        "every step now counts as its own episode, so that gamma and lam do nothing",
        stacklevel=3,
    )
    return [1] * rows


def _check(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> None:
    if len(rewards) != len(values):
        raise PerdureError(f"there are {len(rewards)} rewards and {len(values)} values; give one value a reward")
    for name, share in (("gamma", gamma), ("lam", lam)):
        if not 0 <= share <= 1:
            raise PerdureError(f"{name} is {share}; it lies between 0 and 1")
