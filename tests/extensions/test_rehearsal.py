import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError
from perdure.core.records import Spec
from perdure.extensions import rehearsal
from perdure.extensions.rehearsal import AGEM, CLEAR, Memory
from perdure.rl import fit, views
from perdure.rl.nets import Network
from perdure.rl.phases import Batch, Clock, Context

DISCRETE = Spec((1,), 2, discrete=True)
NETS = {"actor": Network(1, (1,), 2), "critic": Network(1, (1,), 1)}


class Offering:
    """An agent, as far as what it offers is asked."""

    def __init__(self, *offers):
        self.offers = frozenset(offers)


def linear(*columns):
    """A network that multiplies a positive number by each of `columns`."""
    return [
        {"w": jnp.ones((1, 1)), "b": jnp.zeros(1)},
        {"w": jnp.array([columns], jnp.float32), "b": jnp.zeros(len(columns))},
    ]


def state_of(actor, critic):
    return fit.AgentState({"actor": linear(*actor), "critic": linear(critic)}, {})


def rows(obs, action):
    obs = jnp.array(obs, jnp.float32)[:, None]
    no = jnp.zeros(len(obs), bool)
    return Batch(obs, jnp.array(action, jnp.int32), jnp.ones(len(obs)), no, no, 2.0 * obs)


def context(recent=None, before=None, offers=("v_critic", "discounted")):
    clock = Clock(*[jnp.int32(0)] * 3)
    return Context(DISCRETE, NETS, 1, clock, jax.random.key(0), recent=recent, before=before, agent=Offering(*offers))


def log_softmax(*x):
    x = np.array(x, np.float64)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def remembered(**columns):
    """A memory of one row: obs 1, action 1, reward 3, going on to obs 2; then values 5 and a policy (.5, .5)."""
    own = {
        "obs": jnp.ones((1, 1)),
        "action": jnp.ones(1, jnp.int32),
        "reward": jnp.full(1, 3.0),
        "terminated": jnp.zeros(1, bool),
        "next_obs": jnp.full((1, 1), 2.0),
        "value": jnp.full((1, 1), 5.0),
        "policy": jnp.log(jnp.full((1, 2), 0.5)),
    }
    return Memory(own | columns, jnp.int32(1))


NOW = state_of((0.0, 1.0), 4.0)
"""Log-odds (0, 1) at observation 1; its value is 4, that of observation 2 is 8."""
POLICY = np.exp(log_softmax(0.0, 1.0))
KL = float((0.5 * (np.log(0.5) - np.log(POLICY))).sum())


def loss_of(extension, phase, memory, params, discount=0.5, offers=("v_critic", "discounted"), agent=NOW):
    """Value and slopes of a term in the parameters of one network, as one program."""
    ctx = context(offers=offers)

    def term(params):
        batch = rows([1.0], [0])._replace(params=params, discount=discount)
        return getattr(extension, phase)(agent, memory, batch, ctx)[0]

    return jax.jit(jax.value_and_grad(term))(params)


def test_rows_come_in_with_what_the_agent_said_before_the_update():
    recent, before = rows([1.0, 3.0], [1, 0]), state_of((0.0, 1.0), 4.0)
    extension, ctx = CLEAR(capacity=3, rows=2), context(recent, before)
    begun = extension.init_state(before, jax.random.key(0), ctx)
    _, memory = extension.post_update(state_of((9.0, 9.0), 9.0), begun, ctx)
    assert int(memory.seen) == 2
    kept = {name: np.asarray(column)[:2] for name, column in memory.columns.items()}
    np.testing.assert_allclose(kept["obs"][:, 0], [1.0, 3.0])
    np.testing.assert_allclose(kept["next_obs"][:, 0], [2.0, 6.0])
    np.testing.assert_array_equal(kept["action"], [1, 0])
    np.testing.assert_allclose(kept["value"][:, 0], [4.0, 12.0])
    np.testing.assert_allclose(kept["policy"], log_softmax([0.0, 1.0], [0.0, 3.0]), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(memory.columns["value"])[2], 0.0)


