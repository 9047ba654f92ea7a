from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.records import Spec
from perdure.rl import fit, phi
from perdure.rl.nets import Network
from perdure.rl.ops import moments, prng
from perdure.rl.optim import Adam
from perdure.rl.phases import Batch

PAIR = Network(3, (3,), 1, members=2, reads="obs_action")
CHOICES = Spec((2,), 3, discrete=True)


@pytest.fixture(scope="module")
def stage(load_module):
    return load_module(Path(__file__).with_name("stage.py"))


def layers(*heads):
    """Parameters of a network of two inputs, or of an ensemble of three, that always gives these numbers."""
    inputs = 2 if len(heads) == 1 else 3
    hidden = {"w": np.zeros((len(heads), inputs, 3), np.float32), "b": np.zeros((len(heads), 3), np.float32)}
    outputs = np.array(heads, np.float32)
    tree = [hidden, {"w": np.zeros((len(heads), 3, outputs.shape[1]), np.float32), "b": outputs}]
    return jax.tree.map(lambda x: x[0], tree) if len(heads) == 1 else tree


def context(network, agent, **known):
    known = {"spec": CHOICES, "expert": None, "provided": {}} | known
    return SimpleNamespace(nets={"critic": network}, agent=agent, world=None, **known)


def test_the_least_critic_counts_and_of_choices_the_one_that_is_made():
    ctx = context(PAIR, None)
    star = phi.PhiStar(layers([5.0], [3.0]), 0.0, 0.0)
    np.testing.assert_allclose(phi.values(ctx, star, jnp.zeros((4, 2)), jnp.zeros((4, 1)))[:, 0], [5.0, 3.0])
    np.testing.assert_allclose(phi.value(ctx, star, jnp.zeros((4, 2)), jnp.zeros((4, 1))), [3.0] * 4)
    ctx = context(Network(2, (3,), 3), None)
    star = phi.PhiStar(layers([1.0, 2.0, 4.0]), 0.0, 0.0)
    np.testing.assert_allclose(phi.value(ctx, star, jnp.zeros((2, 2)), jnp.array([2, 0])), [4.0, 1.0])


def test_a_time_limit_does_not_make_the_expert_look_worse(stage, tiny):
    """Of 1 a step for ever, 2 is the value at discount .5; one that takes the limit for the end finds 1 to 1.5."""
    agent = tiny.agent("ppo", discount=0.5, optimiser=Adam(learning_rate=1e-2))
    ctx = stage.context(agent, stage.Payer(length=2, truncates=True, blind=True), stage.Ones())
    learn = jax.jit(lambda key: phi.pretrain_critic_mc(ctx, None, key, 7, 4, n_steps=400, batch_size=32))
    found = learn(prng.key(1))
    np.testing.assert_allclose([found.phi_star.v_min, found.phi_star.v_max], 2.0, atol=0.1)
    assert found.aux.last_loss < 0.01 < found.aux.first_loss
    np.testing.assert_allclose(found.aux.q_expert_mean, 2.0, atol=0.1)
    assert found.aux.expert_steps == 28


def test_termination_ends_the_return_in_units_of_the_agents_targets(stage, tiny):
    """3 (1 + .5) at the first step of two, 3 at the second."""
    agent = tiny.agent("sac", discount=0.5, reward_scale=3.0, critic_optimiser=Adam(learning_rate=1e-2))
    ctx = stage.context(agent, stage.Payer(length=2), stage.Ones())

    @jax.jit
    def learn(key):
        found = phi.pretrain_critic_mc(ctx, stage.Ones(), key, 1_000, 4, n_steps=600, batch_size=32, max_timesteps=50)
        return found, phi.values(ctx, found.phi_star, found.rows.obs, found.rows.action)

    found, value_NR = learn(prng.key(1))
    step = np.asarray(found.rows.obs[:, 0])
    assert found.aux.expert_steps == len(step) == 50
    np.testing.assert_allclose(value_NR, np.broadcast_to(np.where(step == 0, 4.5, 3.0), value_NR.shape), atol=0.3)
    least = np.asarray(value_NR).min(0)
    extremes = [found.phi_star.v_min, found.phi_star.v_max, found.aux.q_expert_mean]
    np.testing.assert_allclose(extremes, [least.min(), least.max(), least.mean()], rtol=1e-4)


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(5_000 * 256, (100, 10_000)), (30_000, (3, 10_000)), (10_001, (2, 10_000)), (2_560, (1, 2_560))],
)
def test_no_more_rows_are_played_than_have_a_use_and_copies_go_first(most, sizes):
    assert phi.rehearsal(10_000, 100, most) == sizes


