"""Losses a token against an independent writing in NumPy, token by token, and their gradients against differences."""

import math

import numpy as np
import pytest
import torch

from perdure.core.errors import ConfigError
from perdure.lm.objectives import losses
from perdure.lm.objectives.table import LOSSES

B, T = 4, 6
MASK = torch.tensor([[0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0]]).bool()
OPTIONS = {
    "reinforce": {},
    "ppo": {"clip_low": 0.1, "clip_high": 0.3},
    "dual_clip": {"clip_low": 0.1, "clip_high": 0.3, "ratio_bound": 1.5},
    "sequence_mean": {"clip_low": 0.1, "clip_high": 0.2},
    "gspo": {"clip_low": 0.1, "clip_high": 0.2},
    "cispo": {"ratio_cap": 1.2},
    "sapo": {"temperature_positive": 1.0, "temperature_negative": 2.0},
}


@pytest.fixture
def tensors():
    """log-probabilities, old ones, advantages [B, T] in float64; ratios from about 0.4 to 2.5."""
    draw = torch.Generator().manual_seed(3)
    logprobs = -torch.rand(B, T, generator=draw, dtype=torch.float64) * 2
    old = logprobs + torch.randn(B, T, generator=draw, dtype=torch.float64) * 0.4
    return logprobs, old, torch.randn(B, T, generator=draw, dtype=torch.float64)


def by_hand(name, logp, old, advantage, row_log_ratio, options):
    """The loss of one token in plain floats."""
    ratio = math.exp(logp - old)
    low, high = 1 - options.get("clip_low", 0), 1 + options.get("clip_high", 0)
    if name == "reinforce":
        return -advantage * logp
    if name in ("sequence_mean", "gspo"):
        ratio = math.exp(row_log_ratio)
    if name == "cispo":
        return -min(ratio, options["ratio_cap"]) * advantage * logp
    if name == "sapo":
        t = options["temperature_positive"] if advantage > 0 else options["temperature_negative"]
        return -advantage * 4 / t / (1 + math.exp(-t * (ratio - 1)))
    clipped = -min(ratio * advantage, min(max(ratio, low), high) * advantage)
    return min(clipped, -options["ratio_bound"] * advantage) if name == "dual_clip" and advantage < 0 else clipped


def test_every_loss_is_tested():
    assert OPTIONS.keys() == LOSSES.keys()


@pytest.mark.parametrize("name", OPTIONS)
def test_each_loss_equals_its_equation(name, tensors):
    logprobs, old, advantages = tensors
    found = LOSSES[name](logprobs, old, advantages, MASK, **OPTIONS[name])
    for b in range(B):
        where = MASK[b].nonzero()[:, 0].tolist()
        mean = float(np.mean([logprobs[b, t] - old[b, t] for t in where]))
        for t in range(T):
            numbers = (float(logprobs[b, t]), float(old[b, t]), float(advantages[b, t]))
            expected = by_hand(name, *numbers, mean, OPTIONS[name]) if t in where else 0.0
            assert float(found[b, t]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_advantage_a_row_spreads_over_its_tokens(name, tensors):
    logprobs, old, _ = tensors
    row = torch.tensor([1.0, -1.0, 0.5, -0.5], dtype=torch.float64)
    found = LOSSES[name](logprobs, old, row, MASK, **OPTIONS[name])
    spread = LOSSES[name](logprobs, old, row[:, None].expand(B, T), MASK, **OPTIONS[name])
    assert torch.equal(found, spread)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_masked_positions_may_hold_anything(name, tensors, poison):
    clean = [each.clone() for each in tensors]
    dirty = [torch.where(MASK, each, poison) for each in tensors]
    results = []
    for logprobs, old, advantages in (clean, dirty):
        logprobs.requires_grad_()
        loss = LOSSES[name](logprobs, old, advantages, MASK, **OPTIONS[name])
        loss.sum().backward()
        results.append((loss.detach(), logprobs.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert not results[1][1][~MASK].any()


@pytest.mark.parametrize("name", OPTIONS)
def test_the_first_gradient_is_the_policy_gradient(name, tensors):
    """Where nothing has moved yet the ratio is 1, and every loss climbs A log p."""
    logprobs, _, _ = tensors
    advantages = torch.tensor([1.0, -2.0, 0.5, -0.5], dtype=torch.float64)
    logprobs = logprobs.clone().requires_grad_()
    loss = LOSSES[name](logprobs, logprobs.detach(), advantages, MASK, **OPTIONS[name])
    (loss.sum(-1) / MASK.sum(-1)).sum().backward()
    expected = torch.where(MASK, -advantages[:, None] / MASK.sum(-1, keepdim=True), 0)
    torch.testing.assert_close(logprobs.grad, expected)


@pytest.mark.parametrize("name", ["reinforce", "ppo", "dual_clip", "sequence_mean", "sapo"])
def test_gradients_are_those_of_the_value(name, tensors):
    logprobs, old, advantages = tensors

    def value(x):
        return LOSSES[name](x, old, advantages, MASK, **OPTIONS[name])

    assert torch.autograd.gradcheck(value, (logprobs.clone().requires_grad_(),), atol=1e-6)


def test_gspo_has_the_gradient_of_the_sequence_ratio(tensors):
    logprobs, old, _ = tensors
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5], dtype=torch.float64)
    gradients = []
    for name in ("gspo", "sequence_mean"):
        x = logprobs.clone().requires_grad_()
        (LOSSES[name](x, old, advantages, MASK, clip_low=0.3, clip_high=0.3).sum(-1) / MASK.sum(-1)).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
    assert gradients[0].any()


def test_gspo_gives_each_token_the_gradient_of_its_own_advantage():
    x = torch.tensor([[-1.0, -1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False, True, True]])
    losses.gspo(x, x.detach(), torch.tensor([[0.0, 1.0, -3.0]]), mask).sum().backward()
    assert x.grad.tolist() == [[0, -1, 3]]


def test_cispo_keeps_the_gradient_of_a_token_past_the_cap():
    x = torch.tensor([[0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    loss = losses.cispo(x, torch.tensor([[0.0, -3.0]]), torch.ones(1, 2), torch.tensor([[False, True]]), ratio_cap=2.0)
    loss.sum().backward()
    assert x.grad.tolist() == [[0, -2.0]]


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "gradient"),
    [(1.5, 1.0, -1.2, 0), (0.5, 1.0, -0.5, -0.5), (0.5, -1.0, 0.8, 0), (1.5, -1.0, 1.5, 1.5), (9.0, -1.0, 9.0, 9.0)],
)
def test_ppo_by_hand(ratio, advantage, expected, gradient):
    x = torch.tensor([[0.0, math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False, True]])
    loss = losses.ppo(x, torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[0.0, advantage]]), mask)
    loss.sum().backward()
    assert loss.tolist()[0] == pytest.approx([0, expected])
    assert x.grad.tolist()[0] == pytest.approx([0, gradient])


