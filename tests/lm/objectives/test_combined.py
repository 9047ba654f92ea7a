"""The whole loss of an update: each part's weight, and invariance to micro-batches, padding and masked NaN."""

import dataclasses
import math

import pytest
import torch

from perdure.core.errors import ConfigError
from perdure.lm import packing
from perdure.lm.objectives import aggregation, combined, losses
from perdure.lm.objectives.table import AGGREGATIONS, LOSSES, RECIPES, Objective
from perdure.lm.packing import Batch

B, T = 5, 7
EVERYTHING = Objective(
    "gae",
    "ppo",
    "turn_mean",
    old_logprobs="trainer",
    importance_cap=2.0,
    kl="loss",
    kl_coefficient=0.1,
    kl_importance=True,
    entropy_coefficient=0.3,
    value_coefficient=0.7,
    value_clip=0.2,
)


def make_batch(seed=0):
    """Random rows of 3 to 7 tokens, of which the first is a prompt; NaN past their ends."""
    draw = torch.Generator().manual_seed(seed)
    number = lambda: torch.randn(B, T, generator=draw, dtype=torch.float64)
    lengths = torch.tensor([7, 3, 5, 4, 6])
    real = torch.arange(T) < lengths[:, None]
    mask = real & (torch.rand(B, T, generator=draw) < 0.7) & (torch.arange(T) > 0)
    mask[:, 1] = True
    hidden = lambda values: torch.where(real, values, math.nan)
    old = hidden(-number().abs())
    return Batch(
        ids_BT=torch.ones(B, T).long(),
        lengths_B=lengths,
        mask_BT=mask,
        turns_BT=torch.where(real, torch.arange(T).div(3, rounding_mode="floor"), -1).expand(B, T),
        sampler_BT=old,
        old_BT=old,
        advantages_BT=hidden(number()),
        returns_BT=hidden(number()),
        old_values_BT=hidden(number()),
        reference_BT=hidden(old + 0.2 * number()),
        importance_BT=hidden(number().abs()),
    ), (hidden(old + 0.3 * number()), hidden(number()), hidden(number().abs()))


def value_and_gradients(objective, batch, fresh, rows=None):
    """The loss summed over micro-batches of the given rows, its gradients, and the metrics."""
    denominators = aggregation.count(batch.mask_BT, batch.turns_BT)
    leaves = [each.clone().requires_grad_() for each in fresh]
    total, sums = 0.0, []
    for index in rows or [list(range(B))]:
        part = packing.take(batch, index)
        cut = [each[index][:, : part.ids_BT.shape[1]] for each in leaves]
        found = combined.combined(
            objective, part, denominators, cut[0], values_BT=cut[1], entropy_BT=cut[2], kl_coefficient=0.1
        )
        total, sums = total + found.loss, [*sums, found.sums]
    total.backward()
    metrics = combined.metrics(combined.added(objective, sums))
    return total.detach(), [each.grad for each in leaves], metrics


def objectives():
    yield pytest.param(EVERYTHING, id="everything")
    for name, recipe in RECIPES.items():
        yield pytest.param(recipe, id=name)
    for name in LOSSES:
        mean = "sequence_mean"
        yield pytest.param(Objective("dr_grpo", name, mean), id=f"loss-{name}")
    for name in AGGREGATIONS:
        yield pytest.param(Objective(aggregation=name, length=9 if name == "constant" else None), id=f"sum-{name}")


@pytest.mark.parametrize("objective", list(objectives()))
def test_micro_batches_change_nothing(objective):
    batch, fresh = make_batch()
    whole, gradients, metrics = value_and_gradients(objective, batch, fresh)
    assert math.isfinite(whole)
    for rows in ([[0], [1], [2], [3], [4]], [[4, 1], [3, 0, 2]], packing.plan(batch.lengths_B.tolist(), 10)):
        found, others, measured = value_and_gradients(objective, batch, fresh, rows)
        torch.testing.assert_close(found, whole, atol=1e-12, rtol=1e-10)
        for mine, theirs in zip(gradients, others, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-10)
        assert measured == pytest.approx(metrics)


@pytest.mark.parametrize("objective", list(objectives()))
def test_nothing_masked_leaks(objective):
    """NaN past the rows' ends leaves finite gradients, 0 where masked; numbers in its place change nothing."""
    batch, fresh = make_batch()
    whole, gradients, _ = value_and_gradients(objective, batch, fresh)
    clean = batch._replace(
        **{
            name: torch.nan_to_num(each)
            for name, each in batch._asdict().items()
            if each is not None and each.is_floating_point()
        }
    )
    found, others, _ = value_and_gradients(objective, clean, [torch.nan_to_num(each) for each in fresh])
    assert torch.equal(found, whole)
    for mine, theirs in zip(gradients, others, strict=True):
        if mine is not None:
            assert torch.equal(mine, theirs)
            assert not mine[~batch.mask_BT].any()


