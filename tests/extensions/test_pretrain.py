from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.component import component
from perdure.core.errors import ConfigError, Refused
from perdure.core.extension import Extension
from perdure.extensions import pretrain
from perdure.extensions.pretrain import BellmanPretrain, CloningPretrain, MCPretrain, PhiRefresh
from perdure.rl import phi
from perdure.rl.nets import Network
from perdure.rl.ops import prng
from perdure.rl.optim import Adam
from perdure.rl.phases import Batch, Clock, Context, Proposal

QUICK = Adam(learning_rate=1e-2)


@pytest.fixture(scope="module")
def stage(load_module):
    return load_module(Path(__file__).parents[1] / "rl" / "stage.py")


@component
class Halves(Extension):
    """Lets the expert act in the first copy."""

    def action(self, agent_state, state, obs, ctx):
        expert = ctx.scene.expert_action
        return Proposal(expert, jnp.arange(expert.shape[0]) == 0), state


# CloningPretrain


def cloned(stage, agent, discrete):
    """(greedy actions at steps 0, 1 and 2, the state after, the state before, what the extension keeps)."""
    part = CloningPretrain(n_steps=30, epochs=40, batch_size=16)
    ctx = stage.context(agent, stage.Payer(discrete=discrete), stage.Counts(discrete))

    @jax.jit
    def run(key):
        before = agent.init(key, ctx)
        after, state = part.pretrain(before, (), ctx._replace(key=key))
        seen = jnp.stack([jnp.arange(3.0), jnp.array([0.1, 0.5, 0.9])], axis=-1)
        return agent.act_greedy(after, seen, ctx), after, before, state

    return run(prng.key(3))


@pytest.mark.parametrize(
    ("name", "discrete", "settings"),
    [
        ("td3", False, {"actor_optimiser": QUICK}),
        ("ppo", False, {"optimiser": QUICK}),
        ("apo", True, {"optimiser": QUICK}),
    ],
)
def test_the_actor_does_as_the_expert_did(name, discrete, settings, stage, tiny):
    """Whichever head it has; it reads raw observations, the scale that it was fitted at folded in."""
    action, after, before, state = cloned(stage, tiny.agent(name, **settings), discrete)
    if discrete:
        np.testing.assert_array_equal(action, [0, 1, 2])
    else:
        np.testing.assert_allclose(action[:, 0], [-0.5, -0.25, 0.0], atol=0.06)
    assert state.losses.last_loss < state.losses.first_loss
    assert state.observations.count == 60
    np.testing.assert_allclose(state.observations.mean[0], 1.0, atol=1e-5)  # Of the steps 0, 1, 2.
    if "actor" in after.slow:
        assert tiny.same(after.slow["actor"], after.params["actor"])
    assert tiny.same(after.params["critic"], before.params["critic"])
    assert tiny.same(after.opt, before.opt)


def reset(part, discrete, params, start):
    ctx = SimpleNamespace(spec=SimpleNamespace(action_dim=2, discrete=discrete))
    return part._partly_reset(start, params, ctx)


def test_the_spread_or_the_whole_head_get_their_initial_values_back():
    ones = [{"w": jnp.ones((3, 3)), "b": jnp.ones(3)}, {"w": jnp.ones((3, 4)), "b": jnp.ones(4)}]
    start = {"actor": jax.tree.map(jnp.zeros_like, ones)}
    found = reset(CloningPretrain(reset_log_std=True), False, {"actor": ones}, start)["actor"]
    np.testing.assert_array_equal(found[1]["b"], [1, 1, 0, 0])
    np.testing.assert_array_equal(found[1]["w"], [[1, 1, 0, 0]] * 3)
    np.testing.assert_array_equal(found[0]["b"], 1.0)
    found = reset(CloningPretrain(reset_actor_head=True), False, {"actor": ones}, start)["actor"]
    np.testing.assert_array_equal(found[1]["w"], 0.0)
    np.testing.assert_array_equal(found[0]["w"], 1.0)
    params, start = {"actor": ones, "log_std": jnp.ones(2)}, start | {"log_std": jnp.zeros(2)}
    found = reset(CloningPretrain(reset_log_std=True), False, params, start)
    np.testing.assert_array_equal(found["log_std"], 0.0)
    np.testing.assert_array_equal(found["actor"][1]["b"], 1.0)
    found = reset(CloningPretrain(), False, params, start)
    np.testing.assert_array_equal(found["log_std"], 1.0)


