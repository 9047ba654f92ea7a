import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError, Refused
from perdure.core.records import Shift
from perdure.extensions import renewal
from perdure.extensions.renewal import UPGD, ContinualBackprop, ResetMoments, Tended
from perdure.rl import fit
from perdure.rl.nets import Network
from perdure.rl.optim import Adam, OptState
from perdure.rl.phases import Batch, Clock, Context

NETWORK = Network(2, (4,), 1, initialiser="torch")
OBS = jnp.array([[1.0, 2.0], [3.0, 4.0]])


def layers():
    """Mean activations (2, 4, 6, 1), outgoing weights (3, 1, 0.5, -2): contributions (6, 4, 3, 2)."""
    first = jnp.array([[1.0, 2.0, 3.0, 0.5], [0.0] * 4])
    return [{"w": first, "b": jnp.zeros(4)}, {"w": jnp.array([[3.0], [1.0], [0.5], [-2.0]]), "b": jnp.ones(1)}]


def agent_state(params=None):
    params = params or layers()
    ones = jax.tree.map(jnp.ones_like, {"critic": params})
    return fit.AgentState({"critic": params}, {"critic": OptState(jnp.int32(5), ones, ones)})


def context(before, now, shift=False, network=NETWORK):
    clock = lambda updates: Clock(jnp.int32(0), jnp.int32(updates), jnp.int32(1_000))
    rows = Batch(OBS, jnp.zeros((2, 1)), None, None, None, None)
    return Context(
        None,
        {"critic": network},
        1,
        clock(now),
        jax.random.key(3),
        shift=jnp.array(shift),
        recent=rows,
        previous=clock(before),
        agent=Moved(),
    )


class Moved:
    """An agent, as far as a step is concerned."""

    critic_optimiser = Adam(learning_rate=0.5)


def tended(utility, age, owed):
    return Tended(
        {"critic": [jnp.array(utility, jnp.float32)]},
        {"critic": [jnp.array(age, jnp.int32)]},
        {"critic": [jnp.array(owed, jnp.float32)]},
        jnp.int32(0),
    )


def after(extension, state, before, now, agent=None, network=NETWORK):
    """What post_update gives, as one program."""
    ctx = context(before, now, network=network)
    run = jax.jit(lambda agent, state: extension.post_update(agent, state, ctx))
    return run(agent or agent_state(), state)


def test_utility_is_a_running_mean_of_contributions():
    # Half of the old and half of the contributions (6, 4, 3, 2).
    extension = ContinualBackprop(decay=0.5)
    _, state = after(extension, tended([1.0, 2.0, 3.0, 8.0], [7] * 4, 0.0), 10, 11)
    np.testing.assert_allclose(state.utility["critic"][0], [3.5, 3.0, 3.0, 5.0])
    np.testing.assert_array_equal(state.age["critic"][0], [8] * 4)
    assert float(state.owed["critic"][0]) == int(state.replaced) == 0


def test_a_window_counts_all_its_updates():
    # Three updates: an eighth of the old; four mature units owe a share of .05 each three times.
    extension = ContinualBackprop(decay=0.5, replacement_rate=0.05, maturity=5)
    _, state = after(extension, tended([8.0, 0.0, 0.0, 0.0], [7] * 4, 0.1), 10, 13)
    np.testing.assert_allclose(state.utility["critic"][0], [1 + 6 * 7 / 8, 3.5, 3 * 7 / 8, 2 * 7 / 8])
    np.testing.assert_array_equal(state.age["critic"][0], [10] * 4)
    assert float(state.owed["critic"][0]) == pytest.approx(0.1 + 3 * 0.05 * 4)


