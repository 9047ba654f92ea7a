import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError, Refused
from perdure.core.records import Shift, Spec
from perdure.extensions.behaviour import Churn, PolicyConsolidation, PreviousPolicy
from perdure.rl import fit
from perdure.rl.nets import Network
from perdure.rl.phases import Batch, Clock, Context

CONTINUOUS = Spec((1,), 1, False, (-1.0,), (1.0,))
NETS = {"actor": Network(1, (1,), 1), "critic": Network(2, (1,), 1, members=2, reads="obs_action")}
DISCRETE_NETS = {"critic": Network(1, (1,), 2)}


def actor(slope):
    """The action slope * x, for x at least 0."""
    return [{"w": jnp.array([[1.0]]), "b": jnp.zeros(1)}, {"w": jnp.array([[slope]], jnp.float32), "b": jnp.zeros(1)}]


def critic(first, second):
    """Two members: first * x and second * x."""
    head = jnp.array([[[first]], [[second]]], jnp.float32)
    body = jnp.array([[[1.0], [0.0]]] * 2)
    return [{"w": body, "b": jnp.zeros((2, 1))}, {"w": head, "b": jnp.zeros((2, 1))}]


def agent(slope, first=0.0, second=0.0):
    return fit.AgentState({"actor": actor(slope), "critic": critic(first, second)}, {})


def rows(*xs):
    column = jnp.array(xs, jnp.float32)[:, None]
    return Batch(column, jnp.zeros_like(column), column[:, 0], None, None, None)


def context(previous, updates, before=None, xs=(1.0, 2.0), shift=False, nets=NETS, spec=CONTINUOUS):
    clock = lambda number: Clock(jnp.int32(0), jnp.int32(number), jnp.int32(1_000))
    return Context(
        spec, nets, 1, clock(updates), jax.random.key(0), shift=jnp.array(shift), recent=rows(*xs),
        previous=clock(previous), before=before,
    )  # fmt: skip


def begun(extension, state):
    return extension.init_state(state, jax.random.key(0), context(0, 0))


def test_the_previous_policy_is_the_one_from_before_the_update_that_reports_the_shift():
    extension = PreviousPolicy(strength=4.0)
    state = begun(extension, agent(1.0))
    batch = rows(1.0, 3.0)._replace(params={"actor": actor(5.0)})
    _, state = extension.post_update(agent(2.0), state, context(0, 1, agent(1.0)))
    assert float(extension.actor_loss(None, state, batch, context(1, 1))) == 0
    _, state = extension.post_update(agent(3.0), state, context(1, 2, agent(2.0), shift=True))
    _, state = extension.post_update(agent(4.0), state, context(2, 3, agent(3.0)))
    # Half of the mean of (3 * 1)^2 and (3 * 3)^2.
    assert float(extension.actor_loss(None, state, batch, context(3, 3))) == pytest.approx(4 * 0.5 * (9 + 81) / 2)
    assert float(extension.critic_loss(None, state, batch, context(3, 3))) == 0


def test_without_an_actor_the_softmax_of_the_values_is_the_policy():
    spec, extension = Spec((1,), 2, discrete=True), PreviousPolicy(strength=1.0)
    net = lambda a, b: {
        "critic": [{"w": jnp.ones((1, 1)), "b": jnp.zeros(1)}, {"w": jnp.array([[a, b]]), "b": jnp.zeros(2)}]
    }
    then, now = fit.AgentState(net(0.0, 0.0), {}), net(np.log(3.0), 0.0)
    ctx = context(0, 1, then, shift=True, nets=DISCRETE_NETS, spec=spec)
    state = extension.init_state(then, jax.random.key(0), ctx)
    _, state = extension.post_update(then, state, ctx)
    found = extension.critic_loss(None, state, rows(1.0)._replace(params=now), ctx)
    # Of (3/4, 1/4) from (1/2, 1/2); the other way round it would be .1438.
    assert float(found) == pytest.approx(0.75 * np.log(1.5) + 0.25 * np.log(0.5), rel=1e-5)


