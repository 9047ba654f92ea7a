"""Weights of tokens: worked numbers, and invariance to micro-batches and padding."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from perdure.core.errors import ConfigError, RunFailed
from perdure.lm.objectives import aggregation
from perdure.lm.objectives.table import AGGREGATIONS

MASK = torch.tensor([[0, 1, 1, 0, 1], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
TURNS = torch.tensor([[-1, 0, 0, -1, 1], [-1, 0, -1, -1, -1], [-1, 0, 0, -1, -1]])
OPTIONS = {"token_mean": {}, "sequence_mean": {}, "constant": {"length": 8}, "turn_mean": {}}


def test_denominators_count_what_has_a_trainable_token():
    assert aggregation.count(MASK, TURNS) == (4, 2, 3)
    assert aggregation.count(MASK) == (4, 2, 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_mean", [[0, 0.25, 0.25, 0, 0.25], [0, 0.25, 0, 0, 0]]),
        ("sequence_mean", [[0, 1 / 6, 1 / 6, 0, 1 / 6], [0, 0.5, 0, 0, 0]]),
        ("constant", [[0, 1 / 16, 1 / 16, 0, 1 / 16], [0, 1 / 16, 0, 0, 0]]),
        ("turn_mean", [[0, 1 / 6, 1 / 6, 0, 1 / 3], [0, 1 / 3, 0, 0, 0]]),
    ],
)
def test_worked_numbers(name, expected):
    found = AGGREGATIONS[name](MASK, aggregation.count(MASK, TURNS), TURNS, **OPTIONS[name])
    torch.testing.assert_close(found, torch.tensor([*expected, [0.0] * 5], dtype=torch.float64))


def test_every_aggregation_is_tested():
    assert OPTIONS.keys() == AGGREGATIONS.keys()


@hypothesis.given(st.data(), st.integers(1, 6), st.integers(2, 8))
def test_neither_cutting_nor_padding_changes_the_loss(data, rows, width):
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    mask = torch.rand(rows, width, generator=draw) < 0.6
    mask[0, 1] = True
    turns = torch.arange(width).div(2, rounding_mode="floor").expand(rows, width)
    values = torch.randn(rows, width, generator=draw)
    whole = aggregation.count(mask, turns)
    cut = data.draw(st.integers(0, rows))
    extra = data.draw(st.integers(0, 3))
    for name, aggregate in AGGREGATIONS.items():
        full = aggregation.total(values, aggregate(mask, whole, turns, **OPTIONS[name]))
        parts = 0.0
        for part in (slice(0, cut), slice(cut, rows)):
            padded = [torch.nn.functional.pad(each[part], (0, extra)) for each in (mask, turns, values)]
            weights = aggregate(padded[0], whole, padded[1], **OPTIONS[name])
            parts += aggregation.total(torch.where(padded[0], padded[2], torch.nan), weights)
        torch.testing.assert_close(parts, full, atol=1e-6, rtol=1e-6)


def test_weights_of_a_mean_add_up_to_one():
    for name in ("token_mean", "sequence_mean", "turn_mean"):
        weights = AGGREGATIONS[name](MASK, aggregation.count(MASK, TURNS), TURNS)
        assert float(weights.sum()) == pytest.approx(1.0)


def test_total_leaves_no_trace_of_what_has_no_weight():
    values = torch.tensor([torch.nan, 2.0], requires_grad=True)
    total = aggregation.total(values, torch.tensor([0.0, 0.5]))
    total.backward()
    assert (total.item(), values.grad.tolist()) == (1.0, [0.0, 0.5])


def test_denominators_can_be_pooled():
    assert aggregation.count(MASK, TURNS, pooled=lambda numbers: [2 * each for each in numbers]) == (8, 4, 6)
    nothing = torch.zeros(1, 3).bool()
    assert aggregation.count(nothing, pooled=lambda numbers: [5.0, 1.0, 0.0]).tokens == 5


def test_refusals():
    with pytest.raises(RunFailed, match="no token"):
        aggregation.count(torch.zeros(2, 3).bool())
    with pytest.raises(RunFailed, match="belongs to no turn"):
        aggregation.count(torch.ones(1, 2).bool(), torch.tensor([[-1, 0]]))
    with pytest.raises(ConfigError, match="turn_mean needs"):
        aggregation.turn_mean(MASK, aggregation.count(MASK))
    with pytest.raises(ConfigError, match="length is 0"):
        aggregation.constant(MASK, aggregation.count(MASK), length=0)
