"""Divergence estimators, controllers and the correction for a sampler's rounding."""

import json
import math

import pytest
import torch

from perdure.core.errors import ConfigError, DataError
from perdure.lm.objectives import kl


def test_estimators_by_hand():
    p, q = torch.tensor([[math.log(0.5)]]), torch.tensor([[math.log(0.25)]])
    assert float(kl.k1(p, q)) == pytest.approx(math.log(2))
    assert float(kl.k2(p, q)) == pytest.approx(math.log(2) ** 2 / 2)
    assert float(kl.k3(p, q)) == pytest.approx(0.5 - 1 + math.log(2))


def test_k1_and_k3_are_unbiased_and_k2_has_the_gradient():
    """Summed over a small vocabulary with the policy's probabilities."""
    logits = torch.tensor([0.3, -0.2, 1.1], dtype=torch.float64, requires_grad=True)
    p, q = logits.log_softmax(-1), torch.tensor([0.1, 0.5, -0.4], dtype=torch.float64).log_softmax(-1)
    exact = (p.exp() * (p - q)).sum()
    weights = p.exp().detach()
    for name in ("k1", "k3"):
        assert (weights * kl.ESTIMATORS[name](p, q)).sum().item() == pytest.approx(exact.item())
    (gradient,) = torch.autograd.grad(exact, logits, retain_graph=True)
    (of_k2,) = torch.autograd.grad((weights * kl.k2(p, q)).sum(), logits, retain_graph=True)
    (of_k1,) = torch.autograd.grad((weights * kl.k1(p, q)).sum(), logits)
    torch.testing.assert_close(of_k2, gradient)
    torch.testing.assert_close(of_k1, torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("name", kl.ESTIMATORS)
def test_masked_positions_may_hold_nan_and_the_reference_is_constant(name):
    p = torch.tensor([[math.nan, -1.0]], requires_grad=True)
    q = torch.tensor([[math.nan, -2.0]], requires_grad=True)
    found = kl.estimate(name, p, q, torch.tensor([[False, True]]))
    found.sum().backward()
    assert found[0, 0] == 0
    assert p.grad[0, 0] == 0
    assert p.grad[0, 1] != 0
    assert q.grad is None


def test_importance_weights_are_capped_and_constant():
    trainer = torch.tensor([[math.nan, -1.0, -1.0]], requires_grad=True)
    sampler = torch.tensor([[0.0, -1.5, -4.0]])
    found = kl.importance_weights(trainer, sampler, torch.tensor([[False, True, True]]), cap=2.0)
    assert not found.requires_grad
    assert found.tolist()[0] == pytest.approx([1.0, math.exp(0.5), 2.0])
    with pytest.raises(ConfigError, match=r"importance_cap is 0\.5"):
        kl.importance_weights(trainer, sampler, torch.tensor([[False, True, True]]), cap=0.5)


def test_mismatch_metrics_by_hand():
    mask = torch.tensor([[False, True, True]])
    found = kl.mismatch_metrics(torch.tensor([[math.nan, -1.0, -2.0]]), torch.tensor([[0.0, -1.5, -1.75]]), mask)
    assert found == {"sampler/mean_difference": 0.375, "sampler/largest_difference": 0.5}
    assert set(kl.mismatch_metrics(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1).bool()).values()) == {0.0}


def test_a_fixed_weight_stays():
    controller = kl.FixedKL(0.3)
    controller.update(100.0, 5)
    assert controller.coefficient == 0.3
    controller.load_state_dict({"coefficient": 0.4})
    assert controller.state_dict() == {"coefficient": 0.4}
    with pytest.raises(ConfigError, match="kl_coefficient is -1"):
        kl.FixedKL(-1)


@pytest.mark.parametrize(
    ("measured", "factor"), [(0.1, 1.0), (0.11, 1 + 0.1 * 0.5), (10.0, 1 + 0.2 * 0.5), (0.0, 1 - 0.2 * 0.5)]
)
def test_zieglers_law_by_hand(measured, factor):
    controller = kl.AdaptiveKL(0.2, target=0.1, horizon=100)
    controller.update(measured, samples=50)
    assert controller.coefficient == pytest.approx(0.2 * factor)


