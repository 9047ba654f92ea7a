import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError, Refused
from perdure.core.records import Shift, Spec
from perdure.extensions.consolidation import EWC, MAS, OnlineEWC, SynapticIntelligence
from perdure.rl import fit
from perdure.rl.nets import Network
from perdure.rl.optim import Adam
from perdure.rl.phases import Batch, Clock, Context

NETS = {"critic": Network(1, (1,), 1)}
SPEC = Spec((1,), 2, discrete=True)
AGENT = types.SimpleNamespace(optimiser=Adam(learning_rate=0.1))


def values(first, second):
    """h = first * x and a value second * h."""
    layer = lambda weight: {"w": jnp.array([[weight]], jnp.float32), "b": jnp.zeros(1)}
    return {"critic": [layer(first), layer(second)]}


def rows(x):
    column = jnp.full((2, 1), x, jnp.float32)
    return Batch(column, jnp.zeros(2, jnp.int32), column[:, 0], None, None, None)


def context(updates, x, before, shift=False):
    clock = lambda number: Clock(jnp.int32(0), jnp.int32(number), jnp.int32(1_000))
    return Context(
        SPEC, NETS, 1, clock(updates), jax.random.key(0), shift=jnp.array(shift), recent=rows(x),
        previous=clock(updates - 1), before=before, agent=AGENT,
    )  # fmt: skip


def after(extension, *steps):
    """The state after post_updates with (parameters before, parameters after, x of the rows, shift)."""
    start = fit.AgentState(steps[0][0], {})
    state = extension.init_state(start, jax.random.key(0), context(0, 0.0, start))

    @jax.jit
    def one(state, before, now, x, updates, shift):
        ctx = context(updates, x, fit.AgentState(before, {}), shift)
        return extension.post_update(fit.AgentState(now, {}), state, ctx)[1]

    for number, (before, now, x, shift) in enumerate(steps):
        state = one(state, before, now, x, number + 1, shift)
    return state


def information(first, second, x):
    """Squared slopes of the value: of the two weights and the two biases."""
    return np.array([(second * x) ** 2, (first * x) ** 2, second**2, 1.0])


def numbers(tree):
    return np.array([*(float(part["w"][0, 0]) for part in tree), *(float(part["b"][0]) for part in tree)])


def penalty(extension, state, params):
    batch = rows(0.0)._replace(params=params)
    return float(extension.critic_loss(None, state, batch, context(0, 0.0, None)))


ONE, TWO, THREE = values(1.0, 2.0), values(2.0, 3.0), values(4.0, 5.0)


