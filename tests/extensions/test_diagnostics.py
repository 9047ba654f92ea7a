import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError
from perdure.core.records import Shift, Spec
from perdure.extensions.diagnostics import Diagnostics
from perdure.rl import fit
from perdure.rl.feeds import Epochs
from perdure.rl.nets import Network
from perdure.rl.phases import Batch, Clock, Context

SPEC = Spec((2,), 2, discrete=True)
NETS = {"critic": Network(2, (2,), 2)}


class Greedy:
    """A window-fed agent that takes the best action, and counts rewards double."""

    reward_scale = 2.0
    discount = 0.5
    feed = Epochs()
    offers = frozenset({"critic", "q_critic", "discounted"})

    def act_greedy(self, state, obs, ctx):
        return ctx.nets["critic"].apply(state.params["critic"], obs).argmax(-1)


def critic(first, second):
    """Values of two actions, `first` and `second` times each observed number; hidden units are the numbers."""
    head = jnp.array([[first, second], [first, second]], jnp.float32)
    return [{"w": jnp.eye(2), "b": jnp.zeros(2)}, {"w": head, "b": jnp.zeros(2)}]


NOW = fit.AgentState({"critic": critic(1.0, 3.0)}, {})
BEFORE = fit.AgentState({"critic": critic(1.0, 2.0)}, {})


def rows(obs, rewards):
    obs = jnp.array(obs, jnp.float32)
    no = jnp.zeros(obs.shape[:-1], bool)
    return Batch(obs, no.astype(jnp.int32), jnp.array(rewards, jnp.float32), no, no, 2 * obs)


HERE = rows([[1.0, 0.0], [0.0, 2.0]], [5.0, 5.0])


def context(recent=HERE, shift=False):
    clock = Clock(*[jnp.int32(0)] * 3)
    return Context(SPEC, NETS, 1, clock, jax.random.key(0), shift=shift, recent=recent, before=BEFORE, agent=Greedy())


def measured(extension, state, ctx):
    return {name: float(value) for name, value in jax.jit(lambda: extension.eval_metrics(NOW, state, ctx))().items()}


def test_networks_critic_and_policy_are_measured():
    extension = Diagnostics(rows=2)
    state = extension.init_state(NOW, jax.random.key(0), context())
    agent, state = extension.post_update(NOW, state, context())
    assert agent is NOW
    found = measured(extension, state, context())
    # Hidden activations (1, 0) and (0, 2): singular values 1 and 2, none dormant.
    assert found["diagnostics/critic_dormant_fraction"] == 0.0
    assert found["diagnostics/critic_srank"] == 2.0
    share = np.array([1 / 3, 2 / 3])
    assert found["diagnostics/critic_effective_rank"] == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-4)
    assert found["diagnostics/critic_weight_norm"] == pytest.approx(np.sqrt(2 + 1 + 1 + 9 + 9))
    assert found["diagnostics/critic_update_norm"] == pytest.approx(np.sqrt(2))
    # Values of action 0 are 1 and 2; beyond, action 1 is worth 3 * 2 and 3 * 4: targets 2 * 5 + .5 * 6 and 10 + 6.
    assert found["diagnostics/td_bias"] == pytest.approx(((1 - 13) + (2 - 16)) / 2)
    log = lambda *x: np.array(x) - np.log(np.exp(x).sum())
    divergence = lambda p, q: (np.exp(p) * (p - q)).sum()
    wanted = (divergence(log(1.0, 2.0), log(1.0, 3.0)) + divergence(log(2.0, 4.0), log(2.0, 6.0))) / 2
    assert found["diagnostics/policy_churn"] == pytest.approx(wanted, rel=1e-4)
    assert np.isnan(found["diagnostics/gradient_cosine"])
    assert np.isnan(found["diagnostics/return_bias"])
    assert "diagnostics/policy_entropy" not in found


