import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.component import component
from perdure.core.errors import PerdureError
from perdure.core.extension import Extension
from perdure.core.records import Spec
from perdure.rl import phases
from perdure.rl.fold import Extensions
from perdure.rl.phases import Batch, Clock, Context, Proposal

SPEC = Spec((2,), 1, discrete=False, low=(-1.0,), high=(1.0,))
BATCH = Batch(
    jnp.zeros((3, 2)), jnp.zeros((3, 1)), jnp.ones(3), jnp.zeros(3, bool), jnp.zeros(3, bool), jnp.zeros((3, 2))
)


@component
class Doubles(Extension):
    def reward(self, agent_state, state, batch, reward, ctx):
        return 2 * reward, state, {"doubled": reward.sum()}

    def on_target(self, agent_state, state, batch, target, ctx):
        return 2 * target

    def critic_loss(self, agent_state, state, batch, ctx):
        return 10.0

    def action(self, agent_state, state, obs, ctx):
        return Proposal(jnp.full((3, 1), 0.5), jnp.array([True, True, False]), bonus=1.0, end=True), state

    def eval_action(self, agent_state, state, obs, ctx):
        return Proposal(jnp.full((3, 1), 0.5), jnp.array([True, True, False]))

    def transform_action(self, agent_state, state, action, ctx):
        return 2 * action


@component
class AddsOne(Extension):
    def init_state(self, agent_state, key, ctx):
        return jnp.zeros(())

    def pretrain(self, agent_state, state, ctx):
        return agent_state + 1, state + 1

    def reward(self, agent_state, state, batch, reward, ctx):
        return reward + 1, state + 1

    def on_target(self, agent_state, state, batch, target, ctx):
        return target + 1, {"added": jnp.ones(())}

    def critic_loss(self, agent_state, state, batch, ctx):
        return 1.0, {"term": jnp.ones(())}

    def action(self, agent_state, state, obs, ctx):
        return Proposal(jnp.full((3, 1), -0.25), jnp.array([False, True, False]), bonus=jnp.full(3, 5.0)), state + 1

    def transform_action(self, agent_state, state, action, ctx):
        return action + 1

    def post_update(self, agent_state, state, ctx):
        return agent_state + 1, state + 1, {"post": agent_state}


@component
class Halves(Extension):
    def gradient(self, agent_state, state, grads, batch, ctx):
        return jax.tree.map(lambda g: g / 2, grads)

    def step(self, agent_state, state, change, batch, ctx):
        return jax.tree.map(lambda d: d / 2, change)


@component
class Clips(Extension):
    def gradient(self, agent_state, state, grads, batch, ctx):
        return jax.tree.map(lambda g: jnp.minimum(g, 3.0), grads)


@component
class Lends(Extension):
    provides = frozenset({"loan"})

    def init_state(self, agent_state, key, ctx):
        return jnp.float32(7.0)

    def provided(self, state):
        return {"loan": state}


@component
class Borrows(Extension):
    def eval_metrics(self, agent_state, state, ctx):
        return {"sum": ctx.data["rows"].sum(), "lent": ctx.provided["loan"]}


def context(t=0, updates=0):
    return Context(SPEC, {}, 1, Clock(jnp.int32(t), jnp.int32(updates), jnp.int32(100)))


def stack(*parts, seed=0):
    return Extensions.begin(tuple(parts), jnp.zeros(()), jax.random.key(seed), context())


def test_rewards_and_targets_chain_in_list_order():
    batch, after, metrics = stack(Doubles(), AddsOne()).reward(None, BATCH, context())
    np.testing.assert_array_equal(batch.reward, 3.0)
    assert float(after.states[1]) == 1.0
    assert float(metrics["doubled"]) == 3.0
    np.testing.assert_array_equal(stack(AddsOne(), Doubles()).reward(None, BATCH, context())[0].reward, 4.0)
    target, metrics = stack(AddsOne(), Doubles()).target(None, BATCH, jnp.ones(3), context())
    np.testing.assert_array_equal(target, 4.0)
    assert set(metrics) == {"added"}


def test_loss_terms_are_summed():
    total, metrics = stack(Doubles(), AddsOne()).loss("critic_loss", None, BATCH, context())
    assert float(total) == 11.0
    assert set(metrics) == {"term"}
    assert stack(Doubles()).loss("actor_loss", None, BATCH, context()) == (0.0, {})


def test_the_last_proposal_wins_where_it_proposes():
    own = jnp.full((3, 1), 0.1)
    found, after = stack(Doubles(), AddsOne()).act(None, None, own, context())
    np.testing.assert_allclose(found.action[:, 0], [0.5, -0.25, 0.1], rtol=1e-6)
    np.testing.assert_array_equal(found.mask, [True, True, False])
    np.testing.assert_array_equal(found.bonus, [1.0, 5.0, 0.0])
    np.testing.assert_array_equal(found.end, [True, False, False])
    assert float(after.states[1]) == 1.0