def test_dual_clip_stops_the_gradient_of_a_token_gone_wrong():
    x = torch.tensor([[0.0, math.log(9.0)]], dtype=torch.float64, requires_grad=True)
    loss = losses.dual_clip(
        x, torch.zeros(1, 2, dtype=torch.float64), -torch.ones(1, 2).double(), torch.tensor([[False, True]])
    )
    loss.sum().backward()
    assert loss.tolist() == [[0, 3.0]]
    assert x.grad.tolist() == [[0, 0]]


def test_numbers_that_make_no_loss_are_refused(tensors):
    with pytest.raises(ConfigError, match=r"ratio_bound is 1\.1"):
        losses.dual_clip(*tensors, MASK, ratio_bound=1.1)
    with pytest.raises(ConfigError, match="temperature_negative is 0"):
        losses.sapo(*tensors, MASK, temperature_negative=0)


def test_value_loss_by_hand():
    mask = torch.tensor([[False, True, True]])
    values, returns = torch.tensor([[math.nan, 1.0, 4.0]]), torch.tensor([[math.nan, 3.0, 3.0]])
    assert losses.value_loss(values, returns, mask).tolist() == [[0, 2.0, 0.5]]
    old = torch.tensor([[math.nan, 0.5, 3.5]])
    # Clipped values: 0.5 + 0.25 = 0.75 and 3.5 + 0.25 = 3.75; the larger error counts.
    assert losses.value_loss(values, returns, mask, old_values_BT=old, clip=0.25).tolist()[0] == pytest.approx(
        [0, 0.5 * 2.25**2, 0.5]
    )
    with pytest.raises(ConfigError, match="value_clip needs"):
        losses.value_loss(values, returns, mask, clip=0.25)


def test_ratio_metrics_by_hand():
    mask = torch.tensor([[False, True, True, True]])
    ratios = torch.tensor([[99.0, 1.0, 2.0, 0.5]], dtype=torch.float64)
    advantages = torch.tensor([[1.0, 1.0, 1.0, -1.0]])
    sums = losses.ratio_sums(ratios.log(), torch.zeros(1, 4).double(), advantages, mask, clip_low=0.2, clip_high=0.2)
    found = losses.ratio_metrics({name: float(value) for name, value in sums.items()})
    assert found == {
        "policy/ratio_mean": pytest.approx(3.5 / 3),
        "policy/ratio_max": pytest.approx(2.0),
        "policy/approximate_kl": pytest.approx((1 - math.log(2) + (0.5 - 1 + math.log(2))) / 3),
        "policy/effective_sample_size": pytest.approx(3.5**2 / (3 * 5.25)),
        "policy/clip_fraction_low": pytest.approx(1 / 3),
        "policy/clip_fraction_high": pytest.approx(1 / 3),
    }


def test_a_clip_counts_only_where_it_acts():
    """A good token that became less likely, or a bad one that became likelier, keeps its gradient."""
    mask, ratios = torch.ones(1, 2).bool(), torch.tensor([[2.0, 0.5]])
    sums = losses.ratio_sums(
        ratios.log(), torch.zeros(1, 2), torch.tensor([[-1.0, 1.0]]), mask, clip_low=0.2, clip_high=0.2
    )
    assert (float(sums["low"]), float(sums["high"])) == (0, 0)
