from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.agents.avg import AVG
from perdure.agents.dqn import DQN
from perdure.agents.pqn import PQN
from perdure.agents.sac import SAC
from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.extension import Extension, MissingCapability, NotWired
from perdure.extensions import target_mods
from perdure.extensions.target_mods import IBRL, Box, CriticBlend, LCBGatedBootstrap, MCVarianceCorrection, ValueBox
from perdure.rl.ops import gates
from perdure.rl.phases import Clock, Scene
from perdure.rl.phi import PhiStar

HIDDEN = (6,)


@pytest.fixture(scope="module")
def single(load_module):
    """The module tests/agents/single.py."""
    return load_module(Path(__file__).parents[1] / "agents" / "single.py")


@component
class Push:
    """An expert that always does the same."""

    level: float = 0.5

    def __call__(self, obs):
        return jnp.full((*obs.shape[:-1], 2), self.level)


@component
class Pick:
    """An expert that takes the second choice."""

    def __call__(self, obs):
        return jnp.ones(obs.shape[:-1], jnp.int32)


@component
class Steady:
    """An expert of one dimension in the clockwork's own units, of which 4 is .5 to an agent."""

    def __call__(self, obs):
        return jnp.full((*obs.shape[:-1], 1), 4.0)


@component
class Oracle(Extension):
    """Knows phi*: critics of the agent's shape whose value is `slope` times the first number seen, plus `level`."""

    slope: float = 0.0
    level: float = 0.0
    v_min: float = 0.0
    v_max: float = 4.0

    provides = frozenset({"phi_star"})

    def init_state(self, agent_state, key, ctx):
        layers = jax.tree.map(jnp.zeros_like, agent_state.params["critic"])
        for layer in layers:
            layer["w"] = layer["w"].at[..., 0, 0].set(1.0)
        layers[-1]["w"] = layers[-1]["w"] * self.slope
        layers[-1]["b"] = layers[-1]["b"] + self.level
        return PhiStar(layers, jnp.float32(self.v_min), jnp.float32(self.v_max))

    def provided(self, state):
        return {"phi_star": state}


def q_values(params, obs, action):
    """[N, B] of an ensemble of rectified perceptrons, in NumPy."""
    x = np.concatenate([obs, action], -1)
    found = []
    for member in range(params[0]["w"].shape[0]):
        h = x
        for layer in params[:-1]:
            h = np.maximum(h @ np.asarray(layer["w"][member]) + np.asarray(layer["b"][member]), 0.0)
        found.append((h @ np.asarray(params[-1]["w"][member]) + np.asarray(params[-1]["b"][member]))[:, 0])
    return np.stack(found)


def around(single, agent, discrete=False, fraction=0.25, **known):
    """(agent's state, batch, context) for a phase, `fraction` of the run being done."""
    state, ctx = single.begun(agent, discrete), single.context(agent, discrete)
    clock = Clock(jnp.int32(fraction * 1_000), jnp.int32(0), jnp.int32(1_000 * single.ROWS))
    batch = single.rows(discrete, 1)
    shift = lambda x: x + 0.5
    batch = batch._replace(
        raw_obs=shift(batch.obs), raw_next_obs=shift(batch.next_obs), scored_action=single.rows(discrete, 2).action
    )
    return state, batch, ctx._replace(clock=clock, agent=agent, **known)


def cut(batch):
    """discount (1 - terminated), in NumPy."""
    return 0.9 * (1.0 - np.asarray(batch.terminated, np.float64))


def test_the_better_next_action_makes_the_bootstrap(single):
    agent = SAC(hidden=HIDDEN)
    state, batch, ctx = around(single, agent)
    target = jnp.arange(single.ROWS, dtype=jnp.float32)
    found, told = IBRL(Push()).on_target(state, (), batch, target, ctx)
    expert = np.full((single.ROWS, 2), 0.5)
    ours = q_values(state.slow["critic"], batch.next_obs, batch.scored_action).min(0)
    theirs = q_values(state.slow["critic"], batch.next_obs, expert).min(0)
    assert 0.2 < (theirs > ours).mean() < 0.8
    bonus = cut(batch) * np.maximum(theirs - ours, 0.0)
    np.testing.assert_allclose(found, target + bonus, rtol=1e-5, atol=1e-5)
    assert float(told["ibrl/expert_wins"]) == pytest.approx((theirs > ours).mean())
    assert float(told["ibrl/bonus"]) == pytest.approx(bonus.mean(), rel=1e-4)