def test_the_cascade_is_a_chain_of_divergences_slower_and_slower():
    extension = PolicyConsolidation(depth=4, flow=3.0, beta=0.5)
    stack = lambda *slopes: {"actor": jax.tree.map(lambda *x: jnp.stack(x), *map(actor, slopes))}
    now, old, policy = [1.0, 4.0, -2.0], [0.5, 2.0, 3.0], 7.0
    found = extension._cascade_loss(stack(*now), stack(*old), {"actor": actor(policy)}, rows(2.0).obs, context(0, 0))
    half = lambda a, b: 0.5 * (2.0 * (a - b)) ** 2
    wanted = sum(0.5 * 3.0**k * half(now[k - 1], old[k - 1]) for k in (1, 2, 3))
    wanted += 3.0 * (half(1.0, 7.0) + half(4.0, 0.5) + half(-2.0, 2.0))
    wanted += half(1.0, 2.0) + half(4.0, 3.0)
    assert float(found) == pytest.approx(wanted, rel=1e-5)
    state = begun(extension, agent(1.0))._replace(hidden=stack(*now))
    loss = extension.actor_loss(None, state, rows(1.0, 3.0)._replace(params={"actor": actor(2.0)}), context(0, 0))
    assert float(loss) == pytest.approx(0.5 * (1 + 9) / 2)


def test_the_cascade_steps_at_its_intervals_and_news_arrive_one_policy_at_a_time():
    extension = PolicyConsolidation(depth=4, interval=4, renewal=8, learning_rate=0.1, rows=2)
    state = begun(extension, agent(1.0))
    update = jax.jit(
        lambda state, previous, updates: extension.post_update(agent(3.0), state, context(previous, updates))[1]
    )
    slopes = lambda tree: np.asarray(tree["actor"][1]["w"])[:, 0, 0]
    state = update(state, 0, 3)
    np.testing.assert_allclose(slopes(state.hidden), 1.0)
    state = update(state, 3, 4)
    # Only the first has met anything new; Adam's first step is its learning rate.
    np.testing.assert_allclose(slopes(state.hidden), [1.1, 1.0, 1.0], rtol=1e-3)
    np.testing.assert_allclose(slopes(state.old), 1.0)
    state = update(state, 4, 16)
    assert int(state.opt.count) == 4
    assert slopes(state.old)[0] == pytest.approx(1.1, rel=1e-3)  # Renewed before the three steps.
    found = slopes(state.hidden)
    assert found[0] > found[1] > found[2] == 1.0


def churned(extension, *steps):
    """The state after post_updates of (previous, updates, before, after, rows)."""
    state = begun(extension, steps[0][2])
    for previous, updates, before, after, xs in steps:
        _, state = extension.post_update(after, state, context(previous, updates, before, xs))
    return state


def losses(extension, state, slope, first, second):
    params = {"actor": actor(slope), "critic": critic(first, second)}
    batch = rows(50.0)._replace(params=params)
    return [float(loss(None, state, batch, context(9, 9))) for loss in (extension.critic_loss, extension.actor_loss)]


def test_churn_is_the_change_of_the_last_update_on_rows_it_did_not_train_on():
    extension = Churn(value=2.0, policy=3.0, rows=2)
    steps = [(0, 1, agent(1.0), agent(2.0, 1.0, 1.0), (1.0, 3.0))]
    assert losses(extension, churned(extension, *steps), 9.0, 9.0, 9.0) == [0.0, 0.0]
    steps.append((1, 2, agent(2.0, 1.0, 1.0), agent(4.0, 3.0, -1.0), (100.0, 100.0)))
    state = churned(extension, *steps)
    # Rows 1 and 3 of the update before; the networks (2, 1, 1) of before the last one.
    square = (1 + 9) / 2
    found = losses(extension, state, 4.0, 3.0, -1.0)
    assert found == pytest.approx([2 * (4 * square + 4 * square), 3 * 0.5 * 4 * square])
    assert losses(extension, state, 2.0, 1.0, 1.0) == [0.0, 0.0]
    told = extension.eval_metrics(agent(4.0, 3.0, -1.0), state, context(9, 9))
    assert float(told["churn/value"]) == pytest.approx(2 * 2.0)


