import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError, Refused
from perdure.core.records import Shift
from perdure.extensions import packnet
from perdure.extensions.packnet import Packed, PackNet
from perdure.rl import fit
from perdure.rl.nets import Network
from perdure.rl.optim import OptState
from perdure.rl.phases import Clock, Context

NETS = {"actor": Network(2, (3,), 2), "critic": Network(2, (3,), 1)}
FIRST = [[6.0, -5.0, 4.0], [-3.0, 2.0, 1.0]]


def actor():
    return [
        {"w": jnp.array(FIRST), "b": jnp.ones(3)},
        {"w": jnp.array([[0.1, 0.2], [-0.3, 0.4], [0.5, -0.6]]), "b": jnp.ones(2)},
    ]


def agent_state():
    params = {"actor": actor(), "critic": [{"w": jnp.ones((2, 3)), "b": jnp.ones(3)}]}
    ones = jax.tree.map(jnp.ones_like, {"actor": params["actor"]})
    return fit.AgentState(params, {"actor": OptState(jnp.int32(5), ones, ones)})


def context(shift, nets=NETS):
    return Context(None, nets, 1, Clock(*[jnp.int32(0)] * 3), shift=jnp.array(shift))


def shifted(extension, agent, state, shift=True):
    return extension.post_update(agent, state, context(shift))


def begun(extension):
    agent = agent_state()
    return agent, extension.init_state(agent, jax.random.key(0), context(False))


def test_the_largest_share_of_the_free_weights_is_kept():
    weights, free = jnp.array(FIRST), jnp.array([[False, True, True], [True, True, True]])
    # Five are free: -5, 4, -3, 2, 1; .4 of them are two, .39 of them one.
    kept = packnet.largest(weights, free, jnp.float32(0.4), False)
    np.testing.assert_array_equal(kept, [[False, True, True], [False] * 3])
    kept = packnet.largest(weights, free, jnp.float32(0.39), False)
    np.testing.assert_array_equal(kept, [[False, True, False], [False] * 3])
    both = packnet.largest(jnp.stack([weights, 1 / weights]), jnp.ones((2, 2, 3), bool), jnp.float32(1 / 3), True)
    np.testing.assert_array_equal(both[0], [[True, True, False], [False] * 3])
    np.testing.assert_array_equal(both[1], [[False] * 3, [False, True, True]])


def test_each_shift_freezes_an_equal_part_and_the_last_regime_has_the_rest():
    extension = PackNet(tasks=3)
    agent, state = begun(extension)
    agent, state = shifted(extension, agent, state)
    first = agent.params["actor"][0]
    np.testing.assert_array_equal(first["w"], [[6.0, -5.0, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(first["b"], 1.0)
    np.testing.assert_array_equal(state.free["actor"][0]["w"], [[False, False, True], [True, True, True]])
    assert not state.free["actor"][0]["b"].any()
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(agent.opt["actor"].mean))
    np.testing.assert_array_equal(agent.params["critic"][0]["w"], 1.0)
    # The next regime learns (., ., 1; 4, 3, -2) in the free places and keeps 4 and 3: half of what was free.
    learnt = first | {"w": jnp.array([[6.0, -5.0, 1.0], [4.0, 3.0, -2.0]])}
    agent = agent._replace(params=agent.params | {"actor": [learnt, agent.params["actor"][1]]})
    agent, state = shifted(extension, agent, state)
    np.testing.assert_array_equal(agent.params["actor"][0]["w"], [[6.0, -5.0, 0.0], [4.0, 3.0, 0.0]])
    metrics = extension.eval_metrics(agent, state, context(False))
    assert float(metrics["packnet/free_fraction"]) == pytest.approx(4 / 12)
    again, state = shifted(extension, agent, state)
    np.testing.assert_array_equal(state.free["actor"][0]["w"], [[False, False, True], [False, False, True]])
    assert int(state.shifts) == 2
    same = jax.tree.map(lambda x, y: bool((x == y).all()), again.params, agent.params)
    assert jax.tree.all(same)


def test_nothing_happens_without_a_shift():
    extension = PackNet()
    agent, state = begun(extension)
    after, state = shifted(extension, agent, state, shift=False)
    np.testing.assert_array_equal(after.params["actor"][0]["w"], FIRST)
    assert int(state.shifts) == 0


@pytest.mark.parametrize("phase", ["gradient", "step"])
def test_frozen_parameters_have_no_gradient_and_no_change(phase):
    free = [{"w": jnp.array([[True, False]]), "b": jnp.zeros(2, bool)}]
    tree = {"actor": [{"w": jnp.array([[2.0, 3.0]]), "b": jnp.ones(2)}], "log_std": jnp.ones(1)}
    found = getattr(PackNet(), phase)(None, Packed({"actor": free}, jnp.int32(1)), tree, None, None)
    np.testing.assert_array_equal(found["actor"][0]["w"], [[2.0, 0.0]])
    np.testing.assert_array_equal(found["actor"][0]["b"], 0.0)
    np.testing.assert_array_equal(found["log_std"], 1.0)


@pytest.mark.parametrize(
    ("networks", "nets", "held"),
    [
        ("actor", NETS, {"actor"}),
        ("all", NETS, {"actor", "critic"}),
        ("actor", {"critic": NETS["critic"]}, {"critic"}),
    ],
)
def test_the_networks_that_are_packed(networks, nets, held):
    state = PackNet(networks=networks).init_state(agent_state(), jax.random.key(0), context(False, nets))
    assert set(state.free) == held


def test_what_was_kept_at_a_shift_never_moves_again(tiny):
    made = tiny.made("ppo", (PackNet(tasks=2, networks="all"),), rollout={"boundary_source": "oracle"})
    plan = tiny.schedule((96, 1.0), (904, 1.0), source="oracle")
    state, _, _ = tiny.train(made, 96, plan)
    state = made.on_regime_shift(state, Shift("s0", "s0", "s1", "s1", 96, "oracle"))
    state, _, _ = tiny.train(made, 96, plan, state)
    after = tiny.host(state.train.seeds.agent.params)
    free = tiny.host(state.train.seeds.extensions.states[0].free)
    for path, mask in free.items():
        assert mask.mean() == (0.5 if path.endswith("w") else 0.0)
    frozen = {path: after[path][~mask] for path, mask in free.items()}
    state, _, _ = tiny.train(made, 96, plan, state)
    last = tiny.host(state.train.seeds.agent.params)
    for path, mask in free.items():
        np.testing.assert_array_equal(last[path][~mask], frozen[path])
        assert not path.endswith("w") or (last[path][mask] != after[path][mask]).any()


def test_it_needs_to_be_told_of_shifts(tiny):
    with pytest.raises(Refused, match=r"PackNet\) needs boundary"):
        tiny.made("sac", (PackNet(),))


@pytest.mark.parametrize(
    ("wrong", "says"), [({"tasks": 1}, "tasks is 1"), ({"networks": "both"}, "networks is 'both'")]
)
def test_settings_out_of_range_are_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        PackNet(**wrong)