def test_the_least_useful_mature_unit_is_begun_anew_once_a_whole_one_is_owed():
    # Unit 3 is the least useful of all but young; of the mature ones unit 2 is. Two units owed, .4 left.
    extension = ContinualBackprop(decay=0.5, replacement_rate=0.1, maturity=5)
    agent, state = after(extension, tended([6.0, 4.0, 3.0, 2.0], [9, 9, 9, 1], 0.7 + 0.4), 10, 11)
    first, second = agent.params["critic"]
    old = layers()
    assert (first["w"][:, 2] != old[0]["w"][:, 2]).all()
    np.testing.assert_array_equal(first["w"][:, [0, 1, 3]], old[0]["w"][:, [0, 1, 3]])
    np.testing.assert_array_equal(second["w"][:, 0], [3.0, 1.0, 0.0, -2.0])
    np.testing.assert_array_equal(second["b"], old[1]["b"])
    np.testing.assert_allclose(state.owed["critic"][0], 1.1 + 3 * 0.1 - 1, rtol=1e-6)
    np.testing.assert_allclose(state.utility["critic"][0], [6.0, 4.0, 0.0, 2.0])
    np.testing.assert_array_equal(state.age["critic"][0], [10, 10, 0, 2])
    assert int(state.replaced) == 1
    moments = agent.opt["critic"].mean["critic"]
    np.testing.assert_array_equal(moments[0]["w"], [[1, 1, 0, 1]] * 2)
    np.testing.assert_array_equal(moments[1]["w"][:, 0], [1, 1, 0, 1])
    assert extension.eval_metrics(agent, state, context(10, 11))["continual_backprop/mature_fraction"] == 0.5


def test_young_units_are_judged_by_a_mean_that_is_corrected_for_its_start():
    # At decay 1/2 unit 0 (age 2, utility 3, corrected 4) is worth more than unit 1 (age 6, utility 3.5, 3.56).
    extension = ContinualBackprop(decay=0.5, replacement_rate=0.0, maturity=1)
    flat = [{"w": jnp.ones((2, 4)), "b": jnp.zeros(4)}, {"w": jnp.zeros((4, 1)), "b": jnp.ones(1)}]
    agent, state = after(extension, tended([6.0, 7.0, 90.0, 90.0], [1, 5, 9, 9], 1.0), 10, 11, agent_state(flat))
    np.testing.assert_array_equal(state.age["critic"][0], [2, 0, 10, 10])
    assert (agent.params["critic"][0]["w"][:, 1] != 1).all()


def test_every_member_of_an_ensemble_is_owed_and_loses_its_own_units():
    network = Network(2, (4,), 1, members=2, initialiser="torch")
    both = jax.tree.map(lambda x: jnp.stack([x, x]), layers())
    state = tended([[6.0, 4.0, 3.0, 2.0], [1.0, 4.0, 3.0, 9.0]], [[9] * 4, [9] * 4], [1.0, 0.3])
    extension = ContinualBackprop(decay=0.5, replacement_rate=0.0, maturity=5)
    agent, state = after(extension, state, 10, 11, agent_state(both), network)
    assert (agent.params["critic"][0]["w"][0, :, 3] != both[0]["w"][0, :, 3]).all()
    np.testing.assert_array_equal(agent.params["critic"][1]["w"][0, :, 0], [3.0, 1.0, 0.5, 0.0])
    np.testing.assert_array_equal(agent.params["critic"][0]["w"][1], both[0]["w"][1])
    np.testing.assert_allclose(state.owed["critic"][0], [0.0, 0.3])


def test_freedom_is_one_minus_the_sigmoid_of_scaled_utility():
    # Utilities -g w: (2, -3) and (4,); the largest, 4, is of the whole network.
    params = [{"w": jnp.array([1.0, 3.0])}, {"w": jnp.array([-2.0])}]
    slopes = [{"w": jnp.array([-2.0, 1.0])}, {"w": jnp.array([2.0])}]
    found = renewal.freedom(params, slopes, apart=False)
    sigmoid = lambda x: 1 / (1 + np.exp(-np.array(x)))
    np.testing.assert_allclose(found[0]["w"], 1 - sigmoid([2 / 4, -3 / 4]), rtol=1e-6)
    np.testing.assert_allclose(found[1]["w"], 1 - sigmoid([1.0]), rtol=1e-6)


def test_freedom_of_members_is_scaled_member_by_member():
    params, slopes = [{"w": jnp.array([[1.0, 2.0], [8.0, 1.0]])}], [{"w": -jnp.ones((2, 2))}]
    found = renewal.freedom(params, slopes, apart=True)[0]["w"]
    wanted = 1 - 1 / (1 + np.exp(-np.array([[1 / 2, 1.0], [1.0, 1 / 8]])))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert float(renewal.freedom(params, [{"w": jnp.zeros((2, 2))}], apart=False)[0]["w"].max()) == 0.5


