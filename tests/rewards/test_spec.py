import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError, UnknownName
from perdure.rewards.spec import RewardSpec

SECTION = {
    "components": [
        {"name": "ledger_level", "weight": 0.25},
        {"name": "throughput", "weight": 0.25, "params": {"capacity": 4}},
        {"name": "failure_event", "weight": 0.5},
        {"name": "exploration", "weight": 0.01},
        {"name": "episode_completion", "weight": 2.0},
    ],
    "regime_overrides": {"pressure": {"throughput": 0.0, "ledger_level": 0.5}},
}


@pytest.fixture
def spec():
    return RewardSpec.from_document(SECTION)


def full(info, **values):
    return info(**{"ledger": {"net": 0.0}, "throughput": 2.0, "failures": 0.0, **values})


def test_a_reward_is_the_weighted_sum_of_its_components(spec, info):
    memory = spec.start(np, full(info))
    found = spec.step(np, memory, 0, full(info, failures=1.0, obs=np.ones(2)), spec.weights())
    assert found.raw == {
        "ledger_level": 0.5,
        "throughput": 0.5,
        "failure_event": -1.0,
        "exploration": 1.0,
        "episode_completion": 0.0,
    }
    assert found.contributions["throughput"] == 0.125
    assert found.reward == pytest.approx(0.125 + 0.125 - 0.5 + 0.01)
    assert sum(found.contributions.values()) == pytest.approx(found.reward)


@pytest.mark.parametrize(("terminated", "truncated", "bonus"), [(False, False, 0), (True, False, 2), (True, True, 2)])
def test_an_episode_term_fires_only_where_the_episode_ends(spec, info, terminated, truncated, bonus):
    step = full(info, terminated=terminated, truncated=truncated)
    found = spec.step(np, spec.start(np, full(info)), 0, step, spec.weights())
    assert found.contributions["episode_completion"] == bonus


def test_a_verdict_of_episode_scope_waits_for_the_end(info):
    spec = RewardSpec.from_document({"components": [{"name": "verifier_pass", "params": {"scope": "episode"}}]})
    rewards = [
        float(spec.step(np, ((),), 0, info(verifier_pass=True, truncated=truncated), spec.weights()).reward)
        for truncated in (False, True)
    ]
    assert rewards == [0.0, 1.0]


def test_weights_follow_the_regime_and_its_origin(spec):
    assert spec.weights() == (0.25, 0.25, 0.5, 0.01, 2.0)
    assert spec.weights("pressure") == (0.5, 0.0, 0.5, 0.01, 2.0)
    assert spec.weights("pressure_again", origin="pressure") == spec.weights("pressure")
    assert spec.weights("other") == spec.weights()


def test_bounds_are_what_can_be_earned_on_every_step(spec):
    assert spec.bounds() == (-0.5, 0.5)
    assert spec.bounds("pressure") == (-0.5, 0.5)


def test_a_negative_weight_turns_the_bounds_round():
    spec = RewardSpec.from_document({"components": [{"name": "throughput", "weight": -2.0}]})
    assert spec.bounds() == (-2.0, 0.0)


def test_an_unknown_bound_stays_unknown_unless_the_clip_gives_one():
    section = {"components": [{"name": "env_scalar", "params": {"low": 0.0}}, {"name": "throughput"}]}
    assert RewardSpec.from_document(section).bounds() == (0.0, None)
    assert RewardSpec.from_document({**section, "clip": [-1, 3]}).bounds() == (0.0, 3.0)


def test_the_clip_holds_the_reward_and_not_the_contributions(info):
    spec = RewardSpec.from_document({"components": [{"name": "env_scalar", "weight": 2.0}], "clip": [-1, 1]})
    found = spec.step(np, ((),), 0, info(env_reward=5.0), spec.weights())
    assert found.reward == 1.0
    assert found.contributions == {"env_scalar": 10.0}


def test_one_component_may_stand_twice_under_labels(info):
    spec = RewardSpec.from_document(
        {
            "components": [
                {"name": "cost", "label": "fuel", "params": {"key": "fuel"}},
                {"name": "cost", "label": "time", "params": {"key": "time"}, "weight": 0.5},
            ],
            "regime_overrides": {"hurry": {"time": 2.0}},
        }
    )
    found = spec.step(np, ((), ()), 0, info(fuel=0.25, time=0.5), spec.weights("hurry"))
    assert found.contributions == {"fuel": -0.25, "time": -1.0}


