"""The demonstration's document: regimes that really conflict."""

from importlib import resources

import jax
import jax.numpy as jnp
import pytest

from perdure.harness import load, sweep
from perdure.worlds.pure.cartpole import CartPole

BALANCE = jnp.array([0.0, 0.0, 1.0, 1.0])
"""Push towards the side to which the pole leans and falls."""


@pytest.fixture(scope="module")
def groups():
    with resources.as_file(resources.files("perdure") / "documents" / "demo.yaml") as path:
        return sweep.plan(load.sweep(path, ()))


def mean_return(params, sign=1.0, episodes=32):
    world = CartPole()
    task = world.task(**(params or {}))

    def episode(key):
        state, obs = world.reset(key, task)

        def step(carry, _):
            state, obs, alive, total = carry
            action = (sign * (BALANCE @ obs) > 0).astype(jnp.int32)
            state, obs, reward, terminated, truncated = world.step(key, state, action, task)
            return (state, obs, alive & ~(terminated | truncated), total + reward * alive), None

        (_, _, _, total), _ = jax.lax.scan(step, (state, obs, True, 0.0), length=world.horizon)
        return total

    return float(jax.vmap(episode)(jax.random.split(jax.random.key(0), episodes)).mean())


def test_the_demo_has_three_arms_of_four_seeds_and_comes_back_to_its_first_regime(groups):
    assert [group.config.algorithm_id for group in groups] == ["ppo", "ppo_l2_init", "ppo_redo"]
    assert all(len(group.config.run.seeds) == 4 for group in groups)
    segments = groups[0].config.schedule().segments
    assert segments[-1].origin == segments[0].id


def test_a_policy_above_300_in_one_regime_of_the_demo_is_below_50_in_another(groups):
    params = {segment.id: segment.params for segment in groups[0].config.schedule().segments}
    earth, reversed_push = params["earth"], params["reversed"]
    assert mean_return(earth) > 300
    assert mean_return(reversed_push) < 50
    assert mean_return(reversed_push, sign=-1.0) > 300
    assert mean_return(earth, sign=-1.0) < 50


def test_the_language_demo_has_three_arms_of_two_seeds_and_comes_back_to_its_first_rule():
    with resources.as_file(resources.files("perdure") / "documents" / "demo_language.yaml") as path:
        groups = sweep.plan(load.sweep(path, ()))
    assert [group.config.algorithm.name for group in groups] == ["lm/ppo", "lm/ewc", "lm/grpo"]
    assert all(len(group.config.run.seeds) == 2 for group in groups)
    segments = groups[0].config.schedule().segments
    assert segments[-1].origin == segments[0].id


def test_the_language_demo_teaches_every_rule_that_its_arms_meet():
    from perdure.pipeline import Pipeline

    with resources.as_file(resources.files("perdure") / "documents" / "demo_language_start.yaml") as path:
        start = Pipeline.read(path)
    with resources.as_file(resources.files("perdure") / "documents" / "demo_language.yaml") as path:
        arms = sweep.plan(load.sweep(path, ()))[0].config.schedule()
    met = {segment.id: segment.params for segment in arms.segments if segment.origin == segment.id}
    assert {regime.id: regime.params for regime in start.regimes()} == met