def test_an_agent_that_normalises_begins_with_the_statistics_of_the_experts_observations(stage, tiny):
    """The actor was fitted to what the normaliser then shows it, so that the policy is right at once."""
    part = CloningPretrain(n_steps=30, epochs=40, batch_size=16)
    settings = {"rollout": {"expert": stage.Counts()}, "actor_optimiser": QUICK}
    made = tiny.made("avg", (part,), world=stage.Payer(), **settings)
    begun = made.init(made.seeds)
    observed = begun.train.seeds.normaliser.obs
    np.testing.assert_array_equal(observed.count, [60, 60])
    np.testing.assert_allclose(observed.mean[:, 0], 1.0, atol=1e-5)
    np.testing.assert_allclose(observed.deviation[:, 0], 60 * 2 / 3, rtol=1e-5)
    act = made.policy(begun, 0)
    for step in range(3):
        np.testing.assert_allclose(act([step, 0.5]), [step], atol=0.4)


def test_the_normaliser_may_learn_alone(stage, tiny):
    part = CloningPretrain(n_steps=30, skip_actor=True)
    ctx = stage.context(tiny.agent("avg"), stage.Payer(), stage.Counts())
    after, state = jax.jit(lambda key: part.pretrain((), (), ctx._replace(key=key)))(prng.key(0))
    assert after == ()
    assert np.isnan(state.losses).all()
    np.testing.assert_allclose(part.provided(state)["obs_moments"].mean[0], 1.0, atol=1e-5)


# PhiRefresh


class Adds:
    """An optimiser that adds 1 to every parameter for a gradient."""

    def init(self, params):
        return jnp.zeros((), jnp.int32)

    def step(self, params, state, grads):
        return jax.tree.map(lambda x: x + 1.0, params), state + 1