def test_a_gated_step_is_the_freedom_times_the_step_and_its_noise():
    params = layers()
    change = {"critic": jax.tree.map(lambda x: jnp.full(x.shape, 0.25), params), "log_std": jnp.ones(2)}
    state = agent_state()
    free = renewal.freedom(params, state.opt["critic"].mean["critic"], apart=False)
    still = UPGD(noise=0.0).step(state, (), change, None, context(0, 1))
    np.testing.assert_allclose(still["critic"][0]["w"], 0.25 * free[0]["w"], rtol=1e-6)
    np.testing.assert_array_equal(still["log_std"], 1.0)
    # The noise has the deviation `noise` times the learning rate of the network's own optimiser, 0.5.
    large = Network(100, (100,), 1)
    wide = jax.tree.map(jnp.zeros_like, [{"w": jnp.zeros((100, 100))}, {"w": jnp.zeros((100, 1))}])
    noisy = UPGD(noise=0.2).step(agent_state(wide), (), {"critic": wide}, None, context(0, 1, network=large))
    assert float(noisy["critic"][0]["w"].std()) == pytest.approx(0.5 * 0.2 * 0.5, rel=0.03)
    later = agent_state(wide)._replace(opt={"critic": agent_state(wide).opt["critic"]._replace(count=jnp.int32(6))})
    other = UPGD(noise=0.2).step(later, (), {"critic": wide}, None, context(0, 1, network=large))
    assert (other["critic"][0]["w"] != noisy["critic"][0]["w"]).any()  # Several steps in an update draw anew.


@pytest.mark.parametrize(("before", "now", "due"), [(0, 9, False), (9, 10, True), (10, 19, False), (4, 44, True)])
def test_moments_are_forgotten_when_the_interval_is_crossed(before, now, due):
    state, _ = ResetMoments(interval=10).post_update(agent_state(), (), context(before, now))
    moments = state.opt["critic"]
    assert (int(moments.count) == 0) == due
    assert all((leaf == (0 if due else 1)).all() for leaf in jax.tree.leaves((moments.mean, moments.square)))
    np.testing.assert_array_equal(state.params["critic"][0]["w"], layers()[0]["w"])


def test_a_reset_that_waits_for_shifts_acts_on_them_alone(tiny):
    extension = ResetMoments(trigger="shift")
    for shift in (False, True):
        state, _ = extension.post_update(agent_state(), (), context(0, 100_000, shift=shift))
        assert (int(state.opt["critic"].count) == 0) == shift
    with pytest.raises(Refused, match=r"ResetMoments\) needs boundary"):
        tiny.made("ppo", (extension,))


def test_in_training_units_are_replaced_steps_are_gated_and_moments_go_at_a_shift(tiny):
    extensions = (ContinualBackprop(replacement_rate=0.05, maturity=2), UPGD(), ResetMoments(trigger="shift"))
    made = tiny.made("sac", extensions, rollout={"boundary_source": "oracle"})
    plan = tiny.schedule((96, 1.0), (904, 1.0), source="oracle")
    state, _, _ = tiny.train(made, 96, plan)
    counts = {group: np.array(each.count) for group, each in state.train.seeds.agent.opt.items()}
    found = made.evaluate(state, {"level": 1.0}, 1).metrics
    assert (found["continual_backprop/replaced_units"] >= 1).all()
    assert ((found["continual_backprop/mature_fraction"] > 0) & (found["continual_backprop/mature_fraction"] < 1)).all()
    state = made.on_regime_shift(state, Shift("s0", "s0", "s1", "s1", 96, "oracle"))
    state, _, _ = tiny.train(made, 32, plan, state)
    for group, each in state.train.seeds.agent.opt.items():
        assert (np.asarray(each.count) < counts[group]).all()
    assert all(np.isfinite(leaf).all() for leaf in tiny.host(state.train.seeds.agent.params).values())


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        (ContinualBackprop, {"replacement_rate": 1.5}, "replacement_rate is 1.5"),
        (ContinualBackprop, {"decay": 1.0}, "decay is 1.0"),
        (ContinualBackprop, {"maturity": -1}, "maturity is -1"),
        (UPGD, {"noise": -0.1}, r"noise is -0\.1"),
        (ResetMoments, {"trigger": "often"}, "trigger is 'often'"),
        (ResetMoments, {"interval": 0}, "interval is 0"),
    ],
)
def test_settings_out_of_range_are_refused(kind, wrong, says):
    with pytest.raises(ConfigError, match=says):
        kind(**wrong)