def test_after_a_round_of_many_updates_the_next_one_is_compared_with_its_beginning():
    extension = Churn(value=1.0, policy=1.0, rows=4)
    state = churned(extension, (0, 8, agent(1.0), agent(2.0, 1.0, 1.0), (1.0, 3.0)))
    np.testing.assert_allclose(state.rows.obs[:, 0], [1.0, 1.0, 3.0, 3.0])  # Two rows stand for four.
    assert losses(extension, state, 2.0, 1.0, 1.0) == [0.0, 0.0]
    assert losses(extension, state, 3.0, 1.0, 3.0) == pytest.approx([4 * 5.0, 0.5 * 5.0])


def test_all_of_them_hold_behaviour_back_in_training(tiny):
    stack = (
        PreviousPolicy(strength=100.0),
        PolicyConsolidation(depth=3, interval=8, rows=8),
        Churn(10.0, 10.0, rows=8),
    )

    def trained(extensions):
        made = tiny.made("sac", extensions, rollout={"boundary_source": "oracle"})
        plan = tiny.schedule((96, 1.0), (904, -1.0), source="oracle")
        state, _, _ = tiny.train(made, 96, plan)
        then = jax.tree.map(np.asarray, state.train.seeds.agent.params)
        state = made.on_regime_shift(state, Shift("s0", "s0", "s1", "s1", 96, "oracle"))
        state, _, _ = tiny.train(made, 96, plan, state)
        return made, state, then

    made, state, then = trained(stack)
    _, free, free_then = trained(())
    previous, cascade, reference = state.train.seeds.extensions.states
    for kept, was in zip(jax.tree.leaves(previous.params["actor"]), jax.tree.leaves(then["actor"]), strict=True):
        np.testing.assert_allclose(kept, was, rtol=1e-6)
    assert (previous.known == 1).all()
    assert (reference.rows.known == 1).all()
    assert (np.asarray(cascade.opt.count) > 4).all()
    moved = lambda state, then: sum(
        np.square(np.asarray(new) - old).sum()
        for new, old in zip(jax.tree.leaves(state.train.seeds.agent.params["actor"]), jax.tree.leaves(then["actor"]))
    )
    assert moved(state, then) < 0.5 * moved(free, free_then)
    told = made.evaluate(state, {"level": 1.0}, 1).metrics
    assert set(told) == {"policy_consolidation/first_kl", "policy_consolidation/last_kl", "churn/value"}
    assert all((value > 0).all() for value in told.values())


def test_what_they_need_is_said(tiny):
    with pytest.raises(Refused, match=r"PreviousPolicy.*needs boundary"):
        tiny.made("sac", (PreviousPolicy(),))
    with pytest.raises(Refused, match=r"PolicyConsolidation.*needs actor"):
        tiny.made("dqn", (PolicyConsolidation(),))
    tiny.made("pqn", (PreviousPolicy(), Churn()), rollout={"boundary_source": "oracle"})


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        (PreviousPolicy, {"strength": -1.0}, "strength is -1"),
        (PolicyConsolidation, {"depth": 1}, "depth is 1"),
        (PolicyConsolidation, {"flow": 0.5}, "flow is 0.5"),
        (PolicyConsolidation, {"interval": 0}, "interval is 0"),
        (Churn, {"value": -1.0}, "value is -1"),
        (Churn, {"rows": 0}, "rows is 0"),
    ],
)
def test_settings_out_of_range_are_refused(kind, wrong, says):
    with pytest.raises(ConfigError, match=says):
        kind(**wrong)