def test_a_shift_takes_over_the_old_regimes_information_and_the_parameters_from_before_the_update():
    extension = EWC(strength=10.0, rows=2, interval=1, memory=0.5)
    steps = [(ONE, ONE, 1.0, False), (ONE, TWO, 3.0, False), (TWO, THREE, 100.0, True)]
    state = after(extension, *steps)
    # The rows of the update that reports the shift (x = 100) are of the new regime.
    wanted = (information(1.0, 2.0, 1.0) + 2 * information(2.0, 3.0, 3.0)) / 3
    np.testing.assert_allclose(numbers(state.anchor.precision["critic"]), wanted, rtol=1e-5)
    np.testing.assert_allclose(numbers(state.anchor.centre["critic"]), [2.0, 3.0, 0.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(numbers(state.running["critic"]), 0.5 * information(4.0, 5.0, 100.0), rtol=1e-5)
    moved = values(2.5, 1.0)
    assert penalty(extension, state, moved) == pytest.approx(5.0 * (wanted[0] * 0.25 + wanted[1] * 4.0), rel=1e-5)
    assert penalty(extension, state, TWO) == pytest.approx(0.0, abs=1e-5)


def test_nothing_pulls_before_a_shift_and_one_without_measurements_changes_nothing():
    extension = EWC(rows=2, interval=1)
    assert penalty(extension, after(extension, (ONE, ONE, 1.0, False)), THREE) == 0.0
    rare = EWC(rows=2, interval=100)
    state = after(rare, (ONE, ONE, 1.0, True))
    assert float(state.anchor.number) == 0
    assert penalty(rare, state, THREE) == 0.0


def test_every_shift_adds_a_parabola_of_its_own():
    extension = EWC(strength=2.0, rows=2, interval=1, memory=0.0)
    steps = [(ONE, ONE, 1.0, False), (TWO, TWO, 3.0, True), (THREE, THREE, 1.0, True)]
    state = after(extension, *steps)
    first, second = information(1.0, 2.0, 1.0), information(2.0, 3.0, 3.0)
    places = np.array([[2.0, 3.0, 0.0, 0.0], [4.0, 5.0, 0.0, 0.0]])
    point = np.array([7.0, -1.0, 0.0, 0.0])
    wanted = (first * (point - places[0]) ** 2 + second * (point - places[1]) ** 2).sum()
    metrics = extension.eval_metrics(fit.AgentState(values(7.0, -1.0), {}), state, context(0, 0.0, None))
    assert float(metrics["ewc/penalty"]) == pytest.approx(wanted, rel=1e-5)
    assert float(metrics["ewc/anchors"]) == 2
    # The slope is that of the sum too.
    loss = lambda w: extension.critic_loss(None, state, rows(0.0)._replace(params=values(w, -1.0)), context(0, 0, None))
    slope = 2 * (first[0] * (7 - 2) + second[0] * (7 - 4))
    assert float(jax.grad(loss)(7.0)) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize(
    ("extension", "wanted"),
    [
        (
            OnlineEWC(strength=2.0, fading=0.5, rows=2, interval=1, memory=0.0),
            lambda: 0.5 * (0.5 * information(1.0, 2.0, 1.0) + information(2.0, 3.0, 3.0)),
        ),
        (
            # |d y^2| = 2 |y| |dy| with y = 2 and 18.
            MAS(strength=1.0, rows=2, interval=1, memory=0.0),
            lambda: 4 * np.array([2.0, 1.0, 2.0, 1.0]) + 36 * np.array([9.0, 6.0, 3.0, 1.0]),
        ),
    ],
)
def test_one_anchor_is_the_last_and_importance_adds_up(extension, wanted):
    steps = [(ONE, ONE, 1.0, False), (TWO, TWO, 3.0, True), (THREE, THREE, 1.0, True)]
    state = after(extension, *steps)
    assert penalty(extension, state, THREE) == 0.0
    weight = wanted()
    found = penalty(extension, state, values(4.0 + 1.0, 5.0 - 2.0))
    assert found == pytest.approx(weight[0] * 1.0 + weight[1] * 4.0, rel=1e-5)


def followed(extension, gradients, *shifts):
    """The state after Adam has followed the gradients of the second weight, one look an update."""
    agent = fit.AgentState(ONE, {"critic": AGENT.optimiser.init(ONE)})
    state = extension.init_state(agent, jax.random.key(0), context(0, 0.0, agent))
    places = [2.0]
    for number, gradient in enumerate(gradients):
        params, opt = AGENT.optimiser.step(agent.params, agent.opt["critic"], values(0.0, gradient))
        now = fit.AgentState(params, {"critic": opt})
        ctx = context(number + 1, 0.0, agent, shift=number in shifts)
        _, state = extension.post_update(now, state, ctx)
        agent = now
        places.append(float(params["critic"][1]["w"][0, 0]))
    return state, places


def test_synaptic_intelligence_is_the_work_along_the_path_over_the_squared_distance():
    extension = SynapticIntelligence(strength=3.0, damping=0.01)
    gradients = [2.0, 1.0, -0.5, 4.0]
    state, places = followed(extension, gradients, 3)
    steps = np.diff(places)
    work = -(np.array(gradients[:3]) * steps[:3]).sum()
    omega = work / ((places[3] - places[0]) ** 2 + 0.01)
    assert work > 0
    found = state.anchor.precision["critic"][1]["w"][0, 0]
    assert float(found) == pytest.approx(omega, rel=1e-3)
    assert float(state.anchor.centre["critic"][1]["w"][0, 0]) == pytest.approx(places[3])
    # The update that reports the shift is the first of the new path.
    assert float(state.path["critic"][1]["w"][0, 0]) == pytest.approx(-4.0 * steps[3], rel=1e-3)
    assert float(state.start["critic"][1]["w"][0, 0]) == pytest.approx(places[3])
    assert penalty(extension, state, values(1.0, places[3] + 2.0)) == pytest.approx(3.0 * omega * 4.0, rel=1e-3)


def test_work_against_the_gradient_does_not_push_away():
    # Momentum carries the weight on while the gradient has turned; the second shift ends just that stretch.
    once, places = followed(SynapticIntelligence(), [8.0, -0.5], 1)
    assert float(once.path["critic"][1]["w"][0, 0]) == pytest.approx(0.5 * (places[2] - places[1]), rel=1e-3)
    assert places[2] < places[1]
    twice, _ = followed(SynapticIntelligence(), [8.0, -0.5, 0.0], 1, 2)
    omega = [float(state.anchor.precision["critic"][1]["w"][0, 0]) for state in (once, twice)]
    assert omega[0] == omega[1] > 0


def drift(anchor, params):
    """What the anchor's pull at the actor measures."""
    trees = (anchor.precision["actor"], params["actor"], anchor.centre["actor"])
    return sum((f * (p - c) ** 2).sum() for f, p, c in zip(*map(jax.tree.leaves, trees), strict=True))


def test_strong_anchors_hold_the_policy_of_the_last_regime(tiny):
    often = {"strength": 3e3, "rows": 8, "interval": 2}
    stack = (EWC(critic=True, **often), OnlineEWC(**often), MAS(**often), SynapticIntelligence(strength=3e3))

    def trained(extensions):
        made = tiny.made("sac", extensions, rollout={"boundary_source": "oracle"})
        plan = tiny.schedule((96, 1.0), (904, -1.0), source="oracle")
        state, _, _ = tiny.train(made, 96, plan)
        shifted = jax.tree.map(np.asarray, state.train.seeds.agent.params)
        state = made.on_regime_shift(state, Shift("s0", "s0", "s1", "s1", 96, "oracle"))
        seeds = tiny.train(made, 96, plan, state)[0].train.seeds
        return jax.tree.map(np.asarray, (shifted, seeds.agent.params, seeds.extensions.states))

    then, held, states = trained(stack)
    _, free, _ = trained(())
    for state in states:
        anchor = state.anchor
        assert (anchor.number == 1).all()
        assert sum((x > 0).sum() for x in jax.tree.leaves(anchor.precision["actor"])) > 10
        for centre, params in zip(jax.tree.leaves(anchor.centre["actor"]), jax.tree.leaves(then["actor"]), strict=True):
            np.testing.assert_allclose(centre, params, rtol=1e-6, atol=1e-7)
        assert drift(anchor, held) < 0.5 * drift(anchor, free)
    assert [set(state.anchor.precision) for state in states] == [{"actor", "critic"}, *[{"actor"}] * 3]


@pytest.mark.parametrize("kind", [EWC, OnlineEWC, MAS, SynapticIntelligence])
def test_they_need_to_be_told_of_shifts(kind, tiny):
    with pytest.raises(Refused, match=rf"{kind.__name__}.*needs boundary"):
        tiny.made("dqn", (kind(),))
    tiny.made("dqn", (kind(),), rollout={"boundary_source": "detector"})


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        (EWC, {"strength": -1.0}, "strength is -1"),
        (EWC, {"rows": 0}, "rows is 0"),
        (OnlineEWC, {"fading": 1.5}, "fading is 1.5"),
        (OnlineEWC, {"interval": 0}, "interval is 0"),
        (MAS, {"memory": 1.0}, "memory is 1"),
        (SynapticIntelligence, {"damping": 0.0}, "damping is 0"),
    ],
)
def test_settings_out_of_range_are_refused(kind, wrong, says):
    with pytest.raises(ConfigError, match=says):
        kind(**wrong)