def test_a_unit_that_is_silent_and_a_rank_of_one_are_seen():
    extension, flat = Diagnostics(rows=2), rows([[1.0, 0.0], [2.0, 0.0]], [0.0, 0.0])
    state = extension.init_state(NOW, jax.random.key(0), context())
    found = measured(extension, state, context(flat))
    assert found["diagnostics/critic_dormant_fraction"] == 0.5
    assert found["diagnostics/critic_srank"] == 1.0
    assert found["diagnostics/critic_effective_rank"] == pytest.approx(1.0, abs=1e-4)


def test_gradients_of_two_regimes_are_compared_from_the_first_shift_on():
    extension = Diagnostics(rows=3)
    state = extension.init_state(NOW, jax.random.key(0), context())
    _, state = extension.post_update(NOW, state, context(rows([[1.0, 0.0]], [5.0])))
    _, state = extension.post_update(NOW, state, context(rows([[0.0, 1.0]], [5.0]), shift=jnp.array(True)))
    np.testing.assert_array_equal(state.former["obs"], [[1.0, 0.0]] * 3)
    np.testing.assert_array_equal(state.present["obs"], [[0.0, 1.0]] * 3)

    # Errors -12 each. Slopes on (1, 0): head[0, 0] and w[0, 0], w[0, 1] (of a unit that is silent: none), biases.
    def slope(obs):
        hidden = np.maximum(obs, 0)
        error = obs.sum() - (2 * 5 + 0.5 * 3 * 2 * obs.sum())
        head, below = np.zeros((2, 2)), error * np.ones(2) * (hidden > 0)
        head[:, 0] = error * hidden
        return np.concatenate([np.outer(obs, below).ravel(), below, head.ravel(), [error, 0.0]])

    one, other = slope(np.array([1.0, 0.0])), slope(np.array([0.0, 1.0]))
    wanted = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    assert measured(extension, state, context())["diagnostics/gradient_cosine"] == pytest.approx(wanted, rel=1e-4)
    _, later = extension.post_update(NOW, state, context(rows([[0.0, 3.0]], [5.0])))
    np.testing.assert_array_equal(later.former["obs"], [[1.0, 0.0]] * 3)


def test_a_window_shows_how_far_values_are_from_what_came_of_them():
    # One copy, two steps, rewards 1 and 2 (double inside), then cut; beyond, at 2 * 1, the best value is 3 * 2.
    window = rows([[[1.0, 0.0]], [[0.0, 1.0]]], [[1.0], [2.0]])._replace(discount=0.5)
    extension = Diagnostics(rows=2)
    state = extension.init_state(NOW, jax.random.key(0), context())
    reward, state = extension.reward(NOW, state, window, window.reward, context())
    np.testing.assert_array_equal(reward, window.reward)
    last = 4 + 0.5 * 6
    assert float(state.return_bias) == pytest.approx(((1 - (2 + 0.5 * last)) + (1 - last)) / 2)


def test_an_evaluation_reports_all_that_the_agent_has(tiny):
    made = tiny.made("ppo", (Diagnostics(rows=8),), rollout={"boundary_source": "oracle"})
    plan = tiny.schedule((96, 1.0), (904, 5.0), source="oracle")
    state, _, _ = tiny.train(made, 96, plan)
    state = made.on_regime_shift(state, Shift("s0", "s0", "s1", "s1", 96, "oracle"))
    state, _, _ = tiny.train(made, 64, plan, state)
    found = made.evaluate(state, {"level": 1.0}, 1).metrics
    each = ("dormant_fraction", "srank", "effective_rank", "weight_norm", "update_norm")
    names = {f"{network}_{what}" for network in ("actor", "critic") for what in each}
    names |= {"policy_churn", "policy_entropy", "td_bias", "gradient_cosine", "return_bias"}
    assert set(found) == {f"diagnostics/{each}" for each in names}
    assert all(np.isfinite(value).all() for value in found.values())
    assert (np.abs(found["diagnostics/gradient_cosine"]) <= 1 + 1e-5).all()
    assert (found["diagnostics/policy_churn"] > 0).all()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"rows": 0}, "rows is 0"), ({"threshold": -1.0}, "threshold is -1"), ({"delta": 2.0}, "delta is 2")],
)
def test_settings_out_of_range_are_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        Diagnostics(**wrong)