def test_a_refresh_takes_a_step_in_each_of_the_last_updates_and_then_shows_the_result():
    """The counter is that of updates, so that the number of copies does not change how often it comes."""
    agent = SimpleNamespace(critic_optimiser=Adds(), reward_scale=1.0)
    part = PhiRefresh(interval=4, steps=2)
    batch = Batch(
        *[jnp.zeros((2, 2)), jnp.zeros(2, int), jnp.zeros(2), jnp.zeros(2, bool), jnp.zeros(2, bool), None],
        discount=0.5,
        raw_obs=jnp.zeros((2, 2)),
        raw_next_obs=jnp.zeros((2, 2)),
        next_expert_action=jnp.zeros(2, int),
        is_expert=jnp.ones(2, bool),
    )
    clock = lambda updates: Clock(jnp.int32(0), updates, jnp.int32(100))
    ctx = Context(None, {"critic": Network(2, (3,), 3)}, 1, clock(jnp.int32(0)), agent=agent, recent=batch)

    @jax.jit
    def after(state, updates):
        now = ctx._replace(clock=clock(updates), previous=clock(updates - 1))
        return part.post_update((), state, now)[1]

    layers = [{"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}, {"w": jnp.zeros((3, 3)), "b": jnp.zeros(3)}]
    star = phi.PhiStar(layers, jnp.float32(-5.0), jnp.float32(5.0))
    _, state = part.pretrain((), (), ctx._replace(provided={"phi_star": star}))
    learning, shown = [], []
    for updates in range(1, 10):
        state = after(state, jnp.int32(updates))
        learning.append(int(state.params["critic"][-1]["b"][0]))
        shown.append(int(part.provided(state)["phi_star"].params[-1]["b"][0]))
    assert learning == [0, 0, 1, 2, 2, 2, 3, 4, 4]
    assert shown == [0, 0, 0, 2, 2, 2, 2, 4, 4]
    assert (state.phi_star.v_min, state.phi_star.v_max) == (-5.0, 5.0)


# All of them in one run


ALL = (
    CloningPretrain(n_steps=30, epochs=80, batch_size=16),
    MCPretrain(n_mc_steps=30, n_mc_episodes=4, n_steps=40, online_light_steps=10),
    BellmanPretrain(n_steps=10, n_expert_steps=40),
    PhiRefresh(interval=8, steps=4),
    Halves(),
)


@pytest.fixture(scope="module")
def run(stage, tiny):
    """(the learner, its state before the first step, its state after 96)."""
    settings = {"actor_optimiser": QUICK, "critic_optimiser": Adam(learning_rate=1e-3), "feed_learning_starts": 20}
    made = tiny.made("sac", ALL, world=stage.Payer(), rollout={"expert": stage.Counts()}, **settings)
    begun = made.init(made.seeds)
    kept = jax.tree.map(jnp.array, begun.train.seeds._replace(keys=()))
    state, _, _ = tiny.train(made, 96, state=begun)
    return made, kept, state


def test_what_was_learnt_before_the_run_is_where_the_run_begins(run, tiny):
    made, begun, _ = run
    actor = made.trainer.agent.networks(made.trainer.world.spec)["actor"]
    seen = jnp.array([[0.0, 0.2], [1.0, 0.5], [2.0, 0.8]])
    # BellmanPretrain's updates climb too; what they did to the actor was put back.
    mean = jax.vmap(lambda params: actor.apply(params, seen)[:, 0])(begun.agent.params["actor"])
    np.testing.assert_allclose(jnp.tanh(mean), [[-0.5, -0.25, 0.0]] * 2, atol=0.15)
    np.testing.assert_array_equal(begun.agent.opt["actor"].count, 0)
    np.testing.assert_array_equal(begun.agent.params["log_temperature"], 0.0)
    # The nudge keeps its own moments, the agent's updates of BellmanPretrain the agent's.
    np.testing.assert_array_equal(begun.agent.opt["critic"].count, 10)
    slow, fast = (np.asarray(each["critic"][-1]["b"]) for each in (begun.agent.slow, begun.agent.params))
    assert ((slow != fast) & (np.abs(slow - fast) < 0.02)).all()


def test_phi_star_is_handed_on_and_refreshed_by_what_the_expert_executes(run, tiny):
    _, begun, state = run
    _, valued, _, refreshed, _ = begun.extensions.states
    assert tiny.same(valued.phi_star, refreshed.phi_star)
    _, still, _, later, _ = state.train.seeds.extensions.states
    assert tiny.same(still, valued)
    assert not tiny.same(later.phi_star.params, refreshed.phi_star.params)
    # 96 steps with learning from step 20 on are 77 updates or so: the last shown is of a multiple of 8.
    assert tiny.same(later.phi_star.params, later.params["critic"]) == (int(state.train.clock.updates) % 8 < 5)
    assert (np.asarray(valued.phi_star.v_min) < np.asarray(valued.phi_star.v_max)).all()


def test_what_they_report(run):
    found = run[0].evaluate(run[2], {"level": 1.0}, 1).metrics
    losses = {"first_loss", "last_loss"}
    named = lambda prefix, names: {f"{prefix}/{name}" for name in names}
    valued = losses | {"v_min", "v_max", "q_expert_mean", "expert_steps"}
    assert set(found) == named("cloning", losses) | named("mc_pretrain", valued) | named("bellman_pretrain", losses)
    assert all(np.isfinite(value).all() for value in found.values())
    np.testing.assert_array_equal(found["mc_pretrain/expert_steps"], 120.0)
    for prefix in ("cloning", "mc_pretrain"):
        assert (found[f"{prefix}/last_loss"] < found[f"{prefix}/first_loss"]).all()


# Refusals


@pytest.mark.parametrize(
    ("name", "parts", "settings", "says"),
    [
        ("dqn", (CloningPretrain(),), {}, "needs actor, which DQN"),
        ("apo", (MCPretrain(),), {}, "needs discounted, which APO"),
        ("ppo", (BellmanPretrain(),), {}, "needs replay, which PPO"),
        ("pqn", (MCPretrain(), PhiRefresh()), {}, "needs replay, which PQN"),
        ("sac", (PhiRefresh(),), {}, "needs phi_star; list mc_pretrain before it"),
        ("sac", (MCPretrain(), CloningPretrain()), {}, "CloningPretrain.* comes after MCPretrain"),
        ("sac", (CloningPretrain(skip_actor=True),), {}, "has skip_actor"),
        ("td3", (CloningPretrain(reset_log_std=True),), {}, "has reset_log_std"),
        ("sac", (BellmanPretrain(), MCPretrain()), {}, "updates the agent before MCPretrain"),
        ("sac", (MCPretrain(),), {"normalize_rewards": True}, "set normalize_rewards: false"),
        ("sac", (MCPretrain(),), {"normalize_observations": True}, "set use_online_light: false"),
        ("sac", (BellmanPretrain(),), {"normalize_observations": True}, "list cloning_pretrain before it"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(name, parts, settings, says, stage, tiny):
    world = stage.Payer(discrete=name in ("dqn", "pqn"))
    expert = {"expert": stage.Counts(world.discrete)}
    with pytest.raises(Refused, match=says):
        tiny.made(name, parts, world=world, rollout=expert, **settings)


def test_an_expert_is_needed_and_an_own_one_is_enough(stage, tiny):
    for part in (CloningPretrain(), MCPretrain(), BellmanPretrain()):
        with pytest.raises(Refused, match=r"needs agent_expert; give algorithm\.expert"):
            tiny.made("sac", (part,), world=stage.Payer())
    own = stage.Counts()
    parts = (CloningPretrain(own), MCPretrain(own), PhiRefresh(own))
    tiny.made("sac", parts, world=stage.Payer(), normalize_observations=True)
    tiny.made("avg", (MCPretrain(own, use_online_light=False),), world=stage.Payer())


def test_host_worlds_cannot_be_played_beforehand(stage, tiny):
    from perdure.rl.host import HostWorld

    with pytest.raises(Refused, match="needs simulator"):
        tiny.made("sac", (CloningPretrain(stage.Ones()),), world=HostWorld(stage.Payer().spec))


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        (CloningPretrain, {"n_steps": 0}, "n_steps is 0"),
        (CloningPretrain, {"epochs": 0}, "epochs is 0"),
        (CloningPretrain, {"batch_size": 0}, "batch_size is 0"),
        (MCPretrain, {"n_mc_episodes": 0}, "n_mc_episodes is 0"),
        (MCPretrain, {"online_light_lr_scale": 0.0}, "online_light_lr_scale is 0"),
        (BellmanPretrain, {"n_expert_steps": 0}, "n_expert_steps is 0"),
        (PhiRefresh, {"interval": 0}, "interval is 0"),
        (PhiRefresh, {"interval": 5, "steps": 6}, "steps is 6; it is at most interval, 5"),
    ],
)
def test_settings_out_of_range_are_refused(kind, wrong, says):
    with pytest.raises(ConfigError, match=says):
        kind(**wrong)


def test_the_helpers_stand_where_they_are_looked_for():
    names = "MCPretrainAux MCPretrainResults PretrainLosses pretrain_critic_mc pretrain_critic_online_light"
    for name in (*names.split(), "refresh_phi_star", "pretrain_critic_bellman"):
        assert callable(getattr(pretrain, name))
