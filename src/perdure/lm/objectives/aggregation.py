"""From a loss a token to one number: weights a token whose denominators are those of the whole update.

`count` looks at the whole batch of an update once; its denominators go with every micro-batch. Sums over
micro-batches of weighted losses are then the batch's loss, however it was cut and padded.
Weights are float64. B rows, T tokens.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from perdure.core.errors import ConfigError, RunFailed

Tensor = torch.Tensor
Pooled = Callable[[list[float]], list[float]]


class Denominators(NamedTuple):
    """What an update's loss is divided by; only what has a trainable token counts."""

    tokens: float
    rows: float
    turns: float


def count(mask_BT: Tensor, turns_BT: Tensor | None = None, *, pooled: Pooled | None = None) -> Denominators:
    """Trainable tokens, and the rows and turns that have any; `turns_BT` holds each token's turn, -1 outside turns.

    `pooled` adds the numbers up over processes that train together. RunFailed without a trainable token anywhere: an
    update on nothing would divide by 0.
    """
    turns = 0.0 if turns_BT is None else float((_tokens_per_turn(mask_BT, turns_BT) > 0).sum())
    numbers = [float(mask_BT.sum()), float(mask_BT.any(-1).sum()), turns]
    denominators = Denominators(*(numbers if pooled is None else pooled(numbers)))
    if not denominators.tokens:
        raise RunFailed("no token of the batch is trainable; check the masks of its trajectories")
    return denominators


def token_mean(mask_BT: Tensor, denominators: Denominators, turns_BT: Tensor | None = None) -> Tensor:
    """1 / trainable tokens of the batch: every token counts the same (DAPO, arXiv 2503.14476, eq. 8)."""
    return mask_BT.double() / denominators.tokens


def sequence_mean(mask_BT: Tensor, denominators: Denominators, turns_BT: Tensor | None = None) -> Tensor:
    """1 / (rows x the row's trainable tokens): every sequence counts the same (GRPO, arXiv 2402.03300, eq. 3)."""
    return mask_BT.double() / mask_BT.sum(-1, keepdim=True).clamp(min=1) / denominators.rows


def constant(mask_BT: Tensor, denominators: Denominators, turns_BT: Tensor | None = None, *, length: int) -> Tensor:
    """1 / (rows x `length`): no length of an answer is favoured (Dr. GRPO, arXiv 2503.20783); its max_new_tokens."""
    if length < 1:
        raise ConfigError(f"length is {length}; it is the most tokens a row may have been asked for, at least 1")
    return mask_BT.double() / (denominators.rows * length)


def turn_mean(mask_BT: Tensor, denominators: Denominators, turns_BT: Tensor | None = None) -> Tensor:
    """1 / (turns x the turn's trainable tokens): every turn counts the same."""
    if turns_BT is None or not denominators.turns:
        raise ConfigError("turn_mean needs the turn of each token; give turns_BT to it and to count")
    per_turn_BK = _tokens_per_turn(mask_BT, turns_BT).clamp(min=1)
    return mask_BT.double() / per_turn_BK.gather(-1, turns_BT.clamp(min=0)) / denominators.turns


def total(values_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """The weighted sum; a token of weight 0 counts for nothing, whatever its value."""
    return (torch.where(weights_BT > 0, values_BT, torch.zeros((), dtype=values_BT.dtype)) * weights_BT).sum()


def _tokens_per_turn(mask_BT: Tensor, turns_BT: Tensor) -> Tensor:
    """[B, turns]: trainable tokens of each turn; RunFailed where one lies outside every turn."""
    if bool((mask_BT & (turns_BT < 0)).any()):
        raise RunFailed("a trainable token belongs to no turn; check the turns of the trajectories")
    slots = int(turns_BT.max()) + 1 if turns_BT.numel() else 1
    counts_BK = torch.zeros(mask_BT.shape[0], max(slots, 1), dtype=torch.long, device=mask_BT.device)
    return counts_BK.scatter_add_(-1, turns_BT.clamp(min=0), mask_BT.long())
