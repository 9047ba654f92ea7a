"""Advantages of token batches, against writings of the sums themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.lm import estimates
from perdure.lm.batch import TokenBatch
from perdure.lm.conversation import Recorded
from perdure.lm.trajectory import Sampled, Stop


def row(*turns):
    """(tokens, reward) a turn, after two tokens of the environment each."""
    made = Recorded()
    for length, reward in turns:
        made.observe([1, 2])
        made.answer(Sampled([3] * length, [-1.0] * length, Stop.END)).reward = reward
    return made


def by_hand(batch, values, bootstraps, gamma, lam):
    """The definition: A_t sums the errors of the episode from t on, decayed by lam a token and gamma a turn."""
    tokens = []  # (row, position, reward, value, turn ends)
    for number, each in enumerate(batch.rows):
        for turn in each.turns:
            at = [t for t in range(turn.start, turn.end) if each.mask[t]]
            tokens.append([(number, t, turn.reward * (t == at[-1]), values[number][t], t == at[-1]) for t in at])
    lengths, begin, found = batch.episode_lengths or [1] * len(tokens), 0, {}
    for length, bootstrap in zip(lengths, bootstraps):
        flat = [token for turn in tokens[begin : begin + length] for token in turn]
        begin += length
        following = [token[3] for token in flat[1:]] + [bootstrap]
        discounts = [gamma if token[4] else 1.0 for token in flat]
        errors = [token[2] + g * v - token[3] for token, g, v in zip(flat, discounts, following)]
        for i, token in enumerate(flat):
            weights = np.cumprod([1.0, *(lam * g for g in discounts[i:-1])])
            found[token[:2]] = float(np.dot(weights, errors[i:]))
    return found


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 4), st.floats(-2, 2)), min_size=1, max_size=3), min_size=2, max_size=3),
    st.integers(0, 1000),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_token_advantages_are_the_decayed_errors(rows, seed, gamma, lam):
    rng = np.random.default_rng(seed)
    made = [row(*turns) for turns in rows]
    for each in made:  # Some answers are trained from a later token on.
        for turn in each.turns:
            start = turn.start + rng.integers(turn.end - turn.start)
            each.mask[turn.start : start] = [False] * (start - turn.start)
    turns = sum(len(each.turns) for each in made)
    cut = int(rng.integers(1, turns + 1))
    lengths = (cut, turns - cut) if cut < turns else (turns,)
    batch = TokenBatch(tuple(made), lengths)
    values = [rng.normal(size=len(each)) for each in made]
    bootstraps = rng.normal(size=len(lengths)).tolist()
    found = estimates.by_token(batch, values, bootstraps, gamma, lam)
    expected = by_hand(batch, values, bootstraps, gamma, lam)
    for number, each in enumerate(made):
        for t, chosen in enumerate(each.mask):
            target = expected[number, t] + values[number][t] if chosen else 0.0
            assert found.returns[number][t] == pytest.approx(target, abs=1e-9)
            assert chosen or found.advantages[number][t] == 0
    raw = np.array([expected[key] for key in expected])
    scaled = np.array([found.advantages[number][t] for number, t in expected])
    if len(raw) > 1 and np.ptp(raw) > 1e-3:
        np.testing.assert_allclose(scaled, (raw - raw.mean()) / raw.std(), atol=1e-6)


def test_environment_tokens_have_no_part():
    quiet, loud = row((2, 1.0), (2, 0.0)), row((2, 1.0), (2, 0.0))
    values = [np.arange(8.0)], [np.arange(8.0)]
    values[1][0][[0, 1, 4, 5]] = np.nan
    one, other = (
        estimates.by_token(TokenBatch((each,), (2,)), held, [0.0], 0.9, 0.9)
        for each, held in zip((quiet, loud), values)
    )
    np.testing.assert_array_equal(one.advantages[0], other.advantages[0])


def test_without_lengths_every_turn_stands_alone():
    batch = TokenBatch((row((1, 1.0), (1, 2.0)),))
    found = estimates.by_token(batch, [np.zeros(6)], [0.0, 0.0], 0.9, 0.9)
    np.testing.assert_allclose(found.returns[0], [0, 0, 1, 0, 0, 2])


@pytest.mark.parametrize(
    ("lengths", "advantages", "returns"),
    [
        (None, [0.5, -0.4, 1.7], [1, 0, 2]),
        ((3,), [2.302847, 1.49585, 1.7], [2.802847, 1.89585, 2]),
        ((2, 1), [0.5198, -0.4, 1.7], [1.0198, 0, 2]),
    ],
)
def test_turn_advantages_are_the_references(lengths, advantages, returns):
    batch = TokenBatch(tuple(row((2, reward)) for reward in (1.0, 0.0, 2.0)), lengths)
    found = estimates.by_turn(batch, [0.5, 0.4, 0.3], [0.0] * batch.count, 0.99, 0.95)
    np.testing.assert_allclose(np.concatenate(found.returns), returns, atol=1e-6)
    raw = np.array(advantages)
    for each, expected in zip(found.advantages, (raw - raw.mean()) / (raw.std() + 1e-8)):
        np.testing.assert_allclose(each, [0, 0, expected, expected], atol=1e-5)


def test_one_sample_is_not_normalised():
    found = estimates.by_turn(TokenBatch((row((1, 3.0)),), (1,)), [0.5], [0.0], 0.99, 0.95)
    np.testing.assert_allclose(found.advantages[0], [0, 0, 2.5])
    token = estimates.by_token(TokenBatch((row((1, 3.0)),), (1,)), [np.full(3, 0.5)], [0.0], 0.99, 0.95)
    np.testing.assert_allclose(token.advantages[0], [0, 0, 2.5])


def test_what_follows_counts_after_the_last_turn():
    batch = TokenBatch((row((1, 1.0)),), (1,), ((5, 6),))
    assert estimates.by_turn(batch, [0.0], [2.0], 0.5, 1.0).returns[0] == pytest.approx([2.0])
    assert estimates.by_token(batch, [np.zeros(3)], [2.0], 0.5, 1.0).returns[0][2] == pytest.approx(2.0)


def test_explained_variance():
    returns = np.array([0.0, 1.0, 2.0, 3.0])
    assert estimates.explained_variance(returns, returns) == 1
    assert estimates.explained_variance(np.zeros(4), returns) == 0
    assert np.isnan(estimates.explained_variance(returns, np.ones(4)))
