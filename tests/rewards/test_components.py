import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core import registry
from perdure.core.errors import ConfigError
from perdure.rewards import components as parts

EXAMPLES = {
    "action_validity": {},
    "constant": {"value": -0.5},
    "cost": {"scale": 2.0},
    "env_scalar": {"low": -1.0, "high": 1.0},
    "episode_completion": {"on": "either"},
    "exploration": {},
    "expression": {"text": "clip(cost * 2 - failures, -1, 1)", "low": -1.0, "high": 1.0},
    "failure_event": {},
    "ledger_delta": {},
    "ledger_level": {"scale": 10.0},
    "sla": {},
    "throughput": {"capacity": 4.0},
    "verifier_pass": {},
}


def values(component, *infos, xp=np):
    """Raw values of a component over an episode: the first info is that of the reset."""
    memory, found = component.start(xp, infos[0]), []
    for info in infos[1:]:
        memory, raw = component.step(xp, memory, None, info)
        found.append(raw)
    return found


def batch(seed, lanes=(4,)):
    """A random info of several lanes that every component can read."""
    generator = np.random.default_rng(seed)
    return {
        "obs": generator.normal(size=(*lanes, 3)).astype(np.float32),
        "env_reward": generator.normal(size=lanes) * 5,
        "terminated": generator.random(lanes) < 0.3,
        "truncated": generator.random(lanes) < 0.3,
        "ledger": {"net": generator.normal(size=lanes) * 10},
        "throughput": generator.random(lanes) * 8,
        "failures": generator.integers(0, 4, lanes),
        "sla": generator.random(lanes),
        "verifier_pass": generator.random(lanes) < 0.5,
        "action_valid": generator.random(lanes) < 0.5,
        "cost": generator.random(lanes) * 5,
    }


def lane(info, index):
    return {key: lane(value, index) if isinstance(value, dict) else value[index] for key, value in info.items()}


