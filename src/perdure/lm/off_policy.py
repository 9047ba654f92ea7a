"""Losses on old conversations, corrected for the policy having changed since (V-trace)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from perdure.lm.objectives.advantages import token_rewards, turn_ends
from perdure.lm.replay import vtrace
from perdure.lm.trajectory import Trajectory


class Losses(NamedTuple):
    """Means over the chosen tokens of some conversations; scalars with gradients."""

    policy: Tensor
    """- rho A log pi."""
    critic: Tensor
    """(V - v)^2 / 2; 0 without a critic."""
    cloning: Tensor
    """log mu - log pi, whose gradient is an unbiased one of KL(mu || pi)."""
    values: Tensor
    """(V - V then)^2; 0 without a critic, or without values of then."""


def losses(
    scores: Any,
    rows: Sequence[Trajectory],
    then: Sequence[np.ndarray] | None = None,
    *,
    gamma: float,
    lam: float,
) -> Losses:
    """The losses on `rows`, which `scores` (lm.forward.Scores, with gradients) are of, row by row.

    `then` are the critic's values when the rows came in, one a token. Without values in `scores` policy and critic
    losses are 0: there would be nothing to compare the rewards with.
    """
    sums = [
        _of_row(scores, number, row, None if then is None else then[number], gamma, lam)
        for number, row in enumerate(rows)
    ]
    tokens = max(sum(int(np.sum(row.mask)) for row in rows), 1)
    return Losses(*(torch.stack(each).sum() / tokens for each in zip(*sums, strict=True)))


def _of_row(scores: Any, number: int, row: Trajectory, then: np.ndarray | None, gamma: float, lam: float) -> Losses:
    """Sums over one conversation's chosen tokens."""
    where = np.flatnonzero(row.mask)
    logprobs_T = scores.logprobs_BT[number, where]
    mu_T = _like([row.logprobs[at] for at in where.tolist()], logprobs_T)
    cloning, nothing = (mu_T - logprobs_T).sum(), logprobs_T.new_zeros(())
    if scores.values_BT is None:
        return Losses(nothing, nothing, cloning, nothing)
    values_T = scores.values_BT[number, where]
    found = vtrace(
        (logprobs_T - mu_T).detach().double().cpu().numpy(),
        values_T.detach().double().cpu().numpy(),
        token_rewards(row)[where],
        turn_ends(row)[where],
        bootstrap=0.0 if row.terminated else float(scores.final_values_B[number].detach()),
        gamma=gamma,
        lam=lam,
    )
    policy = -(_like(found.advantages_T, logprobs_T) * logprobs_T).sum()
    critic = 0.5 * (values_T - _like(found.targets_T, values_T)).square().sum()
    moved = nothing if then is None else (values_T - _like(then[where], values_T)).square().sum()
    return Losses(policy, critic, cloning, moved)


def _like(values: Sequence[float] | np.ndarray, tensor: Tensor) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=tensor.dtype, device=tensor.device)
