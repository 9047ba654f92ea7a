"""What an expert is: its two kinds, its units, and what is refused before anything runs."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.records import Spec
from perdure.rl import acting, experts
from perdure.rl.experts import PID
from perdure.worlds.pure.cartpole import CartPole
from perdure.worlds.pure.experts import CartPoleExpert, PendulumExpert
from perdure.worlds.pure.pendulum import Pendulum

VECTOR = Spec((3,), 2, discrete=False, low=(-1.0, 0.0), high=(1.0, 4.0))
INDEX = Spec((3,), 4, discrete=True)
MIXED = Spec((3,), 4, discrete=False, low=(-2.0, 0.0, -math.inf, 5.0), high=(6.0, math.inf, math.inf, 5.0))


@component
class Doer:
    """Does whatever `rule` does with the observations."""

    rule: Any

    def __call__(self, obs):
        return self.rule(obs)


@component
class Counter:
    """Counts its steps; each fault is one of those that a check must find."""

    fault: str = ""

    def init_state(self, n):
        return jnp.zeros(3 if self.fault == "copies" else n, jnp.int32)

    def __call__(self, state, obs):
        action = jnp.zeros((*obs.shape[:-1], 2)) + state[..., None]
        if self.fault == "bare":
            return action
        return action, state + (0.5 if self.fault == "type" else 1)


def test_a_stateful_expert_is_told_by_its_state():
    assert experts.is_stateful(PID())
    assert not experts.is_stateful(PendulumExpert())
    assert not experts.is_stateful(None)


def test_a_pid_controller_has_the_worked_outputs():
    controller = PID(1, 2.0, proportional=3.0, integral=0.5, derivative=0.1, time_step=0.5, integral_limit=1.2)
    state = controller.init_state(2)
    # Errors 2 - obs: 1 then 0.5 then -1; their integral 0.5, 0.75, 0.25; slopes 0 (the first step), -1, -3.
    # The second copy's errors 4, 4, 4: the integral 2 is cut to 1.2, and slopes are 0.
    wanted = [3 + 0.25, 1.5 + 0.375 - 0.1, -3 + 0.125 - 0.3]
    for seen, output in zip((1.0, 1.5, 3.0), wanted, strict=True):
        action, state = controller(state, jnp.array([[9.0, seen], [9.0, -2.0]]))
        np.testing.assert_allclose(action, [[output], [12.6]], rtol=1e-6)
    np.testing.assert_allclose(state.integral, [0.25, 1.2], rtol=1e-6)


def test_a_pid_controller_stays_within_its_limit():
    action, _ = PID(proportional=10.0, limit=2.0)(PID().init_state(2), jnp.array([[1.0], [-0.1]]))
    np.testing.assert_allclose(action, [[-2.0], [1.0]], rtol=1e-6)


def test_a_pid_controller_steers_a_body_without_friction_to_its_setpoint():
    controller = PID(setpoint=1.0, proportional=4.0, derivative=3.0, time_step=0.05)

    def step(carry, _):
        state, place, speed = carry
        action, state = controller(state, place[:, None])
        speed = speed + 0.05 * action[:, 0]
        return (state, place + 0.05 * speed, speed), None

    (_, place, _), _ = jax.lax.scan(step, (controller.init_state(2), jnp.array([0.0, 5.0]), jnp.zeros(2)), length=200)
    np.testing.assert_allclose(place, 1.0, atol=1e-3)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"index": -1}, "index is -1; it must be at least 0"),
        ({"time_step": 0.0}, "time_step is 0.0; it must be at least"),
        ({"limit": 0.0}, "limit is 0.0"),
        ({"integral_limit": -1.0}, "integral_limit is -1.0"),
        ({"derivative": math.inf}, "derivative is inf; it must be a finite number"),
    ],
)
def test_a_pid_controller_without_sense_is_refused(values, told):
    with pytest.raises(ConfigError, match=told):
        PID(**values)


def test_agent_units_have_the_worked_values():
    # [-2, 6] onto [-1, 1]; without both bounds the number, cut; equal bounds: nothing to choose.
    world = np.array([[6.0, 0.5, -0.3, 5.0], [0.0, 3.0, -7.0, 5.0], [-9.0, 0.0, 0.0, 5.0]], np.float32)
    wanted = [[1.0, 0.5, -0.3, 0.0], [-0.5, 1.0, -1.0, 0.0], [-1.0, 0.0, 0.0, 0.0]]
    np.testing.assert_allclose(experts.agent_units(MIXED, world), wanted, atol=1e-6)


def test_agent_units_and_execution_are_inverse():
    box = Spec((3,), 3, discrete=False, low=(-2.0, 1.0, -math.inf), high=(6.0, 1.5, math.inf))
    agent = jax.random.uniform(jax.random.key(0), (50, 3), minval=-1.0, maxval=1.0)
    np.testing.assert_allclose(experts.agent_units(box, acting.executed(box, agent)), agent, atol=1e-6)


def test_indices_are_the_same_in_both_units():
    index = jnp.array([0, 3], jnp.int32)
    assert experts.agent_units(INDEX, index) is index


@pytest.mark.parametrize(
    ("expert", "spec"),
    [
        (CartPoleExpert(), CartPole().spec),
        (PendulumExpert(), Pendulum().spec),
        (PID(index=2), Pendulum().spec),
        (Counter(), VECTOR),
        (Doer(lambda obs: obs.argmax(-1).astype(jnp.int32)), INDEX),
    ],
)
def test_an_expert_of_the_world_passes(expert, spec):
    experts.check(expert, spec, "expert")


@pytest.mark.parametrize(
    ("expert", "spec", "told"),
    [
        (7, INDEX, "algorithm.expert is 7, which cannot be called"),
        (Doer([]), INDEX, "algorithm.expert is not hashable"),
        (Doer(lambda obs: obs), VECTOR, r"gives float32\[3\] for .* shape \[3\]; give float32\[2\] \(actions in world"),
        (Doer(lambda obs: jnp.zeros(2)), VECTOR, r"gives float32\[2\] for .* \[2, 3, 3\]; give float32\[2,3,2\]"),
        (Doer(lambda obs: obs[..., 0] > 0), INDEX, r"gives bool\[\] .*; give int32\[\] \(indices"),
        (Doer(lambda obs: obs[..., 0]), INDEX, r"gives float32\[\] .*; give int32\[\]"),
        (Doer(lambda obs: (obs[..., :2], 0)), VECTOR, r"gives float32\[2\], int32\[\] for"),
        (Doer(lambda obs: obs @ jnp.zeros((4, 2))), VECTOR, r"raised TypeError: .* called with float32\[3\]; write it"),
        (Doer(lambda obs: np.sin(np.asarray(obs))), VECTOR, r"raised TracerArrayConversionError.* in jax.numpy"),
        (PID(index=3), Spec((3,), 1, False, (-1.0,), (1.0,)), "algorithm.expert: index is 3; an observation has 3"),
        (PID(), VECTOR, r"gives float32\[2,1\] .*; give float32\[2,2\]"),
        (Counter("copies"), VECTOR, r"init_state\(2\) has an array of shape \[3\]; give every array"),
        (Counter("bare"), VECTOR, r"must return \(action, state\), not float32\[2,2\]"),
        (Counter("type"), VECTOR, r"turns a state of int32\[2\] into float32\[2\]; keep"),
    ],
)
def test_an_expert_of_another_world_is_refused(expert, spec, told):
    with pytest.raises(ConfigError, match=told):
        experts.check(expert, spec, "algorithm.expert")


def test_both_kinds_are_asked_alike():
    obs = jnp.ones((2, 3))
    action, state = experts.ask(Counter(), experts.start(Counter(), 2), obs)
    action, state = experts.ask(Counter(), state, obs)
    np.testing.assert_array_equal(action, np.ones((2, 2)))
    np.testing.assert_array_equal(state, [2, 2])
    plain = Doer(lambda obs: obs[..., :2])
    action, state = experts.ask(plain, experts.start(plain, 2), obs)
    assert (action.shape, state) == ((2, 2), ())