def test_every_registered_component_has_an_example_here():
    assert set(EXAMPLES) == set(registry.names("rewards"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_raw_values_lie_within_the_declared_bounds_and_have_the_shape_of_the_lanes(name):
    component = registry.resolve("rewards", name)(**EXAMPLES[name])
    low, high = component.bounds()
    for raw in values(component, *[batch(seed) for seed in range(30)]):
        assert np.shape(raw) == (4,)
        assert np.all(raw >= (-np.inf if low is None else low))
        assert np.all(raw <= (np.inf if high is None else high))


@pytest.mark.parametrize("name", EXAMPLES)
def test_lanes_together_give_what_each_gives_alone(name):
    component = registry.resolve("rewards", name)(**EXAMPLES[name])
    infos = [batch(seed) for seed in range(6)]
    together = np.stack(values(component, *infos))
    for index in range(4):
        np.testing.assert_allclose(together[:, index], values(component, *[lane(info, index) for info in infos]))


@pytest.mark.parametrize("name", EXAMPLES)
def test_jax_arrays_give_what_numpy_arrays_give(name):
    component = registry.resolve("rewards", name)(**EXAMPLES[name])
    infos = [batch(seed) for seed in range(6)]
    for here, there in zip(values(component, *infos), values(component, *infos, xp=jnp), strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_component_reads_the_keys_that_it_says_and_no_others(name, info):
    component = registry.resolve("rewards", name)(**EXAMPLES[name])
    full = batch(0, ())
    own = {
        key: value
        for key, value in full.items()
        if key.split(".")[0] in {k.split(".")[0] for k in component.requires()}
    }
    assert len(values(component, info(**own), info(**own))) == 1


def test_ledger_delta_is_the_gain_of_each_step(info):
    component = parts.LedgerDelta(scale=10.0)
    infos = [info(ledger={"net": net}) for net in (100.0, 105.0, 103.0, 203.0)]
    assert values(component, *infos) == pytest.approx([0.5, -0.2, 1.0])


def test_ledger_delta_counts_zero_where_the_reset_does_not_show_the_account(info):
    shown = [info(ledger={"net": net}) for net in (105.0, 106.0)]
    assert values(parts.LedgerDelta(), info(), *shown) == [0.0, 1.0]


def test_ledger_level_is_a_half_at_its_reference(info):
    component = parts.LedgerLevel(reference=100.0, scale=10.0)
    infos = [info(ledger={"net": net}) for net in (0.0, 100.0, 110.0, -1e6)]
    assert values(component, *infos) == pytest.approx([0.5, 0.5 * (1 + np.tanh(1.0)), 0.0])


def test_throughput_is_a_share_of_the_capacity(info):
    infos = [info(throughput=amount) for amount in (0, 1, 4, 9)]
    assert values(parts.Throughput(capacity=4.0), *infos) == [0.25, 1.0, 1.0]


def test_failures_are_a_penalty_with_a_cap(info):
    infos = [info(failures=count) for count in (0, 0, True, 3)]
    assert values(parts.FailureEvent(cap=2.0), *infos) == [0.0, -1.0, -2.0]


def test_a_service_level_counts_up_to_its_target(info):
    infos = [info(sla=level) for level in (0, 0.4, 0.8, 1.0)]
    assert values(parts.ServiceLevel(target=0.8), *infos) == [0.5, 1.0, 1.0]


def test_costs_are_negative_and_capped(info):
    infos = [info(cost=cost) for cost in (0, 1.0, 100.0, -5.0)]
    assert values(parts.Cost(scale=4.0, cap=2.0), *infos) == [-0.25, -2.0, 0.0]


def test_an_invalid_action_is_told_from_a_valid_one(info):
    infos = [info(action_valid=flag) for flag in (True, True, False)]
    assert values(parts.ActionValidity(valid=0.1, invalid=-1.0), *infos) == [0.1, -1.0]


def test_the_environment_scalar_is_its_reward_or_another_key(info):
    assert values(parts.EnvScalar(), info(), info(env_reward=3.0)) == [3.0]
    assert values(parts.EnvScalar(key="profit", high=2.0), info(), info(profit=3.0)) == [2.0]


@pytest.mark.parametrize(
    ("on", "expected"), [("terminated", [0, 1, 0, 1]), ("truncated", [0, 0, 1, 1]), ("either", [0, 1, 1, 1])]
)
def test_completion_tells_termination_from_truncation(on, expected, info):
    ends = [(False, False), (True, False), (False, True), (True, True)]
    infos = [info(terminated=terminated, truncated=truncated) for terminated, truncated in ends]
    assert values(parts.EpisodeCompletion(on=on), info(), *infos) == expected


def test_completion_may_ask_for_success(info):
    component = parts.EpisodeCompletion(key="success")
    assert component.requires() == ("terminated", "success")
    infos = [info(terminated=True, success=success) for success in (False, True)]
    assert values(component, info(), *infos) == [0, 1]


def test_exploration_fades_with_visits_and_returns_in_a_new_episode(info):
    component = parts.Exploration(width=1.0)
    here, there = info(obs=np.array([0.2, 0.2])), info(obs=np.array([5.0, 0.2]))
    assert values(component, here, here, there, here, there) == pytest.approx([2**-0.5, 1.0, 3**-0.5, 2**-0.5])
    assert values(component, there, here) == [1.0]


def test_exploration_tells_cells_apart():
    component = parts.Exploration(width=1.0, buckets=4096)
    grid = np.stack(np.meshgrid(np.arange(-8, 8), np.arange(-8, 8)), axis=-1).reshape(-1, 2) + 0.5
    flags = np.zeros(len(grid), bool)
    memory = component.start(np, {"obs": grid, "terminated": flags})
    assert len(set(memory.argmax(axis=-1).tolist())) > 230


@pytest.mark.parametrize(
    ("component", "fields", "message"),
    [
        (parts.LedgerDelta, {"scale": 0.0}, "scale is 0.0; give a positive number"),
        (parts.LedgerDelta, {"low": 1.0, "high": -1.0}, "low must be the lesser"),
        (parts.LedgerLevel, {"scale": -1.0}, "scale is -1.0"),
        (parts.Throughput, {"capacity": 0.0}, "capacity is 0.0"),
        (parts.FailureEvent, {"cap": float("inf")}, "cap is inf"),
        (parts.ServiceLevel, {"target": 0.0}, "target is 0.0"),
        (parts.Cost, {"cap": 0.0}, "cap is 0.0"),
        (parts.ActionValidity, {"valid": -1.0, "invalid": 0.0}, "low must be the lesser"),
        (parts.Constant, {"value": float("nan")}, "value is nan"),
        (parts.EnvScalar, {"low": 1.0, "high": 1.0}, "low must be the lesser"),
        (parts.Exploration, {"buckets": 100}, "buckets is 100; give a power of two"),
        (parts.Exploration, {"width": 0.0}, "width is 0.0"),
    ],
)
def test_fields_without_a_meaning_are_refused(component, fields, message):
    with pytest.raises(ConfigError, match=message):
        component(**fields)