def test_without_an_expert_of_its_own_it_follows_the_agents(single):
    state, batch, ctx = around(single, SAC(hidden=HIDDEN))
    followed = batch._replace(next_expert_action=jnp.full((single.ROWS, 2), 0.5))
    target = jnp.zeros(single.ROWS)
    one, _ = IBRL().on_target(state, (), followed, target, ctx)
    other, _ = IBRL(Push()).on_target(state, (), batch, target, ctx)
    np.testing.assert_array_equal(one, other)
    assert float(jnp.abs(one).max()) > 0


def test_an_agent_without_slow_critics_is_read_by_its_live_ones(single):
    agent = AVG(hidden=HIDDEN)
    state, batch, ctx = around(single, agent)
    target = jnp.zeros(single.ROWS)
    before, _ = IBRL(Push()).on_target(state, (), batch, target, ctx)
    # The bonus follows the critic that learns: with all values doubled, so is the bonus.
    *hidden, head = state.params["critic"]
    louder = [*hidden, jax.tree.map(lambda x: 2.0 * x, head)]
    after, _ = IBRL(Push()).on_target(state._replace(params=state.params | {"critic": louder}), (), batch, target, ctx)
    assert float(before.max()) > 0
    np.testing.assert_allclose(after, 2.0 * before, rtol=1e-5)


def test_the_gate_weighs_pessimistic_scores(single):
    state, batch, ctx = around(single, SAC(hidden=HIDDEN))
    extension = LCBGatedBootstrap(Push(), lcb_beta_init=2.0, lcb_beta_decay_k=2.0, lcb_temperature=0.1)
    target = jnp.zeros(single.ROWS)
    found, told = extension.on_target(state, (), batch, target, ctx)
    beta = 2.0 * 0.75**2
    ours = q_values(state.slow["critic"], batch.next_obs, batch.scored_action)
    theirs = q_values(state.slow["critic"], batch.next_obs, np.full((single.ROWS, 2), 0.5))
    score = lambda q: q.min(0) - beta * (q.max(0) - q.min(0))
    weight = 1.0 / (1.0 + np.exp(-(score(theirs) - score(ours)) / 0.1))
    wanted = cut(batch) * weight * (theirs.min(0) - ours.min(0))
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
    assert float(told["lcb_bootstrap/p_expert"]) == pytest.approx(weight.mean(), rel=1e-3)
    assert float(extension.eval_metrics(state, (), ctx)["lcb_bootstrap/beta"]) == pytest.approx(beta)
    # Without a spread of temperature the better score takes all.
    hard, _ = LCBGatedBootstrap(Push(), lcb_temperature=0.0, lcb_beta_init=0.0).on_target(state, (), batch, target, ctx)
    np.testing.assert_allclose(hard, cut(batch) * np.maximum(theirs.min(0) - ours.min(0), 0.0), rtol=1e-3, atol=1e-5)


def phi_star(state, ctx, **known):
    return {"phi_star": Oracle(**known).init_state(state, None, ctx)}


