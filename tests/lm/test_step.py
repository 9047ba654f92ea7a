"""The optimiser step on small functions whose gradients are known."""

import json
import math

import pytest
import torch

from perdure.core.component import make
from perdure.core.errors import ConfigError, DataError, RunFailed
from perdure.lm.step import Optimisation, Stepper, rank, summed, world_size


def linear(*weights, frozen=False):
    module = torch.nn.Linear(len(weights), 1, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([weights]))
    return module.requires_grad_(not frozen)


def plain(**settings):
    """AdamW whose first step moves each weight by the learning rate."""
    return Optimisation(**{"learning_rate": 0.1, "max_grad_norm": 0.0, **settings})


def test_the_first_step_of_adamw_by_hand():
    model = linear(1.0, 2.0)
    metrics = Stepper(model, plain(weight_decay=0.5)).step([lambda: model(torch.tensor([3.0, -4.0])).sum()])
    # Decay takes 0.1 * 0.5 of each weight; the step's size is the rate, whatever the gradient's.
    assert model.weight[0].tolist() == pytest.approx([0.95 - 0.1, 1.9 + 0.1], rel=1e-5)
    assert metrics["step/loss"] == pytest.approx(-5.0)
    assert metrics["step/gradient_norm"] == pytest.approx(5.0)
    assert metrics["step/learning_rate"] == 0.1


def test_it_equals_torchs_adamw_over_steps():
    model, other = linear(1.0, 2.0, 3.0), linear(1.0, 2.0, 3.0)
    stepper = Stepper(model, plain(weight_decay=0.01, betas=(0.8, 0.9), epsilon=1e-6))
    plainly = torch.optim.AdamW(
        other.parameters(), lr=0.1, weight_decay=0.01, betas=(0.8, 0.9), eps=1e-6, foreach=False
    )
    for step in range(5):
        data = torch.arange(3.0) + step
        stepper.step([lambda data=data: model(data).square().sum()])
        plainly.zero_grad()
        other(data).square().sum().backward()
        plainly.step()
    torch.testing.assert_close(model.weight, other.weight)


def test_parts_add_up_to_the_whole():
    data = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    models = [linear(1.0, 2.0, 3.0) for _ in range(2)]
    whole = Stepper(models[0], plain()).step([lambda: models[0](data).square().sum() / 6])
    rows = data.split([1, 2, 3])
    parts = Stepper(models[1], plain()).step([lambda part=part: models[1](part).square().sum() / 6 for part in rows])
    torch.testing.assert_close(models[0].weight, models[1].weight)
    assert parts["step/gradient_norm"] == pytest.approx(whole["step/gradient_norm"])
    assert parts["step/loss"] == pytest.approx(whole["step/loss"])


def test_policy_and_critic_are_clipped_as_one():
    model, head = linear(0.0), linear(0.0)
    stepper = Stepper(model, plain(max_grad_norm=1.0), value_head=head)
    seen = []
    stepper.optimizer.register_step_pre_hook(
        lambda *_: seen.extend(each.grad.item() for each in stepper.named.values())
    )
    metrics = stepper.step([lambda: model(torch.tensor([3.0])).sum() + head(torch.tensor([4.0])).sum()])
    assert metrics["step/gradient_norm"] == pytest.approx(5.0)
    assert seen == pytest.approx([0.6, 0.8], rel=1e-4)


def test_penalties_act_once_a_step_inside_the_clip():
    model = linear(2.0)
    stepper = Stepper(model, plain(max_grad_norm=1.0))
    calls = []

    def penalty():
        calls.append(1)
        return 3 * model.weight.sum()

    seen = []
    stepper.optimizer.register_step_pre_hook(lambda *_: seen.append(model.weight.grad.item()))
    losses = [lambda: 0.5 * model(torch.tensor([1.0])).sum()] * 4
    metrics = stepper.step(losses, [penalty, lambda: None])
    assert len(calls) == 1
    assert (metrics["step/penalty"], metrics["step/loss"]) == (6.0, 4.0)
    assert metrics["step/gradient_norm"] == pytest.approx(5.0)
    assert seen == pytest.approx([1.0], rel=1e-4)


def test_frozen_parameters_stay_and_others_move():
    model = torch.nn.Sequential(linear(1.0, frozen=True), linear(1.0))
    extra = torch.nn.Parameter(torch.ones(1))
    stepper = Stepper(model, plain(), others=[extra, model[1].weight])
    assert list(stepper.named) == ["model.1.weight", "others.0"]
    stepper.step([lambda: (model(torch.ones(1)) * extra).sum()])
    assert model[0].weight.item() == 1.0
    assert extra.item() == pytest.approx(0.9, rel=1e-5)


def test_the_critic_has_a_rate_of_its_own():
    model, head = linear(1.0), linear(1.0)
    stepper = Stepper(model, plain(value_learning_rate=0.5), value_head=head)
    stepper.step([lambda: model(torch.ones(1)).sum() + head(torch.ones(1)).sum()])
    assert (model.weight.item(), head.weight.item()) == pytest.approx((0.9, 0.5), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({}, [1, 1, 1]),
        ({"warmup_steps": 2}, [0.5, 1, 1]),
        ({"schedule": "linear", "total_steps": 4}, [1, 0.75, 0.5, 0.25, 0, 0]),
        ({"schedule": "linear", "warmup_steps": 2, "total_steps": 4}, [0.5, 1, 1, 0.5, 0]),
        ({"schedule": "linear", "warmup_steps": 1, "hold_steps": 2, "total_steps": 5}, [1, 1, 1, 1, 0.5, 0]),
        ({"schedule": "cosine", "total_steps": 4}, [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0]),
    ],
)
def test_schedules_by_hand(settings, shares):
    found = [Optimisation(**settings).share(step) for step in range(len(shares))]
    assert found == pytest.approx(shares, abs=1e-12)