def test_what_is_executed_is_the_chosen_action_transformed_in_list_order():
    extensions = stack(Doubles(), AddsOne())
    np.testing.assert_allclose(extensions.transform(None, jnp.array([[0.5]]), context()), [[2.0]])
    np.testing.assert_allclose(stack(AddsOne(), Doubles()).transform(None, jnp.array([[0.5]]), context()), [[3.0]])


def test_gradients_and_steps_chain():
    extensions = stack(Halves(), Clips())
    grads = extensions.gradient(None, {"critic": jnp.array([8.0, 1.0])}, BATCH, context())
    np.testing.assert_allclose(grads["critic"], [3.0, 0.5])
    old, new = {"critic": jnp.array([1.0, 1.0])}, {"critic": jnp.array([2.0, 5.0])}
    np.testing.assert_allclose(extensions.step(None, old, new, BATCH, context())["critic"], [1.5, 3.0])
    assert stack(Doubles()).step(None, old, new, BATCH, context()) is new
    assert stack(Doubles()).gradient(None, old, BATCH, context()) is old


def test_an_extension_sees_its_data_and_what_earlier_ones_provide():
    extensions = stack(Lends(), Borrows())
    ctx = context()
    ctx = ctx._replace(clock=ctx.clock._replace(data=((), {"rows": jnp.arange(3.0)})))
    assert {name: float(value) for name, value in extensions.eval_metrics(None, ctx).items()} == {"sum": 3.0, "lent": 7}


def test_evaluations_have_proposals_of_their_own():
    found = stack(Doubles(), AddsOne()).eval_act(None, None, jnp.full((3, 1), 0.1), context())
    np.testing.assert_allclose(found[:, 0], [0.5, 0.5, 1.2], rtol=1e-6)


def test_pretraining_and_post_update_change_the_agent_and_their_own_state():
    agent, after = stack(Doubles(), AddsOne()).pretrain(jnp.float32(5.0), context())
    assert (float(agent), float(after.states[1])) == (6.0, 1.0)
    agent, after, metrics = after.post_update(agent, context())
    assert (float(agent), float(after.states[1]), float(metrics["post"])) == (7.0, 2.0, 6.0)


def test_a_repeated_metric_raises():
    assert set(phases.merged({"a": 1}, {"b": 2}, {"c": 3})) == {"a", "b", "c"}
    with pytest.raises(PerdureError, match="'b' is logged twice"):
        phases.merged({"a": 1}, {"b": 2}, {"b": 3})


def test_an_extensions_draws_are_its_own_wherever_it_stands(tiny):
    def drawn(*parts):
        extensions = stack(*parts)
        _, after, _ = extensions.post_update(None, context(3, 7))
        position = [type(part) for part in parts].index(tiny.Witness)
        return float(extensions.states[position].draws), float(after.states[position].draws)

    alone = drawn(tiny.Witness())
    assert drawn(tiny.Witness(), tiny.Bystander()) == alone
    assert drawn(tiny.Bystander(), tiny.Witness()) == alone
    assert drawn(tiny.Idle(), tiny.Bystander(), tiny.Witness()) == alone


def test_two_extensions_draw_different_numbers(tiny):
    extensions = stack(tiny.Witness(), tiny.Bystander())
    assert float(extensions.states[0].draws) != float(extensions.states[1])


def test_draws_change_with_seed_phase_and_clock(tiny):
    def draw(seed, t, updates):
        extensions = stack(tiny.Bystander(), seed=seed)
        _, after, _ = extensions.post_update(None, context(t, updates))
        return float(extensions.states[0]), float(after.states[0] - extensions.states[0])

    numbers = [draw(0, 0, 0)[0], *(draw(*which)[1] for which in [(0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0)])]
    assert len(set(numbers)) == 5


@pytest.mark.parametrize(("before", "now", "crossed"), [(0, 9, False), (8, 10, True), (10, 19, False), (10, 40, True)])
def test_an_interval_is_crossed_whatever_the_stride(before, now, crossed):
    ctx = context(updates=now)._replace(previous=context(updates=before).clock)
    assert bool(ctx.crossed(10)) == crossed


def test_steps_and_share_of_the_run_count_all_copies():
    ctx = context(t=10)._replace(n_envs=4)
    assert (int(ctx.step), float(ctx.fraction)) == (40, pytest.approx(0.4))


def test_an_occasional_step_is_done_and_measured_where_it_is_due():
    step = lambda state: (state + 1.0, {"loss": 3.0 * state})
    done, told = phases.occasionally(jnp.array(True), step, jnp.float32(2.0))
    assert (float(done), float(told["loss"].total), float(told["loss"].count)) == (3.0, 6.0, 1.0)
    left, told = phases.occasionally(jnp.array(False), step, jnp.float32(2.0))
    assert (float(left), float(told["loss"].total), float(told["loss"].count)) == (2.0, 0.0, 0.0)
