import math

import pytest
import torch

from perdure.core.errors import ConfigError
from perdure.lm import penalties
from perdure.lm.batch import TokenBatch
from perdure.lm.extensions.anchors import L2Anchor, L2Init, PreviousPolicy
from perdure.trainers.ppo import PPOBackend


@pytest.fixture
def backend(letters, stage):
    return stage.Plain(letters.policy())


def moved(backend, by=0.01):
    with torch.no_grad():
        for parameter in backend.named_parameters().values():
            parameter += by


def test_a_pull_is_a_weighted_squared_distance():
    parameters = {"a": torch.nn.Parameter(torch.tensor([1.0, 2.0])), "b": torch.nn.Parameter(torch.tensor([3.0]))}
    anchor = {"a": torch.tensor([0.0, 4.0]), "b": torch.tensor([3.5])}
    assert penalties.pull(parameters, anchor).item() == 1 + 4 + 0.25
    precision = {"a": torch.tensor([2.0, 0.5]), "b": torch.tensor([0.0])}
    found = penalties.pull(parameters, anchor, precision)
    assert found.item() == 2 + 2
    found.backward()
    assert parameters["a"].grad.tolist() == [4.0, -2.0]
    assert penalties.pull(parameters, {}).item() == 0


def test_a_snapshot_does_not_move_with_its_parameters():
    parameters = {"a": torch.nn.Parameter(torch.ones(2)), "b": torch.nn.Parameter(torch.ones(2))}
    stood = penalties.snapshot(parameters, lambda name: name == "a")
    with torch.no_grad():
        parameters["a"] += 1
    assert list(stood) == ["a"]
    assert stood["a"].tolist() == [1, 1]
    assert not stood["a"].requires_grad


def test_divergence_of_rows_by_hand():
    p, q = torch.tensor([[0.5, 0.5], [1.0, 0.0]]).log(), torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log()
    expected = [0.5 * math.log(2) + 0.5 * math.log(2 / 3), math.log(2)]
    assert penalties.divergence(p, q).tolist() == pytest.approx(expected)


def test_frozen_weights_give_the_distribution_they_had(letters):
    policy = letters.policy()
    ids, mask = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[False, False, True, True]])
    weights = penalties.snapshot(dict(policy.model.named_parameters()))
    with torch.no_grad():
        before = penalties.chosen_logprobs(policy.model, ids, mask, 0.7)
        expected = (policy.model(input_ids=ids).logits[0, 1:3] / 0.7).log_softmax(-1)
        assert torch.allclose(before, expected)
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    policy.model.train()
    frozen = penalties.frozen_logprobs(policy.model, weights, ids, mask, 0.7)
    assert torch.allclose(frozen, before, atol=1e-6)
    assert not frozen.requires_grad
    assert policy.model.training
    assert not torch.allclose(penalties.chosen_logprobs(policy.model, ids, mask, 0.7), before, atol=1e-3)


def test_l2_init_measures_from_the_first_weights(backend, stage):
    hook = L2Init(strength=0.5).build(backend.policy)
    hook.begin(backend)
    assert hook.penalty(backend).item() == 0
    moved(backend, 0.01)
    count = sum(each.numel() for each in backend.named_parameters().values())
    assert hook.penalty(backend).item() == pytest.approx(0.5 * 1e-4 * count, rel=1e-3)
    hook.shift(backend, stage.shift())
    assert hook.penalty(backend).item() > 0
    assert hook.metrics()["penalty"] == pytest.approx(0.5 * 1e-4 * count, rel=1e-3)


def test_l2_anchor_measures_from_the_last_shift(backend, stage):
    hook = L2Anchor(strength=1.0, parameter_scope="v_head").build(backend.policy)
    hook.begin(backend)
    moved(backend)
    assert hook.penalty(backend) is None
    hook.shift(backend, stage.shift())
    assert hook.penalty(backend).item() == 0
    moved(backend, 0.1)
    assert hook.penalty(backend).item() == pytest.approx(33 * 0.01, rel=1e-4)  # 32 weights and a bias.
    hook.shift(backend, stage.shift())
    assert hook.penalty(backend).item() == 0


