"""How much better an answer was than expected: advantages of trajectories, in NumPy (float64), before any gradient.

Group estimators compare the returns of episodes with one start; `gae` compares rewards with a critic's values,
over trainable tokens alone. R rows (episodes), T tokens, N trainable tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perdure.core.errors import ConfigError, RunFailed
from perdure.lm.trajectory import Trajectory

Floats = NDArray[np.float64]

NOISE = 1e-6
"""Returns of a group that differ by less than this share of their size differ by rounding alone."""
SMALLEST_DEVIATION = 1e-4
"""Added to a deviation that returns are divided by, as TRL 1.16 does."""
SCALES = ("group", "batch", "none")


class RowAdvantages(NamedTuple):
    """One advantage an episode, [R]."""

    advantages: Floats
    """0 for an episode without a return, and in a group whose returns are all the same."""
    metrics: dict[str, float]
    """advantage/missing: share of the rows whose return is NaN; advantage/constant_groups: share of the groups
    (the batch, for reinforce_plus_plus) that teach nothing."""


class TokenAdvantages(NamedTuple):
    """One advantage and one value target a token."""

    advantages: Floats
    returns: Floats
    """Advantage plus value; what the critic regresses on."""


def grpo(returns_R: ArrayLike, groups_R: ArrayLike, *, scale: str = "group") -> RowAdvantages:
    """The return less its group's mean, over a deviation: (r - mean) / (std + 1e-4).

    Shao et al. 2024 (arXiv 2402.03300). `scale` says whose deviation (unbiased, as in TRL 1.16): the "group"'s, the
    "batch"'s, or "none" at all. A NaN return (a faulted episode) counts in no mean and gets 0. Refused with
    ConfigError: a group of one row, an unknown `scale`, an infinite return.
    """
    if scale not in SCALES:
        raise ConfigError(f"scale is {scale!r}; it is one of {', '.join(SCALES)}")
    returns_R, groups = _grouped(returns_R, groups_R)
    advantages_R = _centred(returns_R, groups)
    if scale == "batch":
        advantages_R /= _deviation(returns_R) + SMALLEST_DEVIATION
    elif scale == "group":
        for rows in groups:
            advantages_R[rows] /= _deviation(returns_R[rows]) + SMALLEST_DEVIATION
    return _reported(returns_R, groups, advantages_R)


def dr_grpo(returns_R: ArrayLike, groups_R: ArrayLike) -> RowAdvantages:
    """The return less its group's mean, not scaled: a deviation as divisor favours questions that are easy or hard.

    Liu et al. 2025 (arXiv 2503.20783). Missing returns and refusals as in `grpo`.
    """
    return grpo(returns_R, groups_R, scale="none")


def rloo(returns_R: ArrayLike, groups_R: ArrayLike) -> RowAdvantages:
    """The return less the mean of the others of its group: n / (n - 1) times its distance from the group's mean.

    Ahmadian et al. 2024 (arXiv 2402.14740). Missing returns and refusals as in `grpo`; where missing returns leave one
    row of a group, that row has nobody to be compared with and gets 0.
    """
    returns_R, groups = _grouped(returns_R, groups_R)
    advantages_R = _centred(returns_R, groups)
    for rows in groups:
        present = int(np.isfinite(returns_R[rows]).sum())
        advantages_R[rows] *= present / max(present - 1, 1)
    return _reported(returns_R, groups, advantages_R)


def reinforce_plus_plus(returns_R: ArrayLike, groups_R: ArrayLike | None = None) -> RowAdvantages:
    """The return less the whole batch's mean, over the batch's (biased) deviation + 1e-8; groups play no part.

    Hu et al. 2025 (arXiv 2501.03262). A penalty for leaving the reference is subtracted from the returns before.
    A NaN return counts in no mean and gets 0. Refused with ConfigError: a batch of one row, an infinite return.
    """
    returns_R, groups = _grouped(returns_R, np.zeros(np.size(np.asarray(returns_R)), np.int64))
    advantages_R = _centred(returns_R, groups)
    present_R = np.isfinite(returns_R)
    if present_R.any():
        advantages_R /= returns_R[present_R].std() + 1e-8
    return _reported(returns_R, groups, advantages_R)


def maxrl(returns_R: ArrayLike, groups_R: ArrayLike) -> RowAdvantages:
    """The return's distance from its group's mean as a share of that mean: (r - mean) / mean, 0 where the mean is 0.

    Tajwar et al. 2026 (arXiv 2602.02710): with returns of 0 and 1 the expected gradient is that of a truncated
    log-likelihood of success, so that rare successes weigh more. A negative return has no meaning here and is refused;
    missing returns and other refusals as in `grpo`.
    """
    returns_R, groups = _grouped(returns_R, groups_R)
    if (returns_R < 0).any():
        raise ConfigError(
            f"the return of row {int(np.argmax(returns_R < 0))} is {np.nanmin(returns_R):g}; maxrl measures success, "
            "from 0 upwards: shift the reward, or choose another advantage"
        )
    advantages_R = _centred(returns_R, groups)
    for rows in groups:
        present = returns_R[rows][np.isfinite(returns_R[rows])]
        if present.size and present.mean() > 0:
            advantages_R[rows] /= present.mean()
    return _reported(returns_R, groups, advantages_R)


def gae(
    values_N: ArrayLike,
    rewards_N: ArrayLike,
    ends_N: Sequence[bool] | NDArray[np.bool_],
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    bootstrap: float = 0.0,
) -> TokenAdvantages:
    """Generalised advantages of the trainable tokens of one trajectory, in their order.

    Schulman et al. 2016 (arXiv 1506.02438). `values_N` is the value of the state before each token, `rewards_N` the
    reward that arrives with it, `ends_N` True at the last token of each turn. Time passes between turns: the discount
    between a token and the next is `gamma` past a turn's end and 1 inside a turn; `lam` decays a token.
    `bootstrap` is the value of what follows the last token: 0 where the episode terminated.
    """
    values, rewards = np.asarray(values_N, np.float64), np.asarray(rewards_N, np.float64)
    discounts = np.where(np.asarray(ends_N, bool), gamma, 1.0)
    if not values.shape == rewards.shape == discounts.shape:
        raise ConfigError(
            f"gae was given {values.size} values, {rewards.size} rewards and {discounts.size} ends; one of each a token"
        )
    for name, share in (("gamma", gamma), ("lam", lam)):
        if not 0 <= share <= 1:
            raise ConfigError(f"{name} is {share}; it lies between 0 and 1")
    advantages, advantage, following = np.zeros_like(values), 0.0, bootstrap
    for t in reversed(range(values.size)):
        error = rewards[t] + discounts[t] * following - values[t]
        advantage = error + discounts[t] * lam * advantage
        advantages[t], following = advantage, values[t]
    return TokenAdvantages(advantages, advantages + values)


def trajectory_gae(
    trajectory: Trajectory,
    values_T: ArrayLike,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    bootstrap: float | None = None,
    extra_T: ArrayLike | None = None,
) -> TokenAdvantages:
    """`gae` over a trajectory's trainable tokens (its mask), laid out on all its tokens, 0 on the environment's.

    `values_T[t]` is the value of the state before token t; of the environment's tokens it is never read. A turn's
    reward falls on its last trainable token; `extra_T` (a KL penalty, say) is added token by token. `bootstrap` is the
    value after the last token: needed unless the trajectory terminated, where it is 0. ConfigError where it is missing,
    or a turn with a reward has no trainable token; RunFailed where a reward or value that counts is not finite.
    """
    where = np.flatnonzero(trajectory.mask)
    values, rewards, ends = np.asarray(values_T, np.float64), token_rewards(trajectory), turn_ends(trajectory)
    if values.shape != (len(trajectory),):
        raise ConfigError(f"there are {values.size} values for {len(trajectory)} tokens; give one a token")
    if extra_T is not None:
        rewards = rewards + np.where(trajectory.mask, np.asarray(extra_T, np.float64), 0.0)
    if trajectory.terminated:
        bootstrap = 0.0
    elif bootstrap is None:
        raise ConfigError("bootstrap is missing for a trajectory that did not terminate; give the value after it")
    for name, numbers in (("reward", rewards[where]), ("value", values[where]), ("bootstrap", np.array([bootstrap]))):
        if not np.isfinite(numbers).all():
            raise RunFailed(f"a {name} of a trajectory is not finite; leave a faulted episode out of the batch")
    found = gae(values[where], rewards[where], ends[where], gamma=gamma, lam=lam, bootstrap=bootstrap)
    advantages, returns = np.zeros(len(trajectory)), np.zeros(len(trajectory))
    advantages[where], returns[where] = found
    return TokenAdvantages(advantages, returns)


def token_rewards(trajectory: Trajectory) -> Floats:
    """A reward a token: each turn's on its last trainable token, 0 elsewhere; ConfigError where a turn has none."""
    rewards, mask = np.zeros(len(trajectory)), np.asarray(trajectory.mask, bool)
    for number, turn in enumerate(trajectory.turns):
        trainable = np.flatnonzero(mask[turn.start : turn.end])
        if trainable.size:
            rewards[turn.start + trainable[-1]] += turn.reward
        elif turn.reward:
            raise ConfigError(f"turn {number} has a reward and no trainable token; no gradient could reach it")
    return rewards


