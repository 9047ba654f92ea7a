"""Updates of a tiny language model."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch

from perdure.core.errors import ConfigError, RunFailed
from perdure.lm import forward, packing, update
from perdure.lm.objectives import kl
from perdure.lm.objectives.table import LOSSES, RECIPES, Objective
from perdure.lm.objectives.weigh import weigh
from perdure.lm.step import Optimisation, Stepper
from perdure.lm.tiny import tiny_model
from perdure.lm.trajectory import Sampled, Stop, Trajectory

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

VOCABULARY = 24


def model_of(seed=0):
    return tiny_model(VOCABULARY, width=16, layers=2, heads=2, kv_heads=1, seed=seed)


def rollouts(model, groups=2, size=3, seed=0, returns=None):
    """Conversations of one or two random answers, with the model's own log-probabilities."""
    random, made = np.random.default_rng(seed), []
    for row in range(groups * size):
        each = Trajectory(terminated=True, group=row // size)
        each.observe(random.integers(0, VOCABULARY, 2 + row % 3).tolist())
        for _ in range(1 + row % 2):
            ids = random.integers(0, VOCABULARY, int(random.integers(1, 5))).tolist()
            each.answer(Sampled(ids, [0.0] * len(ids), Stop.END))
            each.observe(random.integers(0, VOCABULARY, 2).tolist())
        each.turns[-1].reward = float(random.random()) if returns is None else returns[row]
        made.append(each)
    batch = packing.pack(made, 0)
    scored = update.scored(model, batch)
    for each, logprobs in zip(made, packing.unpadded(scored.logprobs_BT, batch.lengths_B), strict=True):
        each.logprobs = logprobs.tolist()
    return made


def batch_of(rows, objective):
    return packing.pack(rows, 0, advantages=weigh(objective, rows).advantages)


def gradients_of(model, batch, objective, tokens, **options):
    """The gradient of one step, as the optimiser sees it, and the metrics."""
    stepper = Stepper(model, Optimisation(max_grad_norm=0.0, tokens_per_micro_batch=tokens))
    seen = {}
    stepper.optimizer.register_step_pre_hook(
        lambda *_: seen.update({name: each.grad.clone() for name, each in stepper.named.items()})
    )
    return seen, update.update(stepper, model, batch, objective, **options)


def test_scores_do_not_depend_on_micro_batches():
    model = model_of()
    head = torch.nn.Linear(16, 1)
    batch = packing.pack(rollouts(model), 0)
    whole, parts = (update.scored(model, batch, tokens=tokens, value_head=head) for tokens in (10**6, 1))
    torch.testing.assert_close(whole.logprobs_BT, parts.logprobs_BT, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(whole.values_BT, parts.values_BT, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(whole.final_values_B, parts.final_values_B, atol=1e-6, rtol=1e-5)
    assert not whole.logprobs_BT[~batch.mask_BT].any()
    assert whole.logprobs_BT[batch.mask_BT].all()


def test_scores_are_made_without_dropout():
    model = model_of()
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    batch = packing.pack(rollouts(model), 0)
    live = forward.score(model.train(), batch.ids_BT, batch.lengths_B).logprobs_BT
    assert not torch.allclose(live[batch.mask_BT], batch.sampler_BT[batch.mask_BT], atol=1e-3)
    torch.testing.assert_close(update.scored(model, batch).logprobs_BT, batch.sampler_BT, atol=1e-5, rtol=1e-5)


def test_scoring_leaves_the_models_mode_and_gradients():
    model = model_of().train()
    model.model.norm.eval()
    update.scored(model, packing.pack(rollouts(model), 0))
    assert model.training
    assert not model.model.norm.training
    assert all(each.grad is None for each in model.parameters())


@pytest.mark.parametrize("name", LOSSES)
def test_the_ratio_is_one_at_the_first_update(name):
    model = model_of()
    objective = Objective("dr_grpo", name, "sequence_mean")
    batch = batch_of(rollouts(model), objective)
    _, metrics = gradients_of(model, batch, objective, 10**6)
    assert metrics["policy/ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["policy/ratio_max"] == pytest.approx(1, abs=1e-5)
    assert metrics["policy/effective_sample_size"] == pytest.approx(1, abs=1e-6)
    assert abs(metrics["policy/approximate_kl"]) < 1e-9
    assert metrics.get("policy/clip_fraction_low", 0.0) == 0
    assert metrics["step/gradient_norm"] > 0


@pytest.mark.parametrize("name", sorted(RECIPES.keys() - {"ppo"}))
def test_neither_micro_batches_nor_the_order_of_rows_change_the_gradient(name):
    model, objective = model_of(), RECIPES[name]
    rows = rollouts(model)
    wholes, metrics = gradients_of(copy.deepcopy(model), batch_of(rows, objective), objective, 10**6)
    for tokens in (1, 25):
        parts, measured = gradients_of(copy.deepcopy(model), batch_of(rows[::-1], objective), objective, tokens)
        for key, whole in wholes.items():
            torch.testing.assert_close(parts[key], whole, atol=1e-6, rtol=1e-4)
        assert measured == pytest.approx(metrics, abs=1e-5)


def test_a_constant_group_has_exactly_no_gradient():
    model = model_of()
    noise = [0.3, 0.1 + 0.2, 0.3, 0.7, 0.7, 0.7]
    gradients, metrics = gradients_of(
        model, batch_of(rollouts(model, returns=noise), RECIPES["grpo"]), RECIPES["grpo"], 50
    )
    assert not any(each.any() for each in gradients.values())
    assert metrics["step/gradient_norm"] == 0


def test_updates_raise_the_probability_of_what_was_rewarded():
    model, objective = model_of(), RECIPES["grpo"]
    rows = rollouts(model, returns=[1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    batch = batch_of(rows, objective)
    stepper = Stepper(model, Optimisation(learning_rate=1e-3))
    update.update(stepper, model, batch, objective, epochs=3, minibatches=2, order=np.random.default_rng(0))
    assert stepper.steps == 6
    moved = ((update.scored(model, batch).logprobs_BT - batch.old_BT) * batch.mask_BT).sum(-1)
    assert (moved[[0, 3]] > 0).all()
    assert (moved[[1, 2, 4, 5]] < 0).all()


def test_a_critic_learns_and_meets_its_targets():
    model, head = model_of(), torch.nn.Linear(16, 1)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    objective = Objective("gae", lam=1.0, value_coefficient=1.0)
    rows = rollouts(model, returns=[2.0] * 6)
    for each in rows:
        each.turns[:-1] and setattr(each.turns[0], "reward", 0.0)
    stepper = Stepper(model, Optimisation(learning_rate=1e-3, value_learning_rate=0.1), value_head=head)
    losses = []
    for _ in range(30):
        packed = packing.pack(rows, 0)
        values = packing.unpadded(update.scored(model, packed, value_head=head).values_BT, packed.lengths_B)
        weighed = weigh(objective, rows, values=values)
        batch = packing.pack(rows, 0, advantages=weighed.advantages, returns=weighed.returns, values=values)
        losses.append(update.update(stepper, model, batch, objective, value_head=head)["loss/value"])
    assert losses[0] == pytest.approx(2.0)
    assert losses[-1] < 0.1


def test_prepared_asks_the_trainer_and_weighs_the_samplers_rounding():
    model = model_of()
    rows = rollouts(model)
    rows[0].logprobs = [each - 0.5 * chosen for each, chosen in zip(rows[0].logprobs, rows[0].mask, strict=True)]
    objective = Objective(old_logprobs="trainer", importance_cap=1.2)
    batch, metrics = update.prepared(model, packing.pack(rows, 0), objective)
    torch.testing.assert_close(batch.old_BT, update.scored(model, batch).logprobs_BT)
    assert batch.importance_BT[0][batch.mask_BT[0]].tolist() == pytest.approx([1.2] * int(batch.mask_BT[0].sum()))
    assert batch.importance_BT[1][batch.mask_BT[1]].tolist() == pytest.approx(
        [1.0] * int(batch.mask_BT[1].sum()), abs=1e-5
    )
    assert metrics["sampler/largest_difference"] == pytest.approx(0.5, abs=1e-5)
    share = int(batch.mask_BT[0].sum()) / int(batch.mask_BT.sum())
    assert metrics["sampler/mean_difference"] == pytest.approx(0.5 * share, abs=1e-5)


def test_a_frozen_copy_is_the_reference():
    model = model_of()
    reference = model_of(seed=1)
    objective = Objective(kl="loss", kl_coefficient=0.5)
    batch, _ = update.prepared(model, packing.pack(rollouts(model), 0), objective, reference=reference)
    torch.testing.assert_close(batch.reference_BT, update.scored(reference, batch).logprobs_BT)
    _, metrics = gradients_of(model, batch, objective, 10**6, kl_coefficient=0.5)
    expected = kl.estimate("k3", batch.old_BT, batch.reference_BT, batch.mask_BT)
    assert metrics["policy/kl"] == pytest.approx(float(expected.sum() / batch.mask_BT.sum()), rel=1e-4)
    assert metrics["step/loss"] == pytest.approx(metrics["loss/policy"] + 0.5 * metrics["policy/kl"], rel=1e-4)


def test_a_switched_off_adapter_is_the_reference():
    from peft import LoraConfig, get_peft_model

    base = model_of()
    rows = rollouts(base)
    adapted = get_peft_model(copy.deepcopy(base), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    batch = packing.pack(rows, 0)
    found = update.reference_logprobs(adapted, batch)
    torch.testing.assert_close(found, update.scored(base, batch).logprobs_BT, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(found, update.scored(adapted, batch).logprobs_BT, atol=1e-4)
    with pytest.raises(ConfigError, match="reference is missing"):
        update.reference_logprobs(base, batch)


def test_temperature_is_applied_to_both_sides():
    model = model_of()
    rows = rollouts(model)
    batch = packing.pack(rows, 0)
    hot = update.scored(model, batch, temperature=2.0)
    assert not torch.allclose(hot.logprobs_BT, batch.sampler_BT)
    batch = batch._replace(old_BT=hot.logprobs_BT, advantages_BT=torch.ones_like(batch.advantages_BT))
    _, metrics = gradients_of(model, batch, RECIPES["grpo"], 10**6, temperature=2.0)
    assert metrics["policy/ratio_max"] == pytest.approx(1, abs=1e-5)


def test_bf16_passes_begin_at_ratio_one_where_the_trainer_is_asked():
    model = model_of()
    objective = dataclasses.replace(RECIPES["grpo"], old_logprobs="trainer")
    rows = rollouts(model)
    batch, metrics = update.prepared(model, packing.pack(rows, 0), objective, bf16=True)
    assert metrics["sampler/largest_difference"] > 1e-4
    batch = batch._replace(advantages_BT=batch_of(rows, objective).advantages_BT)
    stepper = Stepper(model, Optimisation(bf16=True))
    found = update.update(stepper, model, batch, objective)
    assert found["policy/ratio_max"] == pytest.approx(1, abs=1e-5)
    assert all(each.dtype == torch.float32 for each in model.parameters())


def test_the_critic_computes_in_fp32_under_bf16():
    model, head, seen = model_of(), torch.nn.Linear(16, 1), []
    head.register_forward_hook(lambda _module, inputs, output: seen.append((inputs[0].dtype, output.dtype)))
    objective = Objective("gae")
    batch = packing.pack(rollouts(model), 0)
    update.scored(model, batch, value_head=head, bf16=True)
    stepper = Stepper(model, Optimisation(bf16=True), value_head=head)
    update.update(stepper, model, batch._replace(returns_BT=batch.advantages_BT), objective, value_head=head)
    assert set(seen) == {(torch.float32, torch.float32)}


def test_entropy_is_measured_and_raised():
    model = model_of()
    objective = dataclasses.replace(RECIPES["grpo"], entropy_coefficient=1.0)
    batch = packing.pack(rollouts(model), 0)
    stepper = Stepper(model, Optimisation(learning_rate=1e-2))
    found = [update.update(stepper, model, batch, objective)["policy/entropy"] for _ in range(5)]
    assert 0 < found[0] < found[-1] <= math.log(VOCABULARY) + 1e-6


def test_a_nan_weight_stops_the_update_and_names_the_step():
    model = model_of()
    batch = batch_of(rollouts(model), RECIPES["grpo"])
    with torch.no_grad():
        model.model.norm.weight[0] = math.nan
    before = {name: each.clone() for name, each in model.named_parameters()}
    with pytest.raises(RunFailed, match="optimiser step 0: the loss is nan"):
        update.update(Stepper(model), model, batch, RECIPES["grpo"])
    assert all(
        torch.equal(each, before[name]) or name == "model.norm.weight" for name, each in model.named_parameters()
    )


def test_refusals():
    model = model_of()
    batch = batch_of(rollouts(model), RECIPES["grpo"])
    for options in ({"minibatches": 7}, {"minibatches": 0}, {"epochs": 0}):
        with pytest.raises(ConfigError, match="at least 1 each, at most 6 minibatches"):
            update.update(Stepper(model), model, batch, RECIPES["grpo"], **options)
