"""From finished trajectories to an advantage a token, as an objective says."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from perdure.core.errors import ConfigError
from perdure.lm.objectives.advantages import Floats, standardised, trajectory_gae
from perdure.lm.objectives.table import ADVANTAGES, Objective
from perdure.lm.trajectory import Trajectory


class Weighed(NamedTuple):
    """What a batch teaches: a list of arrays [T], one a trajectory."""

    advantages: list[Floats]
    """0 on tokens of the environment."""
    returns: list[Floats] | None
    """The critic's targets; None without a critic."""
    metrics: dict[str, float]


def weigh(
    objective: Objective,
    trajectories: Sequence[Trajectory],
    *,
    values: Sequence[Any] | None = None,
    bootstraps: Sequence[float | None] | None = None,
    divergences: Sequence[Any] | None = None,
    kl_coefficient: float = 0.0,
) -> Weighed:
    """Advantages (and returns) of a batch.

    With gae: `values[i][t]` is the value of the state before token t of trajectory i, `bootstraps[i]` the value after
    it where it did not terminate. With kl "reward": `divergences[i][t]` is the KL estimate at a token; kl_coefficient
    times it is subtracted from the token's reward (gae), or its sum over trainable tokens from the return.
    ConfigError for what is missing, and whatever the estimator refuses.
    """
    penalties = _penalties(objective, trajectories, divergences, kl_coefficient)
    if objective.needs_values:
        return _by_token(objective, trajectories, values, bootstraps, penalties)
    returns = np.array([each.total for each in trajectories])
    if penalties is not None:
        returns = returns + [penalty[each.mask].sum() for penalty, each in zip(penalties, trajectories, strict=True)]
    groups = np.array([each.group for each in trajectories])
    if objective.needs_groups and (groups < 0).any():
        raise ConfigError(
            f"trajectory {int(np.argmax(groups < 0))} belongs to no group, as {objective.advantage} needs"
        )
    rows = ADVANTAGES[objective.advantage](returns, groups, **objective.given("advantage"))
    spread = [np.where(each.mask, rows.advantages[i], 0.0) for i, each in enumerate(trajectories)]
    return Weighed(spread, None, rows.metrics)


def _by_token(
    objective: Objective,
    trajectories: Sequence[Trajectory],
    values: Sequence[Any] | None,
    bootstraps: Sequence[float | None] | None,
    penalties: Sequence[Any] | None,
) -> Weighed:
    if values is None:
        raise ConfigError("values are missing; gae compares rewards with a critic's values")
    found = [
        trajectory_gae(
            each,
            values[i],
            bootstrap=None if bootstraps is None else bootstraps[i],
            extra_T=None if penalties is None else penalties[i],
            **objective.given("advantage"),
        )
        for i, each in enumerate(trajectories)
    ]
    weighed = [each.advantages for each in found]
    if objective.standardise:
        weighed = standardised(weighed, [each.mask for each in trajectories])
    return Weighed(weighed, [each.returns for each in found], {})


def _penalties(
    objective: Objective, trajectories: Sequence[Trajectory], divergences: Sequence[Any] | None, coefficient: float
) -> list[Floats] | None:
    """What the reward of each token loses, negative; None without a KL in the reward."""
    if objective.kl != "reward":
        return None
    if divergences is None:
        raise ConfigError("divergences are missing; kl 'reward' subtracts them from the rewards")
    return [
        np.where(each.mask, -coefficient * np.asarray(row, np.float64), 0.0)
        for row, each in zip(divergences, trajectories, strict=True)
    ]
