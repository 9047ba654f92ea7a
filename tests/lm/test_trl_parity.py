"""Losses and advantages equal those of TRL 1.16 on the same tensors (skipped where it is not installed).

TRL's own `_compute_loss` runs on a trainer made without its constructor, whose model is a table of log-probabilities.
"""

import collections
import re
import types

import numpy as np
import pytest
import torch

from perdure.lm.objectives import advantages, aggregation, combined
from perdure.lm.objectives.table import Objective
from perdure.lm.packing import Batch

trl = pytest.importorskip("trl", reason="the extra trl is not installed")
if not trl.__version__.startswith("1.16"):
    pytest.skip(f"the comparison is with TRL 1.16, not {trl.__version__}", allow_module_level=True)

B, P, C = 4, 3, 6
"""Rows, prompt tokens, completion tokens."""
LENGTH = 8


def tensors(seed):
    """Log-probabilities in training, of the acting policy and of the reference, the mask, and an advantage a row."""
    draw = torch.Generator().manual_seed(seed)
    number = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64)
    logprobs = -number(B, C).abs() - 0.1
    lengths = torch.tensor([6, 2, 5, 3])
    mask = torch.arange(C) < lengths[:, None]
    mask[0, 2] = False  # A tool's token.
    return logprobs, logprobs + 0.3 * number(B, C), logprobs + 0.3 * number(B, C), mask, number(B)


def trainer(settings):
    """What `_compute_loss` reads of a GRPOTrainer; `settings` are those that differ from its defaults."""
    from trl import GRPOTrainer

    made = GRPOTrainer.__new__(GRPOTrainer)
    defaults = {
        "loss_type": "grpo",
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "delta": None,
        "use_bias_correction_kl": False,
        "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05,
        "entropy_coef": 0.0,
    }
    made.args = types.SimpleNamespace(**(defaults | settings), steps_per_generation=1)
    for name, value in (defaults | settings).items():
        setattr(made, name, value)
    made.aux_loss_enabled, made.top_entropy_quantile, made.off_policy_mask_threshold = False, 1.0, None
    made.use_vllm, made.use_adaptive_entropy, made.max_completion_length = False, False, LENGTH
    made.current_gradient_accumulation_steps = 1
    made._entropy_bonus_enabled = made.entropy_coef != 0
    made._metrics = {"train": collections.defaultdict(list)}
    same = lambda value, **_: value
    made.accelerator = types.SimpleNamespace(
        num_processes=1, gather=same, gather_for_metrics=same, reduce=same, sync_gradients=True
    )
    made.model = torch.nn.Identity().train()
    return made


def theirs(settings, seed):
    """TRL's loss and its gradient by the log-probabilities."""
    logprobs, old, reference, mask, row_advantages = tensors(seed)
    logprobs.requires_grad_()
    made = trainer(settings)
    entropies = torch.full((B, C), 0.5, dtype=torch.float64)
    made._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs, entropies, None)
    present = torch.arange(C) <= mask.int().mul(torch.arange(1, C + 1)).argmax(-1, keepdim=True)
    inputs = {
        "prompt_ids": torch.ones(B, P).long(),
        "prompt_mask": torch.ones(B, P).long(),
        "completion_ids": torch.ones(B, C).long(),
        "completion_mask": present.long(),
        "tool_mask": mask.long(),
        "advantages": row_advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(),
    }
    loss = made._compute_loss(made.model, inputs)
    loss.backward()
    return loss.detach(), logprobs.grad, {name: values[-1] for name, values in made._metrics["train"].items()}


def ours(objective, seed):
    """The same by this package, cut into micro-batches of a row."""
    logprobs, old, reference, mask, row_advantages = tensors(seed)
    logprobs.requires_grad_()
    denominators = aggregation.count(mask)
    total, sums = 0.0, []
    for row in range(B):
        part = slice(row, row + 1)
        batch = Batch(
            ids_BT=torch.ones(1, C).long(),
            lengths_B=torch.tensor([C]),
            mask_BT=mask[part],
            turns_BT=torch.zeros(1, C).long(),
            sampler_BT=old[part],
            old_BT=old[part],
            advantages_BT=row_advantages[part, None].expand(1, C),
            reference_BT=reference[part],
        )
        found = combined.combined(
            objective,
            batch,
            denominators,
            logprobs[part],
            entropy_BT=torch.full((1, C), 0.5, dtype=torch.float64),
            kl_coefficient=objective.kl_coefficient,
        )
        total, sums = total + found.loss, [*sums, found.sums]
    total.backward()
    return total.detach(), logprobs.grad, combined.metrics(combined.added(objective, sums))