def test_a_compiled_loop_gives_the_rewards_of_the_host(spec):
    steps = 40
    generator = np.random.default_rng(0)
    infos = {
        "obs": generator.normal(size=(steps, 3, 2)).astype(np.float32),
        "env_reward": np.zeros((steps, 3)),
        "terminated": generator.random((steps, 3)) < 0.2,
        "truncated": generator.random((steps, 3)) < 0.2,
        "ledger": {"net": generator.normal(size=(steps, 3))},
        "throughput": generator.random((steps, 3)) * 6,
        "failures": generator.integers(0, 2, (steps, 3)),
    }
    weights = generator.random((steps, len(spec.terms)))

    def at(step):
        return jax.tree.map(lambda values: values[step], infos)

    def body(memory, inputs):
        info, own = inputs
        found = spec.step(jnp, memory, None, info, own)
        return found.memory, (found.reward, found.contributions)

    start = spec.start(jnp, at(0))
    _, (rewards, contributions) = jax.jit(lambda: jax.lax.scan(body, start, (infos, weights)))()
    memory = spec.start(np, at(0))
    for step in range(steps):
        found = spec.step(np, memory, None, at(step), weights[step])
        memory = found.memory
        np.testing.assert_allclose(found.reward, rewards[step], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.contributions["exploration"], contributions["exploration"][step], rtol=1e-4)


@pytest.mark.parametrize("section", [None, {}, {"components": []}])
def test_a_section_without_a_specification_is_refused(section):
    with pytest.raises(ConfigError, match=r"^reward names no components; list some, or remove the section"):
        RewardSpec.from_document(section)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"components": [{"name": "trougput"}]},
            r"reward\.components\[0\]\.name is 'trougput'.*did you mean 'throughput'",
        ),
        ({"components": [{"name": "throughput", "weigth": 1}]}, r"reward\.components\[0\]\.weigth is not a key here"),
        (
            {"components": [{"name": "throughput", "params": {"capasity": 1}}]},
            r"reward\.components\[0\]\.params\.capasity is not a key here; did you mean 'capacity'",
        ),
        ({"components": [{"name": "throughput", "weight": "much"}]}, r"reward\.components\[0\]\.weight is 'much'"),
        ({"components": [{"name": "cost"}, {"name": "cost"}]}, r"reward\.components\[1\] is a second 'cost'"),
        ({"components": [{"name": "cost"}], "clip": [1, -1]}, r"reward\.clip is \[1\.0, -1\.0\]"),
        ({"components": [{"name": "cost"}], "clip": [1]}, r"reward\.clip"),
        (
            {"components": [{"name": "cost"}], "regime_overrides": {"z": {"csot": 1}}},
            r"reward\.regime_overrides\.z\.csot is no component of this reward; did you mean 'cost'",
        ),
        ({"components": [{"name": "expression", "params": {"text": "x.y"}}]}, "Attribute is not allowed"),
    ],
)
def test_a_mistake_in_a_section_is_named_with_its_place(section, message):
    with pytest.raises(ConfigError, match=message):
        RewardSpec.from_document(section)


def test_an_unknown_component_is_an_unknown_name():
    with pytest.raises(UnknownName):
        RewardSpec.from_document({"components": [{"name": "nothing_like_it"}]})


@pytest.mark.parametrize(
    "components",
    [
        [{"name": "constant"}],
        [{"name": "constant"}, {"name": "throughput", "weight": 0}],
    ],
)
def test_a_reward_that_reads_nothing_is_refused(components):
    with pytest.raises(ConfigError, match="reads nothing from its environment"):
        RewardSpec.from_document({"components": components})


def test_a_component_that_only_one_regime_weighs_is_enough():
    section = {"components": [{"name": "throughput", "weight": 0}], "regime_overrides": {"z": {"throughput": 1}}}
    assert RewardSpec.from_document(section).weights("z") == (1.0,)


def test_a_missing_key_is_refused_at_build_with_the_component_and_what_exists(spec):
    with pytest.raises(
        ConfigError, match=r"^reward: component throughput \(Throughput\) reads info key 'throughput'"
    ) as caught:
        spec.check({"ledger.net", "failures"})
    assert "it has: env_reward, failures, ledger.net, obs, terminated, truncated" in str(caught.value)
    spec.check({"ledger.net", "failures", "throughput"})


def test_a_component_that_gives_more_than_a_number_is_named():
    section = {"components": [{"name": "expression", "label": "seen", "params": {"text": "2 * obs"}}]}
    spec = RewardSpec.from_document(section)
    info = {"obs": np.ones(4), "env_reward": 1.0, "terminated": False, "truncated": False}
    with pytest.raises(ConfigError, match=r"component seen gives values of shape \[4\], not \[\]"):
        spec.step(np, spec.start(np, info), 0, info, spec.weights())