def nudged(lr_scale, steps=1, **agent):
    """The state after a nudge of a critic at 0 towards phi* at 2, and the one before."""
    agent = SimpleNamespace(critic_optimiser=Adam(learning_rate=1e-2), normalize_observations=False, **agent)
    ctx = context(PAIR, agent)
    params = {"critic": layers([0.0], [0.0]), "actor": layers([1.0])}
    moved = agent.critic_optimiser.init({"critic": params["critic"]})._replace(count=jnp.int32(9))
    state = fit.AgentState(params, {"critic": moved}, {"critic": layers([7.0], [7.0]), "actor": params["actor"]})
    star = phi.PhiStar(layers([2.0], [3.0]), 0.0, 0.0)
    rows = Batch(jnp.zeros((5, 2)), jnp.zeros((5, 1)), *[None] * 4)
    nudge = lambda *given: phi.pretrain_critic_online_light(ctx, *given, n_steps=steps, lr_scale=lr_scale)
    return jax.jit(nudge)(state, star, rows, prng.key(0)), state


def test_a_light_nudge_takes_small_steps_and_leaves_the_moments_alone(tiny):
    """Scaling gradients instead moves Adam by .01 a step all the same, and leaves its squares a hundred times small."""
    after, before = nudged(0.1, steps=3)
    np.testing.assert_allclose(after.params["critic"][-1]["b"], 3 * 0.1 * 1e-2, rtol=1e-2)
    assert tiny.same(after.opt, before.opt)
    assert tiny.same(after.params["actor"], before.params["actor"])
    assert tiny.same(after.slow, {"critic": after.params["critic"], "actor": before.slow["actor"]})
    # Towards the least of phi*, not the mean of 2 and 3.
    far, _ = nudged(1.0, steps=400)
    np.testing.assert_allclose(far.params["critic"][-1]["b"], 2.0, atol=0.1)


def test_networks_see_observations_as_the_run_will_show_them():
    observed = moments.extend(moments.empty((2,)), jnp.array([[3.0, 0.0], [5.0, 4.0]]))
    raw = jnp.array([[5.0, 6.0]])
    plain, own = SimpleNamespace(normalize_observations=False), SimpleNamespace(normalize_observations=True)
    np.testing.assert_allclose(phi.seen(context(None, plain), raw), raw)
    ctx = context(None, own, provided={"obs_moments": observed})
    np.testing.assert_allclose(phi.seen(ctx, raw), [[1.0, 2.0]], rtol=1e-5)


class Descent:
    """An optimiser that shows the gradient itself."""

    def step(self, params, state, grads):
        return grads, state


def test_a_refresh_regresses_the_experts_rows_on_the_frozen_value_of_the_expert():
    agent = SimpleNamespace(critic_optimiser=Descent(), reward_scale=2.0)
    ctx = context(Network(2, (3,), 3), agent)
    star = phi.PhiStar(layers([1.0, 2.0, 4.0]), 0.0, 0.0)
    flags = lambda *x: jnp.array(x, bool)
    batch = Batch(
        None,
        jnp.array([0, 1, 2]),
        jnp.array([1.0, 3.0, 50.0]),
        flags(0, 1, 0),
        flags(0, 0, 0),
        None,
        raw_obs=jnp.zeros((3, 2)),
        raw_next_obs=jnp.zeros((3, 2)),
        next_expert_action=jnp.array([2, 2, 2]),
        is_expert=flags(1, 1, 0),
    )
    told = lambda batch: batch._replace(discount=0.5)
    run = jax.jit(lambda star, params, batch: phi.refresh_phi_star(ctx, star, params, (), told(batch), None))
    params = {"critic": layers([0.5, 0.5, 0.5])}
    grads, _ = run(star, params, batch)
    # Targets: 2 * 1 + .5 * 4 = 4, and 2 * 3 where it terminates; the third row is nobody's.
    np.testing.assert_allclose(grads["critic"][-1]["b"], [2 * (0.5 - 4.0) / 2, 2 * (0.5 - 6.0) / 2, 0.0], rtol=1e-5)
    nobody = batch._replace(is_expert=flags(0, 0, 0))
    grads, _ = run(star, params, nobody)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(grads))