def test_the_schedule_is_what_the_optimiser_gets():
    model = linear(1.0)
    stepper = Stepper(model, plain(warmup_steps=4))
    for step in range(3):
        before = model.weight.item()
        metrics = stepper.step([lambda: model(torch.ones(1)).sum()])
        assert metrics["step/learning_rate"] == pytest.approx(0.1 * (step + 1) / 4)
        assert before - model.weight.item() == pytest.approx(0.1 * (step + 1) / 4, rel=1e-4)


@pytest.mark.parametrize("nonsense", [math.nan, math.inf])
def test_what_is_not_finite_stops_before_a_weight_moves(nonsense):
    model = linear(1.0)
    stepper = Stepper(model, plain())
    stepper.step([lambda: model(torch.ones(1)).sum()])
    weight, moment = model.weight.item(), stepper.optimizer.state[model.weight]["exp_avg"].item()
    with pytest.raises(RunFailed, match="optimiser step 1: the loss is"):
        stepper.step([lambda: model(torch.ones(1)).sum() * nonsense])
    # The square root of 0 is 0, its slope is infinite.
    with pytest.raises(RunFailed, match=r"optimiser step 1: the gradient of model\.weight is not finite"):
        stepper.step([lambda: (model.weight - model.weight.detach()).sum().abs().sqrt()])
    assert (model.weight.item(), stepper.steps) == (weight, 1)
    assert stepper.optimizer.state[model.weight]["exp_avg"].item() == moment
    assert model.weight.grad is None


def test_a_loss_that_raises_leaves_nothing_for_the_next_step():
    model = linear(1.0)
    stepper = Stepper(model, plain())
    with pytest.raises(ZeroDivisionError):
        stepper.step([lambda: model(torch.ones(1)).sum(), lambda: 1 / 0])
    assert stepper.step([lambda: 3 * model(torch.ones(1)).sum()])["step/gradient_norm"] == pytest.approx(3.0)


def test_dropout_depends_on_the_seed_and_the_step_alone():
    def run(seed, steps, begin=0):
        model = linear(1.0, 1.0, 1.0, 1.0)
        stepper = Stepper(model, plain(), seed=seed)
        stepper.steps = begin
        drawn = []

        def loss():
            kept = torch.nn.functional.dropout(torch.ones(32), 0.5)
            drawn.append(kept.tolist())
            return model(kept[:4]).sum()

        for _ in range(steps):
            torch.rand(3)  # Other draws of the process do not matter.
            stepper.step([loss])
        return drawn

    assert run(1, 3) == run(1, 3)
    assert run(1, 3)[2] == run(1, 1, begin=2)[0]
    assert run(1, 2)[0] != run(1, 2)[1]
    assert run(1, 1) != run(2, 1)


def test_the_global_generator_is_left_as_it_was():
    model = linear(1.0)
    torch.manual_seed(0)
    expected = torch.rand(1).item()
    torch.manual_seed(0)
    Stepper(model, plain()).step([lambda: model(torch.rand(1)).sum()])
    assert torch.rand(1).item() == expected


def test_bf16_passes_leave_weights_and_loss_in_fp32():
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 8)
    seen = []

    def loss():
        out = model(torch.ones(4, 64))
        seen.append(out.dtype)
        return out.float().square().mean()

    Stepper(model, plain(bf16=True)).step([loss])
    assert seen == [torch.bfloat16]
    assert model.weight.dtype == torch.float32


def test_the_count_of_steps_survives():
    model = linear(1.0)
    stepper = Stepper(model, plain())
    stepper.step([lambda: model(torch.ones(1)).sum()])
    other = Stepper(linear(1.0), plain())
    other.load_state_dict(json.loads(json.dumps(stepper.state_dict())))
    assert other.steps == 1
    with pytest.raises(DataError, match="Stepper holds"):
        other.load_state_dict({})


def test_alone_there_is_one_process():
    assert (rank(), world_size(), summed([1.0, 2.0])) == (0, 1, [1.0, 2.0])


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"learning_rate": 0.0}, "learning_rate is 0"),
        ({"value_learning_rate": -1.0}, "value_learning_rate is -1"),
        ({"weight_decay": -1.0}, "weight_decay is -1"),
        ({"max_grad_norm": math.nan}, "max_grad_norm is nan"),
        ({"betas": (0.9, 1.0)}, "betas are"),
        ({"schedule": "step"}, "schedule is 'step'"),
        ({"schedule": "cosine"}, "total_steps is None"),
        ({"total_steps": 5}, "total_steps is 5"),
        ({"hold_steps": 5}, "hold_steps is 5 with schedule 'constant'"),
        ({"schedule": "linear", "warmup_steps": 5, "total_steps": 5}, "total_steps is 5"),
        ({"tokens_per_micro_batch": 0}, "tokens_per_micro_batch is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        make(Optimisation, settings, "algorithm.optimisation")


def test_modules_that_cannot_be_trained_are_refused():
    with pytest.raises(ConfigError, match="no parameter is trainable"):
        Stepper(linear(1.0, frozen=True))
    stepper = Stepper(linear(1.0), plain())
    with pytest.raises(RunFailed, match="reaches no trainable parameter"):
        stepper.step([lambda: torch.tensor(1.0)])