def test_cloning_terms_are_the_divergence_and_the_squared_distance():
    extension = CLEAR(rows=1, capacity=1, policy_cloning=0.1, value_cloning=0.2, replay=0.0)
    value, slopes = loss_of(extension, "actor_loss", remembered(), {"actor": NOW.params["actor"]})
    assert float(value) == pytest.approx(0.1 * KL, rel=1e-5)
    # d KL(mu || pi) / d logits = pi - mu; the hidden unit is 1.
    np.testing.assert_allclose(slopes["actor"][1]["w"][0], 0.1 * (POLICY - 0.5), rtol=1e-4)
    value, slopes = loss_of(extension, "critic_loss", remembered(), {"critic": NOW.params["critic"]})
    assert float(value) == pytest.approx(0.2 * (4 - 5) ** 2, rel=1e-5)
    np.testing.assert_allclose(slopes["critic"][1]["w"], 0.2 * 2 * (4 - 5), rtol=1e-5)


@pytest.mark.parametrize(("then", "ratio"), [(0.9, POLICY[1] / 0.9), (0.5, 1.0)])
def test_replay_is_corrected_by_truncated_importance(then, ratio):
    # Error 3 + .5 * 8 - 4 = 3. The action was taken with probability `then`, now it is .731.
    memory = remembered(policy=jnp.log(jnp.array([[1 - then, then]])))
    extension = CLEAR(rows=1, capacity=1, policy_cloning=0.0, value_cloning=0.0, replay=2.0)
    value, slopes = loss_of(extension, "critic_loss", memory, {"critic": NOW.params["critic"]})
    assert float(value) == pytest.approx(2 * 0.5 * (ratio * 3) ** 2, rel=1e-4)
    np.testing.assert_allclose(slopes["critic"][1]["w"], -2 * ratio * 3, rtol=1e-4)
    value, slopes = loss_of(extension, "actor_loss", memory, {"actor": NOW.params["actor"]})
    assert float(value) == pytest.approx(-2 * ratio * 3 * np.log(POLICY[1]), rel=1e-4)
    np.testing.assert_allclose(slopes["actor"][1]["w"][0], -2 * ratio * 3 * (np.array([0, 1]) - POLICY), rtol=1e-4)


def test_a_terminated_row_has_no_value_beyond_it():
    extension = CLEAR(rows=1, capacity=1, policy_cloning=0.0, value_cloning=0.0)
    memory = remembered(terminated=jnp.ones(1, bool))
    value, _ = loss_of(extension, "critic_loss", memory, {"critic": NOW.params["critic"]})
    assert float(value) == pytest.approx(0.5 * (3 - 4) ** 2, rel=1e-5)


@pytest.mark.parametrize("offers", [("v_critic",), ("q_critic", "discounted", "replay")])
def test_agents_without_discounted_state_values_are_given_the_cloning_terms_alone(offers):
    extension = CLEAR(rows=1, capacity=1, policy_cloning=0.1, value_cloning=0.2, replay=5.0)
    value, _ = loss_of(extension, "critic_loss", remembered(), {"critic": NOW.params["critic"]}, None, offers)
    assert float(value) == pytest.approx(0.2, rel=1e-5)
    assert "reward" not in extension.init_state(NOW, jax.random.key(0), context(offers=offers)).columns


@pytest.mark.parametrize("phase", ["critic_loss", "actor_loss"])
def test_an_empty_memory_adds_nothing(phase):
    network = phase.removesuffix("_loss")
    empty = remembered()._replace(seen=jnp.int32(0))
    value, slopes = loss_of(CLEAR(rows=1, capacity=1), phase, empty, {network: NOW.params[network]})
    assert float(value) == 0.0
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(slopes))


def test_a_gradient_that_undoes_the_past_loses_just_that_part():
    # g = (1, 2, 3), r = (0, -1, 0): g.r = -2, r.r = 1, so g - (-2) r = (1, 0, 3).
    g, r = {"a": jnp.array([1.0, 2.0]), "b": jnp.array([3.0])}, {"a": jnp.array([0.0, -1.0]), "b": jnp.array([0.0])}
    found = rehearsal.projected(g, r)
    np.testing.assert_allclose(found["a"], [1.0, 0.0])
    np.testing.assert_allclose(found["b"], [3.0])
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), rehearsal.projected(g, g), g))
    zero = jax.tree.map(jnp.zeros_like, g)
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), rehearsal.projected(g, zero), g))