def test_the_blend_hands_over_from_the_experts_value(single):
    agent = SAC(hidden=HIDDEN, reward_scale=3.0)
    state, batch, ctx = around(single, agent)
    ctx = ctx._replace(provided={"phi_star": PhiStar(state.slow["critic"], jnp.float32(0), jnp.float32(1))})
    target = jnp.linspace(-1.0, 1.0, single.ROWS)
    extension = CriticBlend(Push(), critic_warmup_frac=0.5)
    found, told = extension.on_target(state, (), batch, target, ctx)
    value = q_values(state.slow["critic"], batch.raw_next_obs, np.full((single.ROWS, 2), 0.5)).min(0)
    theirs = 3.0 * np.asarray(batch.reward) + cut(batch) * value
    np.testing.assert_allclose(found, 0.5 * np.asarray(target) + 0.5 * theirs, rtol=1e-4, atol=1e-5)
    assert float(told["critic_blend/target_gap"]) == pytest.approx(np.abs(theirs - target).mean(), rel=1e-4)
    assert float(extension.eval_metrics(state, (), ctx)["critic_blend/expert_weight"]) == pytest.approx(0.5)
    for idle in (CriticBlend(Push(), critic_warmup_frac=0.25), CriticBlend(Push(), critic_warmup_frac=0.0)):
        kept, told = idle.on_target(state, (), batch, target, ctx)
        np.testing.assert_array_equal(kept, target)
        assert float(told["critic_blend/target_gap"]) == 0.0


@pytest.mark.parametrize("kind", [DQN, PQN])
def test_the_blend_serves_values_of_choices_on_rows_of_any_shape(single, kind):
    agent = kind(hidden=HIDDEN, layer_norm=False)
    state, batch, ctx = around(single, agent, discrete=True, fraction=0.0)
    window = jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), batch._replace(discount=None))
    ctx = ctx._replace(provided={"phi_star": PhiStar(state.params["critic"], None, None)})
    found, _ = CriticBlend(Pick()).on_target(state, (), window._replace(discount=0.9), jnp.zeros((4, 8)), ctx)
    hidden, head = state.params["critic"]
    every = np.maximum(batch.raw_next_obs @ hidden["w"] + hidden["b"], 0.0) @ head["w"] + head["b"]
    wanted = np.asarray(batch.reward) + cut(batch) * np.asarray(every)[:, 1]
    np.testing.assert_allclose(found.reshape(-1), wanted, rtol=1e-4, atol=1e-5)


def test_targets_are_corrected_where_critics_disagree(single):
    state, batch, ctx = around(single, SAC(hidden=HIDDEN))
    ctx = ctx._replace(provided=phi_star(state, ctx, level=7.0))
    q = q_values(state.params["critic"], batch.obs, batch.action)
    variance = ((q[0] - q[1]) / 2) ** 2
    threshold = float(np.median(variance))
    target = jnp.zeros(single.ROWS)
    found, told = MCVarianceCorrection(threshold).on_target(state, (), batch, target, ctx)
    np.testing.assert_allclose(found, np.where(variance > threshold, 7.0, 0.0))
    assert float(told["mc_variance/replaced_frac"]) == pytest.approx(0.5)


def test_phi_star_reads_raw_observations(single):
    state, batch, ctx = around(single, SAC(hidden=HIDDEN))
    ctx = ctx._replace(provided=phi_star(state, ctx, slope=1.0))
    found, _ = MCVarianceCorrection(0.0).on_target(state, (), batch, jnp.zeros(single.ROWS), ctx)
    np.testing.assert_allclose(found, np.maximum(batch.raw_obs[:, 0], 0.0), rtol=1e-6)


def acting(single, agent, values, ages, fraction=0.25):
    """(agent's state, context) where phi* values the copies so, for the action phase."""
    state, _, ctx = around(single, agent, fraction=fraction)
    seen = jnp.array(values)[:, None] * jnp.array([1.0, 0.0, 0.0])
    scene = Scene(seen, jnp.full((len(values), 2), 0.5), jnp.full((len(values), 2), -0.5), jnp.array(ages))
    known = phi_star(state, ctx, slope=1.0, v_min=1.0, v_max=5.0)
    return state, ctx._replace(scene=scene, provided=known, n_envs=len(values))


