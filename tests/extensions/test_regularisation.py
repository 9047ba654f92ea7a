import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError
from perdure.extensions.regularisation import L2Init
from perdure.rl import fit
from perdure.rl.phases import Batch, Clock, Context

NOTHING = Batch(*[None] * 6)


def layers(*numbers):
    return [{"w": jnp.full((1, 1), number), "b": jnp.full(1, number / 2)} for number in numbers]


def begun(extension, params):
    ctx = Context(None, {"actor": None, "critic": None}, 1, Clock(*[jnp.int32(0)] * 3))
    state = fit.AgentState(params, {})
    return extension.init_state(state, jax.random.key(0), ctx), ctx


def test_the_penalty_is_the_squared_distance_from_the_start():
    start = {"actor": layers(1.0), "critic": layers(2.0, 0.0), "log_std": jnp.zeros(1)}
    extension = L2Init(strength=0.1)
    state, ctx = begun(extension, start)
    moved = {"actor": layers(3.0), "critic": layers(2.0, 4.0), "log_std": jnp.full(1, 9.0)}
    batch = NOTHING._replace(params=moved)
    # Weights move by 2 and biases by 1; 4 and 2. What is no network (log_std) is free.
    assert float(extension.actor_loss(None, state, batch, ctx)) == pytest.approx(0.1 * (4 + 1))
    assert float(extension.critic_loss(None, state, batch, ctx)) == pytest.approx(0.1 * (16 + 4))


def test_the_penalty_is_zero_at_the_start_and_pulls_back_from_elsewhere():
    start = {"critic": layers(1.0)}
    extension = L2Init(strength=0.5)
    ctx = Context(None, {"critic": None}, 1, Clock(*[jnp.int32(0)] * 3))
    state = extension.init_state(fit.AgentState(start, {}), jax.random.key(0), ctx)
    slope = jax.grad(lambda params: extension.critic_loss(None, state, NOTHING._replace(params=params), ctx))
    np.testing.assert_allclose(slope(start)["critic"][0]["w"], 0.0)
    np.testing.assert_allclose(slope({"critic": layers(4.0)})["critic"][0]["w"], 0.5 * 2 * 3.0)


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_a_strong_pull_keeps_a_trained_network_near_its_start(name, tiny):
    def distance(extensions):
        made = tiny.made(name, extensions)
        start = tiny.host(made.init(tiny.SEEDS).train.seeds.agent.params)
        end = tiny.host(tiny.train(made, 192)[0].train.seeds.agent.params)
        return sum(np.square(start[path] - end[path]).sum() for path in start if "/" in path)

    assert distance((L2Init(strength=30.0),)) < 0.5 * distance(())


def test_a_negative_strength_is_refused():
    with pytest.raises(ConfigError, match=r"strength is -0\.1"):
        L2Init(strength=-0.1)
