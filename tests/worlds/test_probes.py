import jax
import jax.numpy as jnp
import pytest

from perdure.core import registry
from perdure.worlds import probes, rollouts

KEY = jax.random.key(0)
DISCOUNT = 0.9


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("scale", [1.0, -2.0])
@pytest.mark.parametrize("name", probes.ladder())
def test_the_answers_are_what_the_best_actions_earn(name, scale, continuous):
    world = probes.ladder(continuous)[name]
    answers = world.answers(DISCOUNT, scale)
    actions = answers.actions or (0.0,) * len(answers.observations)

    def act(key, observation):
        match = jnp.argmin(jnp.abs(jnp.array(answers.observations) - observation[0]))
        action = jnp.array(actions)[match]
        return action[None] if continuous else action.astype(jnp.int32)

    for observation, value in zip(answers.observations, answers.values, strict=True):
        assert _value_from(world, act, observation, scale) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("name", ["perdure/probe_action", "perdure/probe_policy"])
@pytest.mark.parametrize("scale", [1.0, -2.0])
def test_no_continuous_action_beats_the_answer(name, scale):
    world = probes.ladder(continuous=True)[name]
    answers = world.answers(DISCOUNT, scale)
    for observation, value in zip(answers.observations, answers.values, strict=True):
        for number in jnp.linspace(-1.0, 1.0, 9):
            assert _value_from(world, lambda key, seen, n=number: n[None], observation, scale) <= value + 1e-6


@pytest.mark.parametrize("name", ["perdure/probe_action", "perdure/probe_policy"])
def test_action_values_are_the_rewards_of_the_actions(name):
    world = probes.ladder()[name]
    answers = world.answers(DISCOUNT)
    for observation, row in zip(answers.observations, answers.action_values, strict=True):
        for action, value in enumerate(row):
            assert _value_from(world, lambda key, seen, a=action: jnp.int32(a), observation, 1.0) == pytest.approx(
                value
            )


@pytest.mark.parametrize("name", probes.ladder())
def test_every_observation_that_occurs_has_an_answer(name):
    world = probes.ladder()[name]
    rollout = rollouts.run(world, world.task(), rollouts.random_act(world.spec), KEY, 20, 8)
    assert set(rollout.observation.ravel().tolist()) <= set(world.answers().observations)


def test_the_ladder_has_the_registered_names():
    registered = {name for name in registry.names("worlds") if name.startswith("perdure/probe_")}
    assert set(probes.ladder()) == registered
    assert all(type(world) is registry.resolve("worlds", name) for name, world in probes.ladder().items())


def _value_from(world, act, observation, scale):
    """Discounted return from the first time that `observation` is seen, or reached."""
    task = world.task(scale=scale)
    for seed in range(50):
        state, seen = world.reset(jax.random.key(seed), task)
        if float(seen[0]) == observation:
            return _discounted(world, act, state, seen, task)
        if world.answers().observations == (0.0, 1.0):
            state, seen, *_ = world.step(KEY, state, act(KEY, seen), task)
            return _discounted(world, act, state, seen, task)
    raise AssertionError(f"{world} never showed {observation}")


def _discounted(world, act, state, seen, task):
    total, weight, terminated = 0.0, 1.0, False
    while not terminated:
        state, seen, reward, terminated, _ = world.step(KEY, state, act(KEY, seen), task)
        total, weight = total + weight * float(reward), weight * DISCOUNT
    return total