def test_the_reference_is_the_distance_from_what_was_said():
    # The value is 4 and was 5: the reference slope in the head is 4 - 5 = -1. A gradient of +2 would lower the value.
    extension = AGEM(rows=1, capacity=1)
    zero = jax.tree.map(jnp.zeros_like, NOW.params["critic"])
    pushing = lambda number: {"critic": [zero[0], {"w": jnp.full((1, 1), number), "b": jnp.zeros(1)}]}
    run = jax.jit(lambda state, grads: extension.gradient(NOW, state, grads, None, context()))
    # r: head weight -1, head bias -1, first weight and bias -4. r.r = 1 + 1 + 16 + 16 = 34; g.r = -2.
    down = run(remembered(), pushing(2.0))["critic"]
    np.testing.assert_allclose(down[1]["w"], 2.0 - (-2 / 34) * -1.0, rtol=1e-5)
    np.testing.assert_allclose(down[0]["w"], -(-2 / 34) * -4.0, rtol=1e-5)
    up = run(remembered(), pushing(-2.0))["critic"]
    np.testing.assert_allclose(up[1]["w"], -2.0)
    empty = run(remembered()._replace(seen=jnp.int32(0)), pushing(2.0))["critic"]
    np.testing.assert_allclose(empty[1]["w"], 2.0)
    other = {"log_temperature": jnp.ones(())}
    assert extension.gradient(NOW, remembered(), other, None, context()) is other


def test_a_policy_and_its_spread_are_held_together():
    spec = Spec((1,), 1, discrete=False, low=(-1.0,), high=(1.0,))
    nets = {"actor": Network(1, (1,), 1), "critic": Network(1, (1,), 1)}
    params = {"actor": linear(1.0), "critic": linear(4.0), "log_std": jnp.zeros(1)}
    # Then: mean 0, log_std 0; now mean 1. KL = .5, its slopes: mean 1, log_std 1 - (1 + 1) = -1.
    memory = remembered(action=jnp.zeros((1, 1)), policy=jnp.zeros((1, 2)), value=jnp.full((1, 1), 4.0))
    ctx = context()._replace(spec=spec, nets=nets)
    grads = jax.tree.map(jnp.zeros_like, params) | {"log_std": jnp.array([3.0])}
    state = fit.AgentState(params, {})
    found = jax.jit(lambda grads: AGEM(rows=1, capacity=1).gradient(state, memory, grads, None, ctx))(grads)
    # Slopes: head weight 1, head bias 1, first weight 1, first bias 1, log_std -1: r.r = 5, g.r = -3.
    np.testing.assert_allclose(found["log_std"], 3.0 - (-3 / 5) * -1.0, rtol=1e-5)
    np.testing.assert_allclose(found["actor"][1]["w"], 0.6, rtol=1e-5)
    np.testing.assert_allclose(found["critic"][1]["w"], 0.0, atol=1e-6)


def test_rehearsal_keeps_a_trained_critic_near_what_it_said(tiny):
    """A strong pull to remembered values, and a projection, against neither."""

    def distance(extensions):
        made = tiny.made("ppo", extensions)
        state, _, metrics = tiny.train(made, 192)
        agent, memory = state.train.seeds.agent, state.train.seeds.extensions.states[0]
        ctx = made.trainer.context(state.train.clock)
        of = lambda agent, columns: views.critic_values(ctx, agent.params["critic"], columns["obs"], columns["action"])
        now = jax.jit(jax.vmap(of))(agent, memory.columns)
        assert np.isfinite(metrics[-1]["loss/critic"]).all()
        return float(np.abs(np.swapaxes(now, 1, 2) - np.asarray(memory.columns["value"])).mean()), memory

    free, _ = distance((CLEAR(capacity=40, rows=16, policy_cloning=0.0, value_cloning=0.0, replay=0.0),))
    held, memory = distance((CLEAR(capacity=40, rows=16, value_cloning=100.0), AGEM(capacity=40, rows=16)))
    assert held < 0.5 * free
    assert (np.asarray(memory.seen) > 40).all()


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        (CLEAR, {"capacity": 0}, "capacity is 0"),
        (CLEAR, {"value_cloning": -1.0}, "value_cloning is -1"),
        (CLEAR, {"replay": -1.0}, "replay is -1"),
        (AGEM, {"rows": 0}, "rows is 0"),
    ],
)
def test_settings_out_of_range_are_refused(kind, wrong, says):
    with pytest.raises(ConfigError, match=says):
        kind(**wrong)