def test_padding_changes_nothing():
    batch, fresh = make_batch()
    whole, gradients, _ = value_and_gradients(EVERYTHING, batch, fresh)
    pad = lambda each, value: torch.nn.functional.pad(each, (0, 3), value=value)
    wide = batch._replace(
        **{
            name: each if name == "lengths_B" else pad(each, -1 if name == "turns_BT" else 0)
            for name, each in batch._asdict().items()
        }
    )
    denominators = aggregation.count(wide.mask_BT, wide.turns_BT)
    leaves = [pad(each, 0.0).requires_grad_() for each in fresh]
    found = combined.combined(
        EVERYTHING, wide, denominators, leaves[0], values_BT=leaves[1], entropy_BT=leaves[2], kl_coefficient=0.1
    ).loss
    found.backward()
    torch.testing.assert_close(found.detach(), whole, atol=1e-12, rtol=1e-10)
    for mine, theirs in zip(gradients, leaves, strict=True):
        torch.testing.assert_close(torch.nan_to_num(theirs.grad[:, :T]), mine, atol=1e-12, rtol=1e-10)


def test_every_part_by_hand():
    """One row of two trainable tokens, each part computed in plain floats."""
    mask = torch.tensor([[False, True, True]])
    three = lambda *values: torch.tensor([[math.nan, *values]], dtype=torch.float64)
    batch = Batch(
        ids_BT=torch.ones(1, 3).long(),
        lengths_B=torch.tensor([3]),
        mask_BT=mask,
        turns_BT=torch.tensor([[-1, 0, 0]]),
        sampler_BT=three(-1.0, -1.0),
        old_BT=three(-1.0, -1.0),
        advantages_BT=three(2.0, -1.0),
        returns_BT=three(1.0, 1.0),
        old_values_BT=three(0.0, 0.0),
        reference_BT=three(-1.0, -1.5),
        importance_BT=three(0.5, 1.5),
    )
    logprobs, values, entropy = three(-1.0 + math.log(1.1), -1.0), three(0.5, 3.0), three(0.6, 0.8)
    objective = dataclasses.replace(EVERYTHING, aggregation="token_mean")
    found = combined.combined(
        objective,
        batch,
        aggregation.count(mask, batch.turns_BT),
        logprobs,
        values_BT=values,
        entropy_BT=entropy,
        kl_coefficient=0.25,
    )
    policy = (0.5 * -1.1 * 2 + 1.5 * 1.0) / 2
    k3 = lambda d: math.exp(d) - d - 1
    divergence = (1.1 * k3(-math.log(1.1)) + 1.0 * k3(-0.5)) / 2
    # Clipped values are 0.2 and 0.2: errors 0.8 and 0.8 against 0.5 and 2; the larger one counts.
    value = 0.5 * (0.8**2 + 2.0**2) / 2
    expected = policy + 0.25 * divergence + 0.7 * value - 0.3 * 0.7
    assert found.loss.item() == pytest.approx(expected)
    metrics = combined.metrics(combined.added(objective, [found.sums]))
    assert metrics["loss/policy"] == pytest.approx(policy)
    assert metrics["loss/value"] == pytest.approx(value)
    assert metrics["policy/kl"] == pytest.approx(divergence)
    assert metrics["policy/entropy"] == pytest.approx(0.7)
    assert metrics["policy/ratio_mean"] == pytest.approx(1.05)


def test_policy_and_divergence_share_the_objectives_weights():
    batch, fresh = make_batch()
    objective = Objective(aggregation="constant", length=50, kl="loss", kl_coefficient=0.1)
    found, _, metrics = value_and_gradients(objective, batch, fresh)
    share = float(batch.mask_BT.sum()) / (B * 50)
    assert float(found) == pytest.approx(metrics["loss/policy"] + 0.1 * share * metrics["policy/kl"])


def test_the_sums_are_those_that_are_announced():
    batch, fresh = make_batch()
    for objective in (EVERYTHING, *RECIPES.values()):
        found = combined.combined(
            objective,
            batch,
            aggregation.count(batch.mask_BT, batch.turns_BT),
            fresh[0],
            values_BT=fresh[1],
            entropy_BT=fresh[2],
        )
        assert set(found.sums) == set(combined.names(objective))
        assert set(combined.added(objective, [])) == set(found.sums)


def test_a_zero_advantage_has_exactly_no_gradient():
    batch, fresh = make_batch()
    batch = batch._replace(advantages_BT=torch.zeros(B, T, dtype=torch.float64))
    for name in LOSSES:
        _, gradients, _ = value_and_gradients(Objective("dr_grpo", name, "sequence_mean"), batch, fresh)
        assert not gradients[0].any()


def test_what_is_missing_is_named():
    batch, fresh = make_batch()
    denominators = aggregation.count(batch.mask_BT, batch.turns_BT)
    with pytest.raises(ConfigError, match="values_BT or returns_BT"):
        combined.combined(EVERYTHING, batch, denominators, fresh[0], entropy_BT=fresh[2])
    with pytest.raises(ConfigError, match="entropy_BT is missing"):
        combined.combined(EVERYTHING, batch, denominators, fresh[0], values_BT=fresh[1])
    with pytest.raises(ConfigError, match="reference_BT is missing"):
        combined.combined(EVERYTHING, batch._replace(reference_BT=None), denominators, fresh[0])
    with pytest.raises(ConfigError, match="old_values_BT"):
        losses.value_loss(fresh[1], batch.returns_BT, batch.mask_BT, clip=0.1)
