"""The loop as agents and extensions meet it: warm-up, normalisation, rewards, detectors, shifts."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from perdure.core.records import Shift
from perdure.regimes.detectors import Cusum
from perdure.rewards.spec import RewardSpec
from perdure.rl import learning, loop
from perdure.rl import state as states
from perdure.rl.greedy import Epsilon
from perdure.rl.phases import Occasional


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_warm_up_actions_are_uniform_and_later_ones_the_agents(name, tiny):
    own = {"epsilon": Epsilon(0.0, 0.0)} if name == "dqn" else {}
    made = tiny.made(name, feed_learning_starts=1_024, rollout={"n_envs": 64, "total_steps": 2_048}, **own)
    plan = tiny.schedule((1_024, 1.0), (1_024, 1.0))
    state, columns, _ = tiny.train(made, 1_024, plan)
    assert int(state.train.clock.updates) == 0
    actions = columns["action"].ravel()
    if name == "dqn":
        assert stats.chisquare(np.bincount(actions, minlength=3)).pvalue > 1e-3
    else:
        assert stats.kstest(actions, stats.uniform(-2.0, 8.0).cdf).pvalue > 1e-3
    state, columns, _ = tiny.train(made, 512, plan, state)
    actions = columns["action"].ravel()
    if name == "dqn":  # Epsilon is zero: no seed takes all three actions alike any more.
        assert stats.chisquare(np.bincount(actions, minlength=3)).pvalue < 1e-3
    else:
        assert stats.kstest(actions, stats.uniform(-2.0, 8.0).cdf).pvalue < 1e-3


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_normalisers_hold_the_moments_of_what_was_learned_from(name, tiny):
    kwargs = {"normalize_observations": True, "normalize_rewards": True, "discount": 0.5}
    made = tiny.made(name, **kwargs)
    state, columns, metrics = tiny.train(made, 160, tiny.schedule((80, 1.0), (920, 3.0)))
    assert np.isfinite(metrics[-1]["loss/critic"]).all()
    normaliser = tiny.host(state.train.seeds.normaliser)
    own = columns["seed"] == 0
    reward, lane = columns["reward"][own], columns["lane"][own]
    ended = (columns["terminated"] | columns["truncated"])[own]
    running, returns = np.zeros(2), []
    for now, copy, end in zip(reward, lane, ended, strict=True):
        running[copy] = 0.5 * running[copy] + now
        returns.append(running[copy])
        running[copy] *= not end
    assert normaliser["obs/count"][0] == normaliser["returns/count"][0] == 160
    np.testing.assert_allclose(normaliser["returns/mean"][0], np.mean(returns), rtol=1e-4)
    np.testing.assert_allclose(normaliser["returns/deviation"][0] / 160, np.var(returns), rtol=1e-3)
    np.testing.assert_allclose(normaliser["obs/mean"][0, 0], 2.0, rtol=1e-4)  # Steps 0 to 4, alike.
    np.testing.assert_allclose(normaliser["obs/deviation"][0, 0] / 160, 2.0, rtol=1e-3)


def _reward():
    return RewardSpec.from_document(
        {
            "components": [
                {"name": "env_scalar", "weight": 2.0},
                {"name": "cost", "params": {"key": "pushed", "cap": 10.0}},
            ],
            "regime_overrides": {"s1": {"env_scalar": -1.0}},
        }
    )


@pytest.fixture(scope="module")
def judged(tiny):
    """A SAC run with a reward of its own and a detector: (learner, state, columns, metrics)."""
    reward = _reward()
    rollout = {"reward": reward, "detector": Cusum(threshold=5.0, warm_up=4), "boundary_source": "detector"}
    made = tiny.made("sac", (tiny.Witness(),), rollout=rollout, weights=reward.weights)
    return made, *tiny.train(made, 320, tiny.schedule((160, 1.0), (840, 5.0), source="detector"))


def test_a_reward_of_ones_own_takes_the_place_of_the_worlds(judged):
    _, _, columns, _ = judged
    level = np.where(columns["step"] < 160, 1.0, 5.0)
    weight = np.where(columns["step"] < 160, 2.0, -1.0)
    cost = -np.clip(columns["action"][:, 0], 0.0, 10.0)
    np.testing.assert_allclose(columns["component/env_scalar"], weight * level, rtol=1e-5)
    np.testing.assert_allclose(columns["component/cost"], cost, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(columns["reward"], weight * level + cost, rtol=1e-5, atol=1e-5)


def test_what_is_stored_is_the_reward_of_ones_own(judged):
    _, state, columns, _ = judged
    kept = np.asarray(state.train.seeds.store.rows.reward)[0, :320]
    np.testing.assert_allclose(kept, columns["reward"][columns["seed"] == 0], rtol=1e-6)


def test_actions_are_recorded_in_the_worlds_units(judged):
    _, state, columns, _ = judged
    assert columns["action"].min() < -1.5
    assert columns["action"].max() > 5.5
    kept = np.asarray(state.train.seeds.store.rows.action)[0, :320, 0]
    np.testing.assert_allclose(2.0 + 4.0 * kept, columns["action"][columns["seed"] == 0, 0], rtol=1e-5, atol=1e-5)


def test_a_detector_finds_the_shift_and_the_extensions_are_told(judged):
    _, state, _, metrics = judged
    step = np.concatenate([each["step"] for each in metrics])
    alarm = np.concatenate([np.asarray(each["detector/alarm"]) for each in metrics])
    assert not alarm[step <= 160].any()
    assert (alarm[step > 160].sum(0) >= 1).all()
    np.testing.assert_array_equal(np.asarray(state.train.seeds.extensions.states[0].shifts), alarm.sum(0))


def test_an_evaluation_is_scored_by_the_reward_of_ones_own(judged):
    made, state, _, _ = judged
    found = made.evaluate(state, {"level": 1.0}, 2)
    assert (found.returns <= 10.0 + 1e-5).all()  # Five steps of 2 at best, the cost of pushing aside.
    assert (found.returns > 10.0 - 5 * 6.0 - 1e-5).all()
    assert found.metrics["witness/calls"].tolist() == [300.0, 300.0]


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_extensions_see_a_shift_once(name, tiny):
    plan = tiny.schedule((96, 1.0), (904, 2.0), source="oracle")
    made = tiny.made(name, (tiny.Witness(),), rollout={"boundary_source": "oracle"})
    state, _, _ = tiny.train(made, 96, plan)
    assert _seen(state).shifts.tolist() == [0, 0]
    state = made.on_regime_shift(state, Shift("s0", "s0", "s1", "s1", 96, "oracle"))
    state, _, _ = tiny.train(made, 96, plan, state)
    assert _seen(state).shifts.tolist() == [1, 1]
    calls = {"ppo": 6, "dqn": 192 - 20}[name]
    assert _seen(state).calls.tolist() == [calls, calls]


def test_a_shift_during_warm_up_waits_for_the_first_update(tiny):
    made = tiny.made("dqn", (tiny.Witness(),), rollout={"boundary_source": "oracle"})
    state = made.on_regime_shift(made.init(tiny.SEEDS), Shift("a", "a", "b", "b", 0, "oracle"))
    state, _, _ = tiny.train(made, 16, state=state)
    assert _seen(state).shifts.tolist() == [0, 0]
    state, _, _ = tiny.train(made, 16, state=state)
    assert _seen(state).shifts.tolist() == [1, 1]


def test_an_extension_that_only_watches_changes_no_number(tiny):
    plain, columns, _ = tiny.train(tiny.made("ppo"), 192)
    watched, same_columns, _ = tiny.train(
        tiny.made("ppo", (tiny.Witness(),), rollout={"boundary_source": "oracle"}), 192
    )
    np.testing.assert_array_equal(columns["action"], same_columns["action"])
    assert tiny.same(plain.train.seeds.agent, watched.train.seeds.agent)


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_an_extension_that_does_nothing_traces_to_the_same_program(name, tiny):
    bare, idle = (tiny.made(name, parts).trainer for parts in ((), (tiny.Idle(),)))
    assert _program(bare, tiny) == _program(idle, tiny)


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_extensions_are_told_the_discount(name, tiny):
    from perdure.core.component import component
    from perdure.core.extension import Extension

    told = set()

    @component
    class Asks(Extension):
        def on_target(self, agent_state, state, batch, target, ctx):
            told.add(("target", batch.discount))
            return target

        def critic_loss(self, agent_state, state, batch, ctx):
            told.add(("loss", batch.discount))
            return 0.0

    _program(tiny.made(name, (Asks(),), discount=0.75).trainer, tiny)
    assert told == {("target", 0.75), ("loss", 0.75)}


def _program(trainer, tiny):
    from perdure.rl import schedule as schedules

    plan = schedules.traced(tiny.STILL, trainer.world)
    state = jax.eval_shape(partial(loop.init, trainer), states.numbers((0,), trainer.n_envs), plan)
    return str(jax.make_jaxpr(partial(loop.advance, trainer))(state, plan, np.int32(1), np.int32(1)))


def _seen(state):
    return jax.tree.map(np.asarray, state.train.seeds.extensions.states[0])


def test_a_metric_is_averaged_over_the_updates_that_measured_it():
    sums = {"loss/critic": jnp.float32(12.0), "loss/actor": Occasional(jnp.float32(12.0), jnp.float32(2.0))}
    found = learning.averaged(sums, jnp.int32(6))
    assert (float(found["loss/critic"]), float(found["loss/actor"])) == (2.0, 6.0)
    never = learning.averaged(sums | {"loss/actor": Occasional(jnp.float32(0.0), jnp.float32(0.0))}, jnp.int32(6))
    assert np.isnan(never["loss/actor"])