def test_the_box_pays_the_value_once_where_a_copy_enters(single):
    # The threshold is 1 + 4 / 4 = 2: outside, entering, staying, and entering anew as an episode begins.
    state, ctx = acting(single, SAC(hidden=HIDDEN, reward_scale=2.0), [2.0, 3.0, 4.0, 5.0], [3, 3, 3, 0])
    ctx = ctx._replace(clock=ctx.clock._replace(total=ctx.clock.t * 4 * 4))
    extension = ValueBox()
    before = Box(jnp.array([False, False, True, True]), gates.Share.begin())
    proposal, after = extension.action(state, before, None, ctx)
    np.testing.assert_array_equal(proposal.mask, [False, True, True, True])
    np.testing.assert_allclose(proposal.action[:, 0], [-0.5, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(proposal.bonus, [0.0, 1.5, 0.0, 2.5])
    np.testing.assert_array_equal(proposal.end, [False, True, False, True])
    np.testing.assert_array_equal(after.in_box, proposal.mask)
    told = extension.eval_metrics(state, after, ctx)
    assert {name: float(value) for name, value in told.items()} == pytest.approx(
        {"value_box/threshold": 2.0, "value_box/in_box_frac": 0.75, "value_box/expert_frac": 0.75}
    )
    begun = extension.init_state(state, None, ctx)
    assert (begun.in_box.shape, bool(begun.in_box.any())) == ((4,), False)


def test_the_parts_of_the_box_by_themselves():
    assert float(target_mods.box_compute_threshold(-2.0, 2.0, 0.75)) == 1.0
    inside, bonus, value = target_mods.box_compute_state(
        jnp.array([1.0, 3.0, 4.0]), 2.0, jnp.array([True, True, False])
    )
    np.testing.assert_array_equal(inside, [False, True, True])
    np.testing.assert_array_equal(bonus, [0.0, 0.0, 4.0])
    np.testing.assert_array_equal(value, [1.0, 3.0, 4.0])
    entered = target_mods.box_entered(inside, jnp.array([True, True, False]))
    np.testing.assert_array_equal(entered, [False, False, True])
    picked = target_mods.box_action_override(jnp.array([1, 2, 3]), jnp.array([7, 8, 9]), inside)
    np.testing.assert_array_equal(picked, [1, 8, 9])
    np.testing.assert_allclose(target_mods.blend_modify_target(jnp.array([1.0]), jnp.array([5.0]), 0.25), [2.0])


def test_in_a_run_the_box_ends_rows_and_not_episodes(tiny):
    """phi* is the episode's age and the threshold stays below 1: every copy enters at each episode's second step."""
    parts = (Oracle(slope=1.0, v_min=0.0, v_max=4.0), ValueBox())
    made = tiny.made("sac", parts, rollout={"expert": Steady()}, reward_scale=2.0)
    state, trace, _ = tiny.train(made, 192)
    rows = jax.tree.map(lambda x: np.asarray(x)[:, :192], state.train.seeds.store.rows)
    entering = rows.obs[..., 0] == 1.0
    np.testing.assert_allclose(rows.reward, np.where(entering, 1.0 + 1.0 / 2.0, 1.0))
    np.testing.assert_array_equal(rows.terminated, entering | (rows.obs[..., 0] == 4.0))
    np.testing.assert_allclose(rows.action[rows.obs[..., 0] >= 1.0], 0.5)
    assert (np.abs(rows.action[rows.obs[..., 0] == 0.0] - 0.5) > 1e-3).all()
    # The world goes on, and its trace tells what it paid.
    np.testing.assert_allclose(trace["reward"], 1.0)
    for lane in (0, 1):
        ends = trace["terminated"][(trace["seed"] == 0) & (trace["lane"] == lane)]
        np.testing.assert_array_equal(np.flatnonzero(ends), np.arange(4, 96, 5))
    found = made.evaluate(state, {"level": 1.0}, 1).metrics
    np.testing.assert_allclose(found["value_box/threshold"], 4.0 * 0.192, rtol=1e-5)
    np.testing.assert_allclose(found["value_box/expert_frac"], 0.8, atol=0.1)


def test_in_a_run_they_chain_and_move_the_critics(tiny):
    parts = (
        Oracle(level=50.0),
        IBRL(),
        LCBGatedBootstrap(),
        CriticBlend(critic_warmup_frac=0.15),
        MCVarianceCorrection(threshold=1e6),
    )
    made = tiny.made("sac", parts, rollout={"expert": Steady()}, critic_optimiser=tiny.Adam(learning_rate=1e-2))
    state, _, told = tiny.train(made, 224)
    metrics = {name: np.concatenate([each[name] for each in told]) for name in told[0]}
    learning = ~np.isnan(metrics["ibrl/bonus"]).any(-1)
    early, late = np.flatnonzero(learning)[0], np.flatnonzero(learning)[-1]
    # Early targets are near 1 + .99 * 50, which only phi* can say; once its share is over nothing of it is left.
    assert (metrics["critic_blend/target_gap"][early] > 20.0).all()
    assert (metrics["critic_blend/target_gap"][late] == 0.0).all()
    assert (metrics["value/q"][learning].max(0) > 5.0).all()
    assert (metrics["mc_variance/replaced_frac"][learning] == 0.0).all()
    assert ((metrics["lcb_bootstrap/p_expert"][learning] > 0) & (metrics["lcb_bootstrap/p_expert"][learning] < 1)).all()
    assert (metrics["ibrl/bonus"][learning] >= 0).all()
    assert (metrics["ibrl/expert_wins"][learning] > 0).any()
    found = made.evaluate(state, {"level": 1.0}, 1).metrics
    assert (found["critic_blend/expert_weight"] == 0.0).all()
    np.testing.assert_allclose(found["lcb_bootstrap/beta"], (1 - 0.224) ** 2, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "parts", "error", "says"),
    [
        ("ppo", (IBRL(Pick()),), MissingCapability, r"IBRL\) needs q_critic"),
        ("asac", (IBRL(Steady()),), MissingCapability, r"IBRL\) needs discounted"),
        ("sac", (IBRL(),), NotWired, r"IBRL\) needs agent_expert"),
        ("avg", (LCBGatedBootstrap(Steady()),), MissingCapability, "needs critic_ensemble, which AVG"),
        ("sac", (CriticBlend(Steady()),), NotWired, "CriticBlend.*needs phi_star; list mc_pretrain before it"),
        ("dqn", (Oracle(), MCVarianceCorrection(1.0)), MissingCapability, "needs critic_ensemble, which DQN"),
        ("td3", (Oracle(), ValueBox()), NotWired, r"ValueBox\) needs agent_expert"),
        ("ppo", (Oracle(), ValueBox()), MissingCapability, r"ValueBox\) needs off_policy, q_critic"),
    ],
)
def test_what_they_cannot_work_with_is_refused_by_name(name, parts, error, says, tiny):
    with pytest.raises(error, match=says):
        tiny.made(name, parts)


@pytest.mark.parametrize("part", [CriticBlend(Steady()), MCVarianceCorrection(1.0)])
def test_values_in_units_of_rewards_do_not_meet_normalised_ones(part, tiny):
    with pytest.raises(NotWired, match=r"set algorithm\.normalize_rewards to false"):
        tiny.made("sac", (Oracle(), part), normalize_rewards=True)


@pytest.mark.parametrize("name", ["td3", "redq", "sac"])
def test_every_agent_that_could_is_accepted(name, tiny):
    parts = (Oracle(), IBRL(Steady()), LCBGatedBootstrap(Steady()), CriticBlend(Steady()), MCVarianceCorrection(1.0))
    tiny.made(name, (*parts, ValueBox()), rollout={"expert": Steady()})


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        (LCBGatedBootstrap, {"lcb_beta_init": -1.0}, "lcb_beta_init is -1"),
        (LCBGatedBootstrap, {"lcb_beta_decay_k": -1.0}, "lcb_beta_decay_k is -1"),
        (LCBGatedBootstrap, {"lcb_temperature": -0.5}, r"lcb_temperature is -0\.5"),
        (CriticBlend, {"critic_warmup_frac": 1.5}, r"critic_warmup_frac is 1\.5"),
        (MCVarianceCorrection, {"threshold": float("nan")}, "threshold is nan"),
    ],
)
def test_settings_out_of_range_are_refused(kind, wrong, says):
    with pytest.raises(ConfigError, match=says):
        kind(**wrong)
