"""One optimiser step's loss and what it measures, on numbers set by hand."""

from typing import NamedTuple

import pytest
import torch

from perdure.lm import packing
from perdure.lm.clipped import Pieces, Rows
from perdure.lm.conversation import Recorded
from perdure.lm.forward import Scores
from perdure.lm.settings import Settings
from perdure.lm.trajectory import Sampled, Stop

LN2 = float(torch.log(torch.tensor(2.0)))


class Said(NamedTuple):
    """A scorer that says fixed log-probabilities and values of the packed rows."""

    logprobs_BT: torch.Tensor
    values_BT: torch.Tensor
    finals_B: torch.Tensor
    tokens: int = 100

    def plan(self, packed):
        return packing.plan(packed.lengths_B.tolist(), self.tokens)

    def score(self, packed, *, entropy=False):
        width = packed.ids_BT.shape[1]
        found = packed.ids_BT[:, 0]  # The first id of a row is its number.
        entropy_BT = torch.full((len(found), width), 0.5)
        return Scores(self.logprobs_BT[found, :width], self.values_BT[found, :width], entropy_BT, self.finals_B[found])


def rows(targets=False):
    """Row 0 trains tokens 1 and 2 (old log-probabilities 0), row 1 token 1 alone."""
    made = []
    for number, length in enumerate((2, 1)):
        row = Recorded()
        row.observe([number])
        row.answer(Sampled([5] * length, [0.0] * length, Stop.END))
        made.append(row)
    advantages = [[0.0, 1.0, -1.0], [0.0, 2.0]]
    returns = None if targets else [[0.0, 1.0, 0.0], [0.0, 3.0]]
    batch = packing.pack(made, 0, advantages=advantages, returns=returns)
    return Rows(batch, torch.tensor([1.0, 2.0]) if targets else None)


def step(settings, rows_, tokens=100):
    said = Said(
        torch.tensor([[9.0, LN2, -LN2], [9.0, 0.0, 9.0]]),  # Ratios 2 and 1/2; 1.
        torch.tensor([[9.0, 0.0, 0.0], [9.0, 1.0, 9.0]]),
        torch.tensor([0.0, 0.0]),
        tokens,
    )
    pieces = Pieces(said, rows_, settings.resolved())
    return sum(float(loss()) for loss in pieces.losses()), pieces.totals()


def test_token_ratios_are_clipped_token_by_token():
    whole, sums = step(Settings(value_coef=0.5, entropy_coef=0.1), rows())
    # Gains: min(2, 1.2) = 1.2; min(-1/2, -.8) = -.8; 2.
    assert sums["policy_loss"] == pytest.approx(-(1.2 - 0.8 + 2) / 3)
    assert sums["value_loss"] == pytest.approx((0.5 + 0 + 2) / 3)
    assert sums["entropy"] == pytest.approx(0.5)
    assert sums["ratio_mean"] == pytest.approx((2 + 0.5 + 1) / 3)
    assert sums["clip_fraction"] == pytest.approx(2 / 3)
    assert sums["kl"] == pytest.approx(((2 - 1 - LN2) + (0.5 - 1 + LN2) + 0) / 3)
    assert whole == pytest.approx(sums["policy_loss"] + 0.5 * sums["value_loss"] - 0.1 * 0.5)


def test_a_sequence_has_one_ratio():
    _, sums = step(Settings(ratio="sequence_mean"), rows())
    # Row 0: the mean log-ratio is 0, its advantages 1 and -1 average to 0; row 1: 2.
    assert sums["policy_loss"] == pytest.approx(-(0 + 2) / 2)
    assert sums["ratio_mean"] == pytest.approx(1)
    assert sums["clip_fraction"] == 0


def test_the_clip_width_counts():
    _, sums = step(Settings(clip_range=0.6), rows())
    assert sums["policy_loss"] == pytest.approx(-(1.6 - 0.5 + 2) / 3)
    assert sums["clip_fraction"] == pytest.approx(1 / 3)


def test_a_value_after_each_row_regresses_on_its_target():
    _, sums = step(Settings(value_position="final", ratio="sequence_mean"), rows(targets=True))
    assert sums["value_loss"] == pytest.approx((0.5 * 1 + 0.5 * 4) / 2)


@pytest.mark.parametrize("ratio", ["per_token", "sequence_mean", "gspo"])
def test_cutting_into_micro_batches_changes_nothing(ratio):
    whole, sums = step(Settings(ratio=ratio), rows())
    cut, parts = step(Settings(ratio=ratio), rows(), tokens=1)
    assert cut == pytest.approx(whole)
    assert parts == pytest.approx(sums)


def test_a_divergence_is_weighed_like_the_policys_loss():
    batch = rows().batch
    far = Rows(batch._replace(reference_BT=torch.tensor([[0.0, 0.0, 0.0], [0.0, -LN2, 0.0]])), None)
    plain, _ = step(Settings(), rows())
    whole, sums = step(Settings(kl_coeff=0.2, kl_penalty="k2"), far)
    assert sums["kl_reference"] == pytest.approx(3 * 0.5 * LN2**2 / 3)
    assert whole - plain == pytest.approx(0.2 * sums["kl_reference"])
