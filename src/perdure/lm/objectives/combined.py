"""The loss of a micro-batch: policy, critic, entropy and divergence, each over the whole update's denominators."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from perdure.core.errors import ConfigError
from perdure.lm.objectives import aggregation, kl, losses
from perdure.lm.objectives.table import AGGREGATIONS, LOSSES, Objective
from perdure.lm.packing import Batch

Tensor = torch.Tensor
LARGEST = "largest_ratio"


class Combined(NamedTuple):
    """A micro-batch's part of the update's loss."""

    loss: Tensor
    """A scalar; the sum over micro-batches is the update's loss."""
    sums: dict[str, Tensor]
    """What `metrics` needs, to be added up (`largest_ratio`: the maximum), without gradient."""


def combined(
    objective: Objective,
    batch: Batch,
    denominators: aggregation.Denominators,
    logprobs_BT: Tensor,
    *,
    values_BT: Tensor | None = None,
    entropy_BT: Tensor | None = None,
    kl_coefficient: float = 0.0,
) -> Combined:
    """The loss of the rows of `batch` under fresh log-probabilities (and values and entropies where they count).

    Policy loss and divergence are aggregated as the objective says; the critic's loss and the entropy are means over
    the update's trainable tokens.
    """
    mask_BT = batch.mask_BT
    aggregate = AGGREGATIONS[objective.aggregation]
    weights_BT = aggregate(mask_BT, denominators, batch.turns_BT, **objective.given("aggregation"))
    even_BT = aggregation.token_mean(mask_BT, denominators)
    policy_BT = LOSSES[objective.loss](
        logprobs_BT, batch.old_BT, batch.advantages_BT, mask_BT, **objective.given("loss")
    )
    if batch.importance_BT is not None:
        policy_BT = policy_BT * torch.where(mask_BT, batch.importance_BT, 1.0)
    parts = {"policy": aggregation.total(policy_BT, weights_BT)}
    loss = parts["policy"]
    if objective.kl == "loss":
        divergence_BT = _divergence(objective, batch, logprobs_BT)
        loss = loss + kl_coefficient * aggregation.total(divergence_BT, weights_BT)
        parts["kl"] = aggregation.total(divergence_BT, even_BT)
    if objective.needs_values and objective.value_coefficient:
        parts["value"] = aggregation.total(_value_loss(objective, batch, values_BT), even_BT)
        loss = loss + objective.value_coefficient * parts["value"]
    if objective.entropy_coefficient:
        if entropy_BT is None:
            raise ConfigError("entropy_BT is missing; entropy_coefficient needs the policy's entropies")
        parts["entropy"] = aggregation.total(entropy_BT, even_BT)
        loss = loss - objective.entropy_coefficient * parts["entropy"]
    sums = {name: part.detach().double() for name, part in parts.items()}
    return Combined(loss, sums | _ratios(objective, batch, logprobs_BT))


def names(objective: Objective) -> tuple[str, ...]:
    """The sums that every micro-batch under an objective leaves."""
    found = ["policy", *(f"ratio/{name}" for name in ("tokens", "ratio", "ratio_squared", "kl")), LARGEST]
    found += [f"ratio/{side}" for side in ("low", "high") if objective.default("loss", f"clip_{side}") is not None]
    if objective.kl == "loss":
        found.append("kl")
    if objective.needs_values and objective.value_coefficient:
        found.append("value")
    return (*found, "entropy") if objective.entropy_coefficient else tuple(found)


def added(objective: Objective, parts: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    """The sums of micro-batches as one; zeros of none."""
    totals = dict.fromkeys(names(objective), 0.0)
    for part in parts:
        for name in totals:
            value = float(part[name])
            totals[name] = max(totals[name], value) if name == LARGEST else totals[name] + value
    return totals


def metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Of an update's sums: loss/policy, loss/value (before its coefficient), policy/kl (to the reference, nats a
    token), policy/entropy (nats a token), and those of `losses.ratio_metrics`."""
    titles = {"policy": "loss/policy", "value": "loss/value", "kl": "policy/kl", "entropy": "policy/entropy"}
    found = {title: sums[name] for name, title in titles.items() if name in sums}
    return found | losses.ratio_metrics({name.removeprefix("ratio/"): value for name, value in sums.items()})


def _ratios(objective: Objective, batch: Batch, logprobs_BT: Tensor) -> dict[str, Tensor]:
    sums = losses.ratio_sums(
        logprobs_BT,
        batch.old_BT,
        batch.advantages_BT,
        batch.mask_BT,
        clip_low=objective.default("loss", "clip_low"),
        clip_high=objective.default("loss", "clip_high"),
    )
    return {name if name == LARGEST else f"ratio/{name}": value for name, value in sums.items()}


def _divergence(objective: Objective, batch: Batch, logprobs_BT: Tensor) -> Tensor:
    if batch.reference_BT is None:
        raise ConfigError("reference_BT is missing; kl 'loss' needs the reference's log-probabilities")
    divergence_BT = kl.estimate(objective.estimator, logprobs_BT, batch.reference_BT, batch.mask_BT)
    if not objective.kl_importance:
        return divergence_BT
    log_ratio_BT = torch.where(batch.mask_BT, logprobs_BT - batch.old_BT, torch.zeros((), dtype=logprobs_BT.dtype))
    return divergence_BT * log_ratio_BT.exp()


def _value_loss(objective: Objective, batch: Batch, values_BT: Tensor | None) -> Tensor:
    if values_BT is None or batch.returns_BT is None:
        raise ConfigError("values_BT or returns_BT are missing; the critic's loss compares them")
    return losses.value_loss(
        values_BT, batch.returns_BT, batch.mask_BT, old_values_BT=batch.old_values_BT, clip=objective.value_clip
    )
