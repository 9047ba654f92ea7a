"""TD3, whose actor moves with every third update, and an extension that asks no expert: what runs, and when."""

import collections
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.component import component
from perdure.core.extension import Extension

CALLS = collections.Counter()
"""How often each phase of `Counts` was executed (and not only traced)."""


def called(phase):
    CALLS[phase] += 1


@component
class Counts(Extension):
    """Changes nothing, counts what really runs, and reports the number of the updates that moved the actor."""

    def pretrain(self, agent_state, state, ctx):
        jax.debug.callback(partial(called, "pretrain"))
        return agent_state, state

    def on_target(self, agent_state, state, batch, target, ctx):
        jax.debug.callback(partial(called, "on_target"))
        return target

    def critic_loss(self, agent_state, state, batch, ctx):
        jax.debug.callback(partial(called, "critic_loss"))
        return 0.0

    def actor_loss(self, agent_state, state, batch, ctx):
        jax.debug.callback(partial(called, "actor_loss"))
        return 0.0, {"counts/update": ctx.clock.updates.astype(jnp.float32)}

    def post_update(self, agent_state, state, ctx):
        jax.debug.callback(partial(called, "post_update"))
        return agent_state, state


def counted(act):
    """(what `act()` gives, calls of each phase meanwhile)."""
    jax.effects_barrier()
    CALLS.clear()
    result = act()
    jax.effects_barrier()
    return result, dict(CALLS)


class Learnt(NamedTuple):
    """A run of three windows, the first of which is warm-up, and the calls before, in the first and in the others."""

    state: Any
    columns: Any
    metrics: Any
    made: Any
    before: Any
    idle: Any
    busy: Any


def learnt(tiny, **rollout):
    """A run of TD3."""
    made = tiny.made("td3", (Counts(),), seeds=(0,), policy_delay=3, feed_learning_starts=32, rollout=rollout)
    start, before = counted(lambda: made.init((0,)))
    (warm, first, told), idle = counted(lambda: tiny.train(made, 32, state=start))
    (state, second, more), busy = counted(lambda: tiny.train(made, 64, state=warm))
    join = lambda parts: {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}
    return Learnt(state, join([first, second]), join([*told, *more]), made, before, idle, busy)


@pytest.fixture(scope="module")
def delayed(tiny):
    """A run without an expert."""
    return learnt(tiny)


def test_nothing_is_learnt_before_learning_starts(delayed):
    assert delayed.idle == {}
    assert int(delayed.state.train.clock.updates) == delayed.busy["critic_loss"] == 64


def test_a_delayed_actor_is_measured_where_it_moves_and_computed_nowhere_else(delayed):
    assert delayed.busy == {"on_target": 64, "critic_loss": 64, "actor_loss": 21, "post_update": 64}
    # Updates 0 to 31 and 32 to 63, neither of which ends with a step of the actor.
    moved = [np.arange(2, 32, 3).mean(), np.arange(32, 63, 3).mean()]
    np.testing.assert_allclose(delayed.metrics["counts/update"][:, 0], [np.nan, *moved], rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(delayed.metrics["loss/actor"][:, 0]), [True, False, False])


def test_what_is_learnt_before_the_run_is_not_learnt_again_where_it_goes_on(delayed, tiny, tmp_path):
    assert delayed.before == {"pretrain": 1}
    assert "pretrain" not in delayed.idle | delayed.busy
    delayed.made.save(delayed.state, tmp_path)
    restored, calls = counted(lambda: delayed.made.load(tmp_path))
    assert calls == {}
    assert tiny.same(restored.train, delayed.state.train)


def test_an_expert_that_nobody_asks_changes_no_bit(delayed, watch, tiny):
    guided, columns, *_ = learnt(tiny, expert=watch.Always())
    np.testing.assert_array_equal(delayed.columns["action"], columns["action"])
    assert tiny.same(delayed.state.train, guided.train)
    rows = tiny.host(guided.train.seeds.store.rows)
    assert all((column[0, 96:] == 0).all() for column in rows.values())
    assert (rows["reward"][0, :96] == 1).all()
