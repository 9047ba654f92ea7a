"""Which rows are drawn before the run, and from which keys extensions draw."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core.component import component
from perdure.core.extension import PHASES, Extension
from perdure.core.records import Spec
from perdure.rl import phi, views
from perdure.rl.fold import Extensions
from perdure.rl.ops import prng
from perdure.rl.phases import Batch, Clock, Context


def test_the_experts_rows_are_learnt_from_in_random_order(tiny, load_module, monkeypatch):
    stage = load_module(Path(__file__).parents[1] / "rl" / "stage.py")
    ctx = stage.context(tiny.agent("td3"), stage.Payer(), stage.Counts())
    seen, valued = [], views.critic_values

    def spied(ctx, critic, obs, action):
        jax.debug.callback(lambda obs: seen.append(np.asarray(obs)), obs)
        return valued(ctx, critic, obs, action)

    monkeypatch.setattr(views, "critic_values", spied)
    learn = jax.jit(lambda key: phi.pretrain_critic_mc(ctx, None, key, 3, 4, n_steps=5, batch_size=6).rows.obs)
    rows = np.asarray(learn(prng.key(2)))
    jax.effects_barrier()
    assert len(np.unique(rows, axis=0)) == 12
    # What lies beyond an episode is valued too, and is no row.
    batches = [obs for obs in seen if len(obs) == 6 and (obs[:, 0] < 3).all()]
    places = [np.argmax((rows == obs[:, None]).all(-1), axis=1) for obs in batches]
    assert len(places) == 5
    assert not any((np.diff(place) % 12 == 1).all() for place in places)
    assert len(set(np.concatenate(places).tolist())) > 6


DRAWN = {}
"""(extension, phase) -> what its key gave."""


class Draws(Extension):
    """Notes what the key of every phase gives."""

    def _drawn(self, phase, ctx):
        DRAWN[type(self).__name__, phase] = float(jax.random.uniform(ctx.key))

    def init_state(self, agent_state, key, ctx):
        return self._drawn("init_state", ctx)

    def pretrain(self, agent_state, state, ctx):
        return agent_state, self._drawn("pretrain", ctx)

    def reward(self, agent_state, state, batch, reward, ctx):
        return reward, self._drawn("reward", ctx)

    def on_target(self, agent_state, state, batch, target, ctx):
        self._drawn("on_target", ctx)
        return target

    def critic_loss(self, agent_state, state, batch, ctx):
        self._drawn("critic_loss", ctx)
        return 0.0

    def actor_loss(self, agent_state, state, batch, ctx):
        self._drawn("actor_loss", ctx)
        return 0.0

    def action(self, agent_state, state, obs, ctx):
        return None, self._drawn("action", ctx)

    def eval_action(self, agent_state, state, obs, ctx):
        return self._drawn("eval_action", ctx)

    def transform_action(self, agent_state, state, action, ctx):
        self._drawn("transform_action", ctx)
        return action

    def post_update(self, agent_state, state, ctx):
        return agent_state, self._drawn("post_update", ctx)

    def eval_metrics(self, agent_state, state, ctx):
        self._drawn("eval_metrics", ctx)
        return {}

    def gradient(self, agent_state, state, grads, batch, ctx):
        self._drawn("gradient", ctx)
        return grads

    def step(self, agent_state, state, change, batch, ctx):
        self._drawn("step", ctx)
        return change


@component
class First(Draws):
    """One that draws."""


@component
class Second(Draws):
    """Another."""


def drawn(*parts):
    """(extension, phase) -> what was drawn in one pass through all phases."""
    DRAWN.clear()
    flags, numbers = jnp.zeros(3, bool), jnp.zeros(3)
    batch = Batch(jnp.zeros((3, 2)), jnp.zeros((3, 1)), numbers, flags, flags, jnp.zeros((3, 2)))
    spec = Spec((2,), 1, discrete=False, low=(-1.0,), high=(1.0,))
    own = jax.random.key(5)
    ctx = Context(spec, {}, 3, Clock(jnp.int32(4), jnp.int32(2), jnp.int32(100)), own)
    stack = Extensions.begin(parts, {}, jax.random.key(0), ctx)
    stack.pretrain({}, ctx)
    stack.reward({}, batch, ctx)
    stack.target({}, batch, numbers, ctx)
    for phase in ("critic_loss", "actor_loss"):
        stack.loss(phase, {}, batch, ctx)
    stack.act({}, batch.obs, batch.action, ctx)
    stack.eval_act({}, batch.obs, batch.action, ctx)
    stack.post_update({}, ctx)
    stack.eval_metrics({}, ctx)
    stack.gradient({}, numbers, batch, ctx)
    stack.step({}, numbers, numbers, batch, ctx)
    return dict(DRAWN), float(jax.random.uniform(own))


def test_every_extension_has_a_key_of_its_own_in_every_phase():
    found, agents = drawn(First(), Second())
    assert {phase for _, phase in found} == set(PHASES)
    assert len({*found.values(), agents}) == 2 * len(PHASES) + 1
    assert drawn(Second(), First())[0] == found
    assert drawn(Second())[0].items() <= found.items()
