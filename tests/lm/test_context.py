import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import ConfigError, DataError
from perdure.lm.context import (
    CANONICAL_REGIMES,
    EncoderShape,
    RegimeContextEncoder,
    consistency_loss,
    reference_shape,
    regime_description,
)
from perdure.lm.features import STATE_DIM, FeatureKind

SMALL = EncoderShape(steps=3, width=8, embedding=6, hidden=5, latent=4)


def test_the_description_is_byte_exact():
    logits = [math.log(share) for share in (0.05, 0.19, 0.04, 0.68, 0.03, 0.01)]
    assert regime_description(logits) == "[REGIME: financial_pressure(0.68) | edi_spike(0.19)]"
    assert regime_description(torch.tensor(logits), top=1) == "[REGIME: financial_pressure(0.68)]"
    assert regime_description([0.0, 0.0], labels=("a", "b"), top=5) == "[REGIME: a(0.50) | b(0.50)]"
    assert regime_description([1000.0, 0.0, -1000.0], labels=("x", "y", "z")) == "[REGIME: x(1.00) | y(0.00)]"


def test_a_description_needs_one_finite_logit_a_regime():
    with pytest.raises(ConfigError, match="one finite number a regime"):
        regime_description([0.0])
    with pytest.raises(ConfigError, match="one finite number a regime"):
        regime_description([math.nan] * 6)


@given(st.lists(st.floats(-700, 700), min_size=6, max_size=6))
def test_described_shares_descend(logits):
    told = regime_description(logits, top=6)[len("[REGIME: ") : -1].split(" | ")
    shares = [float(each[each.index("(") + 1 : -1]) for each in told]
    assert shares == sorted(shares, reverse=True)
    assert {each[: each.index("(")] for each in told} == set(CANONICAL_REGIMES)


def test_the_canonical_regimes_stand_in_the_published_order():
    assert CANONICAL_REGIMES == (
        "baseline", "edi_spike", "infra_degradation", "financial_pressure", "workforce_constrained", "baseline_revisit",
    )  # fmt: skip


def test_the_encoder_gives_unit_latents_and_a_logit_a_regime():
    encoder = RegimeContextEncoder(SMALL)
    found = encoder(torch.randn(7, 3, 9))
    assert found.z_BD.shape == (7, 4)
    assert found.logits_BR.shape == (7, 6)
    assert torch.allclose(found.z_BD.norm(dim=-1), torch.ones(7), atol=1e-6)
    assert isinstance(encoder.lstm, torch.nn.LSTM)
    assert encoder.regime_head.out_features == 6
    assert torch.equal(found.logits_BR, encoder.regime_head(found.z_BD))


def test_the_published_shape_maps_4097_numbers_to_256():
    encoder = RegimeContextEncoder(reference_shape())
    assert encoder.shape.width == STATE_DIM == 4096
    assert encoder.embed.in_features == 4097
    assert encoder.embed.out_features == encoder.lstm.input_size == 256
    assert encoder.shape.features == FeatureKind.KEYS
    assert not encoder.shape.live_reward


def test_weights_come_from_the_seed_alone():
    torch.manual_seed(3)
    before = torch.rand(1)
    torch.manual_seed(3)
    first, second, other = (RegimeContextEncoder(SMALL, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.embed.weight, other.embed.weight)


def test_the_order_of_the_steps_matters():
    encoder, rows = RegimeContextEncoder(SMALL), torch.randn(1, 3, 9)
    assert not torch.allclose(encoder(rows).z_BD, encoder(rows.flip(1)).z_BD, atol=1e-3)


def test_consistency_counts_neighbours_inside_an_episode():
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, -1.0], [0.6, 0.8]])
    # 1 - cos: 1, 0, 2, 1.8
    assert consistency_loss(z).item() == pytest.approx((1 + 0 + 2 + 1.8) / 4)
    assert consistency_loss(z, [2, 3]).item() == pytest.approx((1 + 2 + 1.8) / 3)
    assert consistency_loss(z, [1] * 5).item() == 0
    with pytest.raises(ConfigError, match="sum to 4"):
        consistency_loss(z, [4])


def test_no_neighbours_leave_a_gradient_of_0():
    z = torch.ones(1, 2, requires_grad=True)
    consistency_loss(z).backward()
    assert not z.grad.any()


def test_a_saved_encoder_comes_back(tmp_path):
    first, second = RegimeContextEncoder(SMALL, seed=1), RegimeContextEncoder(SMALL, seed=2)
    first.save(tmp_path)
    assert second.load_warmup(tmp_path) == []
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_a_head_of_other_classes_is_left_out_only_where_that_is_asked_for(tmp_path):
    RegimeContextEncoder(SMALL, ("a", "b", "c"), seed=1).save(tmp_path)
    encoder = RegimeContextEncoder(SMALL, seed=2)
    head = encoder.regime_head.weight.clone()
    with pytest.raises(DataError, match=r'trained with labels \["a", "b", "c"\]'):
        encoder.load_warmup(tmp_path)
    assert encoder.load_warmup(tmp_path, foreign=True) == ["regime_head.bias", "regime_head.weight"]
    assert torch.equal(encoder.regime_head.weight, head)
    assert torch.equal(encoder.lstm.weight_ih_l0, RegimeContextEncoder(SMALL, seed=1).lstm.weight_ih_l0)


def test_a_pt_file_is_read_as_weights_only(tmp_path):
    first = RegimeContextEncoder(SMALL, seed=1)
    torch.save(
        {**first.state_dict(), "regime_head.weight": torch.zeros(3, 4), "other": torch.zeros(1)},
        tmp_path / "encoder.pt",
    )
    second = RegimeContextEncoder(SMALL, seed=2)
    assert second.load_warmup(tmp_path / "encoder.pt") == ["other", "regime_head.weight"]
    assert torch.equal(second.embed.weight, first.embed.weight)
    torch.save({"code": Exception}, tmp_path / "encoder.pt")
    with pytest.raises(DataError, match="cannot be read as weights"):
        second.load_warmup(tmp_path)


def test_warmups_that_cannot_be_used_are_refused(tmp_path):
    encoder = RegimeContextEncoder(SMALL)
    with pytest.raises(DataError, match="holds no trained encoder"):
        encoder.load_warmup(tmp_path)
    (tmp_path / "encoder.safetensors").write_bytes(b"torn")
    with pytest.raises(DataError, match="cannot be read as weights"):
        encoder.load_warmup(tmp_path)
    torch.save([1.0], tmp_path / "list.pt")
    with pytest.raises(DataError, match="holds a list"):
        encoder.load_warmup(tmp_path / "list.pt")
    torch.save({"strange": torch.zeros(2)}, tmp_path / "strange.pt")
    with pytest.raises(DataError, match="no tensor that fits"):
        encoder.load_warmup(tmp_path / "strange.pt")


def test_labels_are_named_once():
    with pytest.raises(ConfigError, match="name each regime once"):
        RegimeContextEncoder(SMALL, ("a", "a"))
    with pytest.raises(ConfigError, match="steps is 0"):
        EncoderShape(steps=0)