def test_log_law_by_hand():
    law = kl.Law(kind="log", warmup=0, smoothing=0.0)
    for measured, factor in (
        (0.1 * math.e**0.5, math.exp(0.05)),
        (10.0, math.exp(0.1)),
        (0.0, math.exp(-0.1)),
        (0.105, 1),
    ):
        controller = kl.AdaptiveKL(0.2, target=0.1, law=law)
        controller.update(measured)
        assert controller.coefficient == pytest.approx(0.2 * factor)


def test_log_law_waits_and_smooths():
    controller = kl.AdaptiveKL(0.2, target=0.1, law=kl.Law(kind="log", warmup=2, smoothing=0.5))
    for measured in (1.0, 3.0):
        controller.update(measured)
    assert (controller.coefficient, controller.mean) == (0.2, 2.0)
    controller.update(3.0)
    assert controller.coefficient == pytest.approx(0.2 * math.exp(0.1))


def test_driftcall_law_by_hand():
    law = kl.Law(kind="driftcall", low=1e-3, high=1.0)
    controller = kl.AdaptiveKL(0.04, target=0.04, law=law)
    controller.update(0.0)
    assert controller.coefficient == pytest.approx(0.04 * math.exp(-2))
    controller.update(4.0)
    assert (controller.coefficient, controller.clamped) == (1.0, 1)


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -0.1])
@pytest.mark.parametrize("kind", ["ziegler", "log", "driftcall"])
def test_a_measurement_that_says_nothing_changes_nothing(kind, nonsense):
    controller = kl.AdaptiveKL(0.2, target=0.1, law=kl.Law(kind=kind, warmup=0))
    controller.update(nonsense, samples=10**9)
    assert controller.state_dict() == {"coefficient": 0.2, "mean": 0.0, "updates": 0, "skipped": 1, "clamped": 0}


@pytest.mark.parametrize("gain", [0.003, 0.01, 0.03])
def test_the_log_law_settles_a_plant(gain):
    """The divergence follows gain / weight with a lag; gains over a decade settle within 20 % in 60 updates."""
    controller, measured, reached = kl.AdaptiveKL(0.1, target=0.1, law=kl.Law(kind="log")), 0.0, []
    for _ in range(90):
        measured += 0.5 * (gain / controller.coefficient - measured)
        controller.update(measured)
        reached.append(measured)
    assert all(0.08 <= each <= 0.12 for each in reached[60:])


@pytest.mark.parametrize("kind", ["ziegler", "log", "driftcall"])
def test_a_controller_goes_on_where_it_was(kind):
    make = lambda: kl.AdaptiveKL(0.2, target=0.1, law=kl.Law(kind=kind, horizon=10, warmup=1, low=1e-3, high=1.0))
    measured = [0.3, 0.05, float("nan"), 0.2, 0.9, 0.01]
    whole, first = make(), make()
    for each in measured:
        whole.update(each, 3)
    for each in measured[:3]:
        first.update(each, 3)
    second = make()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for each in measured[3:]:
        second.update(each, 3)
    assert second.state_dict() == whole.state_dict()


def test_refusals():
    with pytest.raises(ConfigError, match="kind is 'pid'"):
        kl.Law(kind="pid")
    with pytest.raises(ConfigError, match="low is 2"):
        kl.Law(low=2.0, high=1.0)
    for field, value in (("horizon", 0), ("smoothing", 1.0), ("rate", -1.0), ("warmup", -1)):
        with pytest.raises(ConfigError, match=f"{field} is"):
            kl.Law(**{field: value})
    with pytest.raises(ConfigError, match="kl_target is 0"):
        kl.AdaptiveKL(0.1, target=0.0)
    with pytest.raises(ConfigError, match="kl_coefficient is 0"):
        kl.AdaptiveKL(0.0, target=0.1)
    with pytest.raises(DataError, match="KL controller holds"):
        kl.AdaptiveKL(0.1, target=0.1).load_state_dict({"coefficient": 1.0})