def test_weight_anchors_come_back(backend, stage):
    for config in (L2Init(), L2Anchor()):
        first, second = config.build(backend.policy), config.build(backend.policy)
        first.begin(backend)
        first.shift(backend, stage.shift())
        moved(backend)
        second.begin(backend)
        second.load(first.state())
        assert torch.equal(first.penalty(backend), second.penalty(backend))


def test_the_previous_policy_is_compared_with_on_chosen_tokens(backend, stage):
    hook = PreviousPolicy(strength=2.0).build(backend.policy)
    backend.minibatch = TokenBatch((stage.row([5, 6], [7, 8]), stage.row([1, 2, 3], [4])))
    assert hook.penalty(backend) is None
    hook.shift(backend, stage.shift())
    assert hook.penalty(backend).item() == pytest.approx(0, abs=1e-6)
    model = backend.policy.model
    ask = lambda: [
        model(input_ids=torch.tensor([ids])).logits[0, at]
        for ids, at in (([5, 6, 7, 8], 1), ([5, 6, 7, 8], 2), ([1, 2, 3, 4], 2))
    ]
    with torch.no_grad():
        then = torch.stack(ask()).log_softmax(-1)
        for parameter in model.parameters():
            parameter.mul_(1.2)
        now = torch.stack(ask()).log_softmax(-1)
    expected = (now.exp() * (now - then)).sum(-1).mean().item()
    assert hook.penalty(backend).item() == pytest.approx(2 * expected, rel=1e-4)
    assert hook.metrics()["kl"] == pytest.approx(expected, rel=1e-4)
    again = PreviousPolicy(strength=2.0).build(backend.policy)
    again.load(hook.state())
    assert torch.equal(again.penalty(backend), hook.penalty(backend))


def test_the_divergence_pulls_back(backend, stage):
    hook = PreviousPolicy(strength=1.0).build(backend.policy)
    backend.minibatch = TokenBatch((stage.row([5, 6], [7, 8, 9]),))
    hook.shift(backend, stage.shift())
    with torch.no_grad():
        for parameter in backend.policy.model.parameters():
            parameter.mul_(1.2)
    optimizer = torch.optim.SGD(backend.policy.model.parameters(), lr=0.3)
    distances = []
    for _ in range(10):
        optimizer.zero_grad()
        distance = hook.penalty(backend)
        distance.backward()
        optimizer.step()
        distances.append(distance.item())
    assert distances[-1] < 0.5 * distances[0]


def test_a_policy_that_is_held_drifts_less(letters, stage):
    drifts = []
    for strength in (0.0, 1000.0):
        hook = PreviousPolicy(strength=strength).build()
        trained = PPOBackend(letters.policy(), hooks=[hook], epochs=2, learning_rate=3e-3)
        trained.on_regime_shift(stage.shift())
        for number in range(4):
            trained.update(stage.window(trained, start=8 * number, reward=lambda step, action: len(str(action)) % 3))
        trained.minibatch = TokenBatch((stage.row([5, 6], [7, 8, 9]), stage.row([1, 2, 3], [4])))
        drifts.append(hook.divergence(trained).item())
    assert drifts[1] < 0.5 * drifts[0]


@pytest.mark.parametrize("config", [L2Init, L2Anchor, PreviousPolicy])
def test_strengths_are_not_negative(config):
    with pytest.raises(ConfigError, match="strength is -1"):
        config(strength=-1.0)


def test_a_scope_without_parameters_is_refused_before_the_first_step(backend):
    with pytest.raises(ConfigError, match="matches no parameter"):
        L2Init(parameter_scope="lora_only").build(backend.policy).begin(backend)
