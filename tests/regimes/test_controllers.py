import gymnasium
import numpy as np
import pytest

from perdure.core.errors import ConfigError
from perdure.regimes.controllers import AttributeController, CapabilityController, controller_for


@pytest.fixture
def cartpole():
    env = gymnasium.make("CartPole-v1")
    yield env
    env.close()


def make(name):
    return gymnasium.make(name)


class Willing(gymnasium.Env):
    """Offers the capability and remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def set_regime(self, params):
        self.asked.append(params)


class Foreign(gymnasium.Env):
    """Somebody's environment with physics of its own."""

    friction = 0.5
    label = "x"
    frozen = True

    def __init__(self):
        self.wind = 1

    @property
    def power(self):
        raise RuntimeError("must not be read while names are listed")


def test_document_names_reach_the_attributes_and_the_derived_constants_follow(cartpole):
    AttributeController().apply(cartpole, {"cart_mass": 2.0, "pole_mass": 0.5, "pole_length": 3.0, "force": -10.0})
    bare = cartpole.unwrapped
    assert (bare.masscart, bare.masspole, bare.length, bare.force_mag) == (2.0, 0.5, 1.5, -10.0)
    assert bare.total_mass == 2.5
    assert bare.polemass_length == 0.75


def test_a_parameter_that_a_regime_does_not_name_goes_back(cartpole):
    controller = AttributeController()
    controller.apply(cartpole, {"pole_mass": 0.5, "gravity": 20.0})
    controller.apply(cartpole, {"gravity": 5.0})
    bare = cartpole.unwrapped
    assert (bare.gravity, bare.masspole, bare.total_mass) == (5.0, 0.1, 1.1)
    controller.apply(cartpole, None)
    assert (bare.gravity, bare.polemass_length) == (9.8, pytest.approx(0.05))


def test_what_a_factory_had_set_counts_as_the_world_as_it_comes(cartpole):
    cartpole.unwrapped.gravity = 3.0
    controller = AttributeController()
    controller.apply(cartpole, {"gravity": 20.0})
    controller.apply(cartpole, {})
    assert cartpole.unwrapped.gravity == 3.0


def test_the_state_is_kept_when_parameters_change(cartpole):
    cartpole.reset(seed=0)
    before = np.array(cartpole.unwrapped.state)
    AttributeController().apply(cartpole, {"gravity": 20.0})
    np.testing.assert_array_equal(before, cartpole.unwrapped.state)


def test_a_reversed_push_moves_the_cart_the_other_way(cartpole):
    def velocity(params):
        cartpole.reset(seed=0)
        AttributeController().apply(cartpole, params)
        return cartpole.step(1)[0][1]

    assert velocity({}) > 0 > velocity({"force": -10.0})


@pytest.mark.parametrize(
    ("world", "params", "attributes"),
    [
        ("Pendulum-v1", {"gravity": 5.0, "mass": 2.0, "length": 3.0}, {"g": 5.0, "m": 2.0, "l": 3.0}),
        (
            "Acrobot-v1",
            {"link_mass_2": 2.0, "link_com_1": 0.4, "torque": 2.0},
            {"LINK_MASS_2": 2.0, "LINK_COM_POS_1": 0.4, "AVAIL_TORQUE": [-2.0, 0.0, 2.0]},
        ),
        ("MountainCar-v0", {"force": 0.002, "gravity": 0.003}, {"force": 0.002, "gravity": 0.003}),
        ("MountainCarContinuous-v0", {"power": 0.002}, {"power": 0.002}),
    ],
)
def test_each_classic_world_has_its_document_names(world, params, attributes):
    env = make(world)
    AttributeController().apply(env, params)
    assert {name: getattr(env.unwrapped, name) for name in attributes} == attributes


def test_one_environment_does_not_change_another_of_its_class():
    first, second = make("Acrobot-v1"), make("Acrobot-v1")
    AttributeController().apply(first, {"link_mass_1": 3.0})
    assert second.unwrapped.LINK_MASS_1 == 1.0


@pytest.mark.parametrize(
    ("world", "params", "message"),
    [
        ("CartPole-v1", {"gravty": 1.0}, r"^segments\.params\.gravty is no attribute of CartPoleEnv; .*'gravity'"),
        ("CartPole-v1", {"total_mass": 1.0}, "worked out by CartPoleEnv from other constants"),
        ("CartPole-v1", {"force": 1.0, "force_mag": 2.0}, "sets 'force_mag', which another name sets too"),
        ("CartPole-v1", {"state": 1.0}, "state is a NoneType of CartPoleEnv, not a number"),
        ("CartPole-v1", {"isopen": 1.0}, "isopen is a bool"),
        ("CartPole-v1", {"step": 1.0}, "step is a method"),
        ("CartPole-v1", {"gravity": float("nan")}, "gravity is nan; give a finite number"),
        ("CartPole-v1", {"gravity": "high"}, "gravity is 'high'; give a finite number"),
        ("Acrobot-v1", {"gravity": 1.0}, "has 9.8 in its equations"),
        ("Acrobot-v1", {"link_length_2": 1.0}, "enters no equation"),
        ("MountainCarContinuous-v0", {"gravity": 1.0}, "has 0.0025 in its equations"),
    ],
)
def test_what_cannot_be_set_is_refused_with_its_place(world, params, message):
    with pytest.raises(ConfigError, match=message):
        AttributeController().check(make(world), params, "segments.params")


def test_a_refused_change_changes_nothing(cartpole):
    with pytest.raises(ConfigError):
        AttributeController().apply(cartpole, {"gravity": 20.0, "gravty": 20.0})
    assert cartpole.unwrapped.gravity == 9.8


def test_any_other_environment_is_addressed_by_its_own_numbers():
    env = Foreign()
    AttributeController().apply(env, {"friction": 0.9, "wind": 3.0})
    assert (env.friction, env.wind, Foreign.friction) == (0.9, 3.0, 0.5)
    with pytest.raises(ConfigError, match=r"params\.frction is no attribute of Foreign; did you mean 'friction'"):
        AttributeController().apply(env, {"frction": 0.9})
    with pytest.raises(ConfigError, match="label is a str of Foreign, not a number"):
        AttributeController().apply(env, {"label": 1.0})


def test_a_subclass_of_a_known_world_keeps_its_names(cartpole):
    class Longer(type(cartpole.unwrapped)):
        pass

    env = Longer()
    AttributeController().apply(env, {"pole_length": 4.0})
    assert (env.length, env.polemass_length) == (2.0, 0.2)


def test_an_environment_that_offers_it_is_asked_to_change_itself():
    env = Willing()
    controller = controller_for(gymnasium.Wrapper(env))
    assert isinstance(controller, CapabilityController)
    controller.apply(env, {"gravity": 2.0})
    controller.apply(env, None)
    assert env.asked == [{"gravity": 2.0}, {}]
    with pytest.raises(ConfigError, match=r"regime\.params\.gravity is nan"):
        controller.check(env, {"gravity": float("nan")}, "regime.params")


def test_any_other_environment_gets_its_attributes_set(cartpole):
    assert isinstance(controller_for(cartpole), AttributeController)
