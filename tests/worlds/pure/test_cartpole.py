import jax
import jax.numpy as jnp

from perdure.worlds import rollouts
from perdure.worlds.pure.cartpole import CartPole

WORLD = CartPole()


def lean_into_the_fall(key, observation):
    """Push the way the pole tips; the cart's place and speed weigh less."""
    return (observation @ jnp.array([0.5, 1.0, 10.0, 2.0]) > 0).astype(jnp.int32)


def test_a_good_policy_is_a_bad_one_once_the_push_is_reversed():
    normal, reversed_push = (_mean_return(lean_into_the_fall, **params) for params in ({}, {"force": -10.0}))
    assert normal > 300
    assert reversed_push < 50


def test_the_reversed_policy_is_as_good_where_the_push_is_reversed():
    def mirrored(key, observation):
        return 1 - lean_into_the_fall(key, observation)

    assert _mean_return(mirrored, force=-10.0) > 300
    assert _mean_return(mirrored) < 50


def test_the_low_bound_is_what_random_actions_score():
    low, _ = WORLD.bounds(WORLD.task())
    assert abs(_mean_return(rollouts.random_act(WORLD.spec)) - low) < 1.0


def _mean_return(act, **params):
    return rollouts.returns(rollouts.run(WORLD, WORLD.task(**params), act, jax.random.key(0), 1000, 64)).mean()
