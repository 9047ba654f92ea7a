import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError, Refused
from perdure.core.records import Shift
from perdure.extensions.resets import Recycled, ReDo, ShrinkPerturb
from perdure.rl import fit
from perdure.rl.nets import Network
from perdure.rl.optim import OptState
from perdure.rl.phases import Batch, Clock, Context

NETWORK = Network(2, (3, 2), 1)
OBS = jnp.array([[1.0, 2.0], [3.0, -1.0]])


def layer(weights, biases):
    return {"w": jnp.array(weights, jnp.float32), "b": jnp.array(biases, jnp.float32)}


def params():
    """Hidden activations on OBS: layer 1 has (1, 3), (0, 0), (.02, .06); layer 2 has unit 1 dead."""
    return [
        layer([[1.0, -1.0, 0.02], [0.0, -1.0, 0.0]], [0.0, -5.0, 0.0]),
        layer([[1.0, -1.0], [1.0, 1.0], [1.0, 0.0]], [0.0, -1.0]),
        layer([[1.0], [1.0]], [0.5]),
    ]


def rows(obs=OBS):
    return Batch(obs, jnp.zeros((len(obs), 1)), None, None, None, None)


def agent_state():
    ones = jax.tree.map(jnp.ones_like, {"critic": params()})
    return fit.AgentState({"critic": params()}, {"critic": OptState(jnp.int32(5), ones, ones)})


def context(before, now, shift=False, network=NETWORK):
    clock = lambda updates: Clock(jnp.int32(0), jnp.int32(updates), jnp.int32(1_000))
    return Context(
        None, {"critic": network}, 1, clock(now), jax.random.key(3), shift=shift, recent=rows(), previous=clock(before)
    )


def test_recycling_a_dead_unit_leaves_the_function_as_it_was():
    before = NETWORK.apply(params(), OBS)
    extension = ReDo(interval=10)
    state = extension.init_state(agent_state(), jax.random.key(0), context(0, 0))
    after, seen = extension.post_update(agent_state(), state, context(5, 10))
    np.testing.assert_allclose(NETWORK.apply(after.params["critic"], OBS), before, rtol=1e-5)
    assert (int(seen.units), float(seen.dormant_fraction)) == (2, pytest.approx(0.4))
    assert (after.params["critic"][0]["w"][:, 1] != params()[0]["w"][:, 1]).all()


@pytest.mark.parametrize(
    ("before", "now", "due"), [(0, 9, False), (9, 10, True), (6, 14, True), (10, 19, False), (4, 44, True)]
)
def test_redo_acts_when_its_interval_is_crossed(before, now, due):
    extension = ReDo(interval=10)
    after, seen = extension.post_update(agent_state(), Recycled(jnp.zeros(()), jnp.int32(0)), context(before, now))
    assert (int(seen.units) > 0) == due
    assert bool((after.params["critic"][2]["w"][1] == 0).all()) == due


def test_shrink_and_perturb_mixes_in_a_fresh_network():
    extension = ShrinkPerturb(shrink=0.5, perturb=0.25, interval=10)
    ctx = context(9, 10)
    after, _ = extension.post_update(agent_state(), (), ctx)
    fresh = NETWORK.init(jax.random.fold_in(ctx.key, 0))
    for new, old, drawn in zip(after.params["critic"], params(), fresh, strict=True):
        np.testing.assert_allclose(new["w"], 0.5 * old["w"] + 0.25 * drawn["w"], rtol=1e-6)
        np.testing.assert_allclose(new["b"], 0.5 * old["b"] + 0.25 * drawn["b"], rtol=1e-6)
    untouched, _ = extension.post_update(agent_state(), (), context(10, 19))
    np.testing.assert_array_equal(untouched.params["critic"][0]["w"], params()[0]["w"])


@pytest.mark.parametrize("shift", [False, True])
def test_a_shrink_that_waits_for_shifts_acts_on_them_alone(shift):
    extension = ShrinkPerturb(shrink=0.0, perturb=0.0, trigger="shift", interval=1)
    after, _ = extension.post_update(agent_state(), (), context(0, 100, shift=jnp.array(shift)))
    assert bool((after.params["critic"][2]["w"] == 0).all()) == shift


def test_a_shrink_that_waits_for_shifts_needs_to_be_told_of_them(tiny):
    waiting = (ShrinkPerturb(trigger="shift"),)
    with pytest.raises(Refused, match=r"ShrinkPerturb.*needs boundary; choose boundary_source oracle or detector"):
        tiny.made("ppo", waiting)
    for source in ("oracle", "detector"):
        tiny.made("ppo", waiting, rollout={"boundary_source": source})


def test_a_told_shift_shrinks_the_network_in_training(tiny):
    waiting = (ShrinkPerturb(shrink=0.0, perturb=0.0, trigger="shift"),)
    made = tiny.made("ppo", waiting, rollout={"boundary_source": "oracle"})
    plan = tiny.schedule((96, 1.0), (904, 1.0), source="oracle")
    state, _, _ = tiny.train(made, 96, plan)
    assert np.abs(state.train.seeds.agent.params["actor"][0]["w"]).min() > 0
    state = made.on_regime_shift(state, Shift("s0", "s0", "s1", "s1", 96, "oracle"))
    state, _, _ = tiny.train(made, 32, plan, state)
    assert (np.asarray(state.train.seeds.agent.params["actor"][0]["w"]) == 0).all()
    state, _, _ = tiny.train(made, 32, plan, state)
    assert (np.asarray(state.train.seeds.agent.params["critic"][-1]["b"]) != 0).all()  # It was told once.


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        (ReDo, {"threshold": -1.0}, "threshold is -1"),
        (ReDo, {"interval": 0}, "interval is 0"),
        (ShrinkPerturb, {"shrink": 1.5}, "shrink is 1.5"),
        (ShrinkPerturb, {"perturb": -0.1}, r"perturb -0\.1"),
        (ShrinkPerturb, {"trigger": "never"}, "trigger is 'never'"),
        (ShrinkPerturb, {"interval": -3}, "interval is -3"),
    ],
)
def test_settings_out_of_range_are_refused(kind, wrong, says):
    with pytest.raises(ConfigError, match=says):
        kind(**wrong)
