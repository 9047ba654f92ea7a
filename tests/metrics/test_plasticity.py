import math

import numpy as np
import pytest

from perdure.metrics import plasticity

FUNCTIONS = (
    plasticity.effective_rank_entropy,
    plasticity.stable_rank,
    plasticity.spectral_stable_rank,
    plasticity.threshold_rank,
    plasticity.dormant_fraction,
)


def test_singular_values_2_1_1_have_effective_rank_two_root_two():
    assert plasticity.effective_rank_entropy(np.diag([2.0, 1.0, 1.0])) == pytest.approx(2 * math.sqrt(2))


def test_equal_singular_values_have_full_rank_by_every_measure():
    identity = 7 * np.eye(5)
    assert plasticity.effective_rank_entropy(identity) == pytest.approx(5)
    assert plasticity.spectral_stable_rank(identity) == pytest.approx(5)
    assert plasticity.threshold_rank(identity) == 5


def test_an_outer_product_has_rank_one_by_every_measure():
    flat = np.outer(np.arange(1.0, 9), [1.0, 2.0, 3.0])
    assert plasticity.effective_rank_entropy(flat) == pytest.approx(1)
    assert plasticity.spectral_stable_rank(flat) == pytest.approx(1)
    assert plasticity.stable_rank(flat) == 1


def test_the_threshold_rank_counts_until_the_mass_is_reached():
    matrix = np.diag([6.0, 3.0, 0.9, 0.1])  # shares .6 .9 .99 1
    assert plasticity.stable_rank(matrix, 0.6) == 1
    assert plasticity.stable_rank(matrix, 0.61) == 2
    assert plasticity.stable_rank(matrix) == 3
    assert plasticity.threshold_rank(matrix, delta=0.005) == 4
    assert plasticity.stable_rank(matrix, 1.0) == 4
    # (1 + 1 / 2) / (1 + 1 / 2 + 1 / 6) rounds to just below 0.9.
    assert plasticity.stable_rank(np.diag([6.0, 3.0, 1.0]), 0.9) == 2


def test_the_spectral_rank_is_a_ratio_of_norms():
    assert plasticity.spectral_stable_rank(np.diag([2.0, 1.0, 1.0])) == pytest.approx(6 / 4)


def test_scale_and_tokens_without_activation_change_nothing():
    matrix = np.random.default_rng(0).normal(size=(20, 6))
    padded = np.concatenate([1e200 * matrix, np.zeros((3, 6))])
    for function in FUNCTIONS[:4]:
        assert function(padded) == pytest.approx(function(matrix))


def test_dormant_units_are_those_far_below_the_average():
    # Mean activations 1, -1 (counted by size), 0 and .02; the average is .505.
    features = np.tile([1.0, -1.0, 0.0, 0.02], (10, 1))
    assert plasticity.dormant_fraction(features) == 0.25
    assert plasticity.dormant_fraction(features, tau=0.05) == 0.5


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "matrix",
    [
        [],
        [[]],
        [1.0, 2.0],
        3.0,
        np.zeros((4, 3)),
        np.ones((2, 2, 2)),
        [[1.0, np.nan]],
        [[np.inf, 1.0]],
        [[1.0], [1.0, 2.0]],
        "text",
        None,
    ],
    ids=str,
)
def test_undefined_input_gives_none(function, matrix):
    assert function(matrix) is None


@pytest.mark.parametrize("function", FUNCTIONS[:4])
def test_a_decomposition_that_does_not_converge_gives_none(function, monkeypatch):
    def fail(*_, **__):
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr(np.linalg, "eigvalsh", fail)
    assert function(np.eye(3)) is None