def turn_ends(trajectory: Trajectory) -> NDArray[np.bool_]:
    """[T]: True at the last trainable token of each turn."""
    ends, mask = np.zeros(len(trajectory), bool), np.asarray(trajectory.mask, bool)
    for turn in trajectory.turns:
        trainable = np.flatnonzero(mask[turn.start : turn.end])
        if trainable.size:
            ends[turn.start + trainable[-1]] = True
    return ends


def standardised(advantages: Sequence[Floats], masks: Sequence[ArrayLike]) -> list[Floats]:
    """Advantages of all trainable tokens of a batch shifted and scaled to mean 0 and (biased) deviation 1, 0 elsewhere.

    A batch of one trainable token, or of equal advantages, is left as it is: nothing could be scaled.
    """
    where = [np.asarray(mask, bool) for mask in masks]
    pooled = np.concatenate([row[mask] for row, mask in zip(advantages, where, strict=True)])
    if pooled.size < 2 or _constant(pooled):
        return [np.where(mask, row, 0.0) for row, mask in zip(advantages, where, strict=True)]
    mean, deviation = pooled.mean(), pooled.std() + 1e-8
    return [np.where(mask, (row - mean) / deviation, 0.0) for row, mask in zip(advantages, where, strict=True)]


def _grouped(returns_R: ArrayLike, groups_R: ArrayLike) -> tuple[Floats, list[NDArray[np.intp]]]:
    """The returns, and the rows of each group; ConfigError for shapes that differ, infinities and groups of one."""
    returns, groups = np.array(returns_R, np.float64), np.asarray(groups_R)
    if returns.ndim != 1 or returns.shape != groups.shape or not returns.size:
        raise ConfigError(f"returns have shape {returns.shape} and groups {groups.shape}; give one of each a row")
    if np.isinf(returns).any():
        raise ConfigError(f"the return of row {int(np.argmax(np.isinf(returns)))} is infinite; NaN marks a missing one")
    rows = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    for each in rows:
        if each.size < 2:
            raise ConfigError(
                f"group {groups[each[0]]} has one episode, which nothing can be compared with; "
                "sample at least two an update (rollout.group_size)"
            )
    return returns, rows


def _centred(returns_R: Floats, groups: Sequence[NDArray[np.intp]]) -> Floats:
    """Distances from the group's mean; exactly 0 in a constant group and for a missing return."""
    centred = np.zeros_like(returns_R)
    for rows in groups:
        present = rows[np.isfinite(returns_R[rows])]
        if present.size and not _constant(returns_R[present]):
            centred[present] = returns_R[present] - returns_R[present].mean()
    return centred


def _constant(values: Floats) -> bool:
    return bool(np.ptp(values) <= NOISE * np.abs(values).max())


def _deviation(values: Floats) -> float:
    """Unbiased, of those that are there; 0 for fewer than two."""
    present = values[np.isfinite(values)]
    return float(present.std(ddof=1)) if present.size > 1 else 0.0


def _reported(returns_R: Floats, groups: Sequence[NDArray[np.intp]], advantages_R: Floats) -> RowAdvantages:
    metrics: Mapping[str, Any] = {
        "advantage/missing": float(np.isnan(returns_R).mean()),
        "advantage/constant_groups": float(np.mean([not advantages_R[rows].any() for rows in groups])),
    }
    return RowAdvantages(advantages_R, dict(metrics))
