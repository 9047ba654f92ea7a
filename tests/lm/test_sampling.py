"""Drawing tokens: exact measures of uniform numbers, truncation by hand, log-probabilities."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from perdure.core.errors import ConfigError  # noqa: E402
from perdure.lm.sampling import Sampling, draw  # noqa: E402

LOGITS = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.5])


def expected(logits, temperature=1.0, top_k=0, top_p=1.0):
    """Probabilities by id, written with NumPy and loops."""
    weights = np.exp(logits.double().numpy() / temperature)
    order = sorted(range(len(weights)), key=lambda token: -weights[token])
    order = order[:top_k] if top_k else order
    share = weights[order] / weights[order].sum()
    kept, mass = [], 0.0
    for token, probability in zip(order, share, strict=True):
        kept.append(token)
        mass += probability
        if mass >= top_p:
            break
    return {token: weights[token] / weights[kept].sum() for token in kept}


def enumerated(sampling, grid=20_000):
    """Share of the interval that falls to each token, and the log-probabilities told."""
    uniforms = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid
    ids, logprobs = draw(LOGITS.expand(grid, -1), uniforms, sampling)
    shares = torch.bincount(ids, minlength=5) / grid
    return {token: float(share) for token, share in enumerate(shares) if share}, dict(
        zip(ids.tolist(), logprobs.tolist(), strict=True)
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.5}, {"temperature": 3.0}, {"top_k": 2}, {"top_p": 0.8}, {"top_p": 0.5, "temperature": 2.0},
     {"top_k": 3, "top_p": 0.7}, {"top_k": 1}, {"top_k": 9}, {"top_p": 1e-6}],
)  # fmt: skip
def test_shares_of_the_interval_are_the_probabilities(options):
    shares, logprobs = enumerated(Sampling(**options))
    wanted = expected(LOGITS, **options)
    assert shares == pytest.approx(wanted, abs=1e-4)
    assert logprobs == pytest.approx({token: math.log(share) for token, share in wanted.items()}, abs=1e-6)


def test_tokens_lie_in_the_order_of_their_ids():
    ids, _ = draw(LOGITS.expand(50, -1), torch.linspace(0, 0.999, 50, dtype=torch.float64), Sampling())
    assert ids.tolist() == sorted(ids.tolist())
    assert (ids[0], ids[-1]) == (0, 4)


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=300),
    st.sampled_from([0.0, 1e-12, 0.5, 1 - 2**-24, 1 - 2**-53]),
    st.integers(0, 4),
)
def test_no_uniform_number_finds_a_token_without_probability(logits, uniform, forbidden):
    logits = torch.tensor([-math.inf] * forbidden + logits + [-math.inf] * forbidden)[None]
    for sampling in (Sampling(), Sampling(top_p=0.9), Sampling(top_k=3)):
        ids, logprobs = draw(logits, torch.tensor([uniform], dtype=torch.float64), sampling)
        assert forbidden <= int(ids) < logits.shape[1] - forbidden
        assert -80 < float(logprobs) <= 1e-6


def test_greedy_takes_the_likeliest_and_tells_its_plain_probability():
    sampling = Sampling(greedy=True, temperature=5.0, top_k=1)
    ids, logprobs = draw(LOGITS[None], torch.tensor([0.0], dtype=torch.float64), sampling)
    assert int(ids) == 2
    assert float(logprobs) == pytest.approx(math.log(expected(LOGITS)[2]), abs=1e-6)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(greedy=True), Sampling(top_p=0.5), Sampling(top_k=2)])
def test_a_row_with_nan_tells_it_and_leaves_the_others(sampling):
    logits = torch.stack([LOGITS, LOGITS.clone()])
    logits[0, 3] = math.nan
    _, logprobs = draw(logits, torch.tensor([0.3, 0.3], dtype=torch.float64), sampling)
    assert math.isnan(logprobs[0])
    assert math.isfinite(logprobs[1])


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.0}, {"temperature": math.inf}, {"temperature": math.nan}, {"top_k": -1}, {"top_p": 0.0},
     {"top_p": 1.1}, {"max_new_tokens": 0}, {"stop": ("x", "")}],
)  # fmt: skip
def test_impossible_options_are_refused_by_name(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        Sampling(**options)