KL = {"kl": "loss", "kl_coefficient": 0.3}
CASES = {
    "grpo": ({}, Objective(aggregation="sequence_mean")),
    "grpo with kl": ({"beta": 0.3}, Objective(aggregation="sequence_mean", **KL)),
    "grpo with corrected kl": (
        {"beta": 0.3, "use_bias_correction_kl": True},
        Objective(aggregation="sequence_mean", kl_importance=True, **KL),
    ),
    "grpo with entropy": ({"entropy_coef": 0.2}, Objective(aggregation="sequence_mean", entropy_coefficient=0.2)),
    "two-sided clip": (
        {"delta": 1.4},
        Objective(loss="dual_clip", aggregation="sequence_mean", ratio_bound=1.4),
    ),
    "dr_grpo": (
        {"loss_type": "dr_grpo", "beta": 0.3},
        Objective("dr_grpo", aggregation="constant", length=LENGTH, **KL),
    ),
    "dapo": ({"loss_type": "dapo", "epsilon_high": 0.28}, Objective(clip_high=0.28)),
    "bnpo": ({"loss_type": "bnpo"}, Objective()),
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.1, "beta": 0.3},
        Objective(loss="cispo", ratio_cap=1.1, **KL),
    ),
    "gspo": (
        {"importance_sampling_level": "sequence", "epsilon_low": 0.05, "epsilon_high": 0.06},
        Objective(loss="gspo", aggregation="sequence_mean", clip_low=0.05, clip_high=0.06),
    ),
    "gspo by tokens": (
        {"importance_sampling_level": "sequence", "loss_type": "dapo"},
        Objective(loss="gspo", clip_low=0.2, clip_high=0.2),
    ),
    "sapo": (
        {"loss_type": "sapo", "sapo_temperature_neg": 2.0},
        Objective(loss="sapo", aggregation="sequence_mean", temperature_negative=2.0),
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_losses_and_gradients_equal_trls(case, seed):
    settings, objective = CASES[case]
    loss, gradient, measured = theirs(settings, seed)
    found, slope, metrics = ours(objective, seed)
    torch.testing.assert_close(found, loss, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(slope, gradient, atol=1e-6, rtol=1e-6)
    assert gradient.any()
    if "kl" in measured:
        assert metrics["policy/kl"] == pytest.approx(measured["kl"], abs=1e-6)
    if "clip_ratio/low_mean" in measured and "importance_sampling_level" not in settings and "delta" not in settings:
        assert metrics["policy/clip_fraction_low"] == pytest.approx(measured["clip_ratio/low_mean"], abs=1e-6)
        assert metrics["policy/clip_fraction_high"] == pytest.approx(measured["clip_ratio/high_mean"], abs=1e-6)


@pytest.mark.parametrize("scale", advantages.SCALES)
def test_advantages_divide_by_trls_deviation(scale):
    from trl.trainer.utils import nanstd

    rewards = torch.tensor([1.0, 0.0, 0.25, 0.75, 0.5, 0.0, torch.nan, 1.0, 0.5], dtype=torch.float64)
    grouped = rewards.view(-1, 3)
    deviation = {"group": nanstd(grouped, dim=1)[:, None], "batch": nanstd(rewards), "none": 1 - 1e-4}[scale]
    expected = (grouped - grouped.nanmean(1, keepdim=True)) / (deviation + 1e-4)
    found = advantages.grpo(rewards.numpy(), np.arange(9) // 3, scale=scale).advantages
    np.testing.assert_allclose(found, expected.nan_to_num(0.0).flatten().numpy(), atol=1e-12)


def test_the_version_is_the_one_that_was_read():
    assert re.fullmatch(r"1\.16\.\d+", trl.__version__)
