import jax
import jax.numpy as jnp
import pytest

from perdure.core.component import component
from perdure.core.errors import PerdureError, Refused
from perdure.extensions import base
from perdure.rl.experts import PID
from perdure.rl.phases import Batch, Clock, Context

BATCH = Batch(jnp.zeros((2, 1)), jnp.zeros((2, 1)), jnp.ones(2), jnp.zeros(2, bool), jnp.zeros(2, bool), None)


@component
class Counted(base.Extension):
    """Counts its rewards, and doubles everything else."""

    expert_policy: PID | None = None

    reads = frozenset({"is_expert"})

    def init_state(self, agent_state, key, ctx):
        return jnp.zeros(())

    def reward(self, agent_state, state, batch, reward, ctx):
        return 2 * reward, state + 1, {"counted/sum": reward.sum()}

    def on_target(self, agent_state, state, batch, target, ctx):
        return 2 * target

    def critic_loss(self, agent_state, state, batch, ctx):
        return 3.0, {"counted/term": 3.0}

    def post_update(self, agent_state, state, ctx):
        return agent_state + 1, state + 1

    def eval_metrics(self, agent_state, state, ctx):
        return {"counted/count": state}


@pytest.fixture
def ctx():
    return Context(None, {}, 1, Clock(jnp.int32(0), jnp.int32(0), jnp.int32(9)), jax.random.key(0))


def test_a_stack_folds_what_its_extensions_override(ctx):
    stack = base.ExtensionStack((Counted(),))
    states = stack.fold_init_states(None, jax.random.key(0), ctx)
    rewards, states, metrics = stack.fold_reward(None, states, BATCH, ctx)
    assert (rewards.tolist(), float(states[0]), float(metrics["counted/sum"])) == ([2.0, 2.0], 1.0, 2.0)
    assert stack.fold_on_target(None, states, BATCH, jnp.ones(2), ctx)[0].tolist() == [2.0, 2.0]
    assert stack.fold_critic_loss(None, states, BATCH, ctx) == (3.0, {"counted/term": 3.0})
    assert stack.fold_actor_loss(None, states, BATCH, ctx) == (0.0, {})
    assert stack.fold_pretrain(5.0, states, ctx) == (5.0, states)
    agent_state, states, _ = stack.fold_post_update(5.0, states, ctx)
    assert (agent_state, float(states[0])) == (6.0, 2.0)
    assert float(stack.fold_eval_metrics(None, states, ctx)["counted/count"]) == 2.0


def test_a_stack_says_what_it_reads_and_overrides():
    stack = base.ExtensionStack((Counted(), base.Extension()))
    assert stack.buffer_fields() == {"is_expert"}
    assert {"reward", "init_state", "post_update"} < stack.implemented_phases()
    assert "actor_loss" not in stack.implemented_phases()


def test_an_expert_that_is_not_followed_is_refused():
    stack = base.ExtensionStack((Counted(PID()),))
    assert base.holds_expert(stack.extensions[0])
    assert not base.holds_expert(Counted())
    assert stack.with_experts(PID()) is stack
    with pytest.raises(Refused, match=r"extensions\[0\] \(Counted\) brings a stateful expert"):
        stack.with_experts(None)


def test_nothing_is_bound_by_hand():
    assert base.ExtensionStack().bind_to_agent() == base.ExtensionStack()
    with pytest.raises(Refused, match="buffer, gamma, which perdure binds itself"):
        base.ExtensionStack().bind_to_agent(gamma=0.9, buffer=None)


def test_what_a_phase_returns_is_a_value_or_a_value_with_metrics():
    assert base.phase_output(3.0) == (3.0, {})
    assert base.phase_output((3.0, {"a": 1})) == (3.0, {"a": 1})
    with pytest.raises(PerdureError, match="logged twice"):
        base.merge_metrics({"a": 1}, {"a": 2})


def test_the_refusals_are_errors_of_value_too():
    assert issubclass(base.MissingCapability, ValueError)
    assert issubclass(base.NotWired, PerdureError)


def test_every_key_of_a_phase_is_a_field_of_the_batch():
    assert {key for keys in base.PHASE_BATCH_KEYS.values() for key in keys} == set(Batch._fields)
