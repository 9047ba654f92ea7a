import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from perdure.core.errors import ConfigError, MissingExtra, PerdureError, Refused, RunFailed, UnknownName
from perdure.worlds.adapters.gymnasium import decode_action, encode_observation, make, spec_of
from perdure.worlds.conformance import HostConformance

HERE = "tests_worlds_factories"


class Plain(gymnasium.Env):
    """Any spaces, no limit; observations are whatever the space samples."""

    def __init__(self, seen=None, acts=None, persistent=False):
        self.observation_space = spaces.Box(-1, 1, (2, 3)) if seen is None else seen
        self.action_space = spaces.Discrete(3) if acts is None else acts
        if persistent:
            self.persistent = True


@pytest.fixture
def factories(monkeypatch):
    """An importable module with factories in it."""
    import sys
    import types

    module = types.ModuleType(HERE)
    module.plain = Plain
    module.number = lambda: 3
    module.refusing = _refuse
    module.failing = _fail
    module.lacking = _lack
    monkeypatch.setitem(sys.modules, HERE, module)


class TestGymnasiumsCartPole(HostConformance):
    def make(self):
        return make("CartPole-v1")


def test_a_gymnasium_id_is_built_with_its_arguments():
    env = make("Pendulum-v1", {"g": 3.0})
    assert env.unwrapped.g == 3.0
    assert spec_of(env) == ((3,), 1, False, (-2.0,), (2.0,), 200, True)


def test_a_factory_is_built_with_its_arguments(factories):
    env = make(f"{HERE}:plain", {"persistent": True})
    assert isinstance(env, Plain)
    assert spec_of(env).episodic is False


def test_a_pure_worlds_id_gives_its_face():
    assert spec_of(make("perdure/cartpole", {"horizon": 7})).horizon == 7


def test_an_unknown_id_names_the_place_and_the_nearest_one():
    with pytest.raises(UnknownName, match=r"environment.id is 'CartPol-v1'.*did you mean 'CartPole-v1'\?"):
        make("CartPol-v1")
    with pytest.raises(UnknownName, match=r"did you mean 'perdure/cartpole'\?"):
        make("perdure/cartpol")


def test_an_id_that_is_near_to_nothing_says_where_to_look():
    with pytest.raises(UnknownName, match="perdure list worlds"):
        make("Zzzzz/Qqqqq-v77")


def test_an_environment_whose_library_is_missing_says_what_to_install(factories):
    with pytest.raises(MissingExtra, match=r"environment.id: .*:lacking'.*pip install gymnasium\[box2d\]"):
        make(f"{HERE}:lacking")


def test_a_module_that_is_missing_is_named():
    with pytest.raises(MissingExtra, match="no_such_module"):
        make("no_such_module:Thing-v1")
    with pytest.raises(UnknownName, match="no_such_module"):
        make("no_such_module:factory")


def test_a_factory_that_is_missing_names_the_nearest_one(factories):
    with pytest.raises(UnknownName, match=r"did you mean 'plain'\?"):
        make(f"{HERE}:plane")


def test_a_factory_that_raises_is_told_with_its_reason(factories):
    with pytest.raises(ConfigError, match=r"environment.id: .*failing' raised RuntimeError: no licence"):
        make(f"{HERE}:failing")


def test_a_factory_that_refuses_by_itself_keeps_its_words(factories):
    with pytest.raises(Refused, match=r"^not on a Sunday$"):
        make(f"{HERE}:refusing")


def test_wrong_arguments_name_the_section_to_check(factories):
    with pytest.raises(ConfigError, match=r"unexpected keyword argument 'wrong'; check environment.kwargs"):
        make(f"{HERE}:plain", {"wrong": 1})
    with pytest.raises(ConfigError, match=r"'wrong'.*environment.kwargs"):
        make("Pendulum-v1", {"wrong": 1})


def test_something_that_is_no_environment_is_refused(factories):
    with pytest.raises(ConfigError, match="made a int"):
        make(f"{HERE}:number")


def test_observations_and_actions_are_read_flat():
    spec = spec_of(Plain(acts=spaces.Box(np.float32([[-1, 0]]), np.float32([[1, 5]]))))
    assert (spec.obs_shape, spec.action_dim, spec.discrete) == ((6,), 2, False)
    assert (spec.low, spec.high, spec.horizon) == ((-1.0, 0.0), (1.0, 5.0), 1000)


@pytest.mark.parametrize(
    "space", [spaces.Dict({"a": spaces.Discrete(2)}), spaces.MultiDiscrete([2, 3]), spaces.Text(5)], ids=type
)
def test_other_spaces_are_refused_by_name(space):
    with pytest.raises(Refused, match=f"observation space {type(space).__name__}"):
        spec_of(Plain(seen=space))
    with pytest.raises(Refused, match=f"action space {type(space).__name__}"):
        spec_of(Plain(acts=space))


def test_a_discrete_observation_is_one_hot():
    space = spaces.Discrete(4, start=10)
    assert spec_of(Plain(seen=space)).obs_shape == (4,)
    assert encode_observation(space, np.int64(12)).tolist() == [0, 0, 1, 0]
    with pytest.raises(RunFailed, match="the observation at step 9 is 14"):
        encode_observation(space, 14, step=9)


def test_a_box_observation_is_a_float32_vector():
    seen = encode_observation(spaces.Box(0, 255, (2, 2), np.uint8), np.array([[1, 2], [3, 255]], np.uint8))
    assert (seen.dtype, seen.tolist()) == (np.float32, [1.0, 2.0, 3.0, 255.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_observation_that_is_not_finite_names_the_step(bad):
    with pytest.raises(RunFailed, match=f"at step 41 is not finite .number 1 is {bad}"):
        encode_observation(spaces.Box(-9, 9, (3,)), [0.0, bad, 1.0], step=41)


def test_an_observation_of_another_shape_is_refused():
    with pytest.raises(PerdureError, match=r"shape \(2,\), its space \(3,\)"):
        encode_observation(spaces.Box(-9, 9, (3,)), [0.0, 1.0])


def test_actions_are_put_into_the_form_that_the_environment_takes():
    assert decode_action(spaces.Discrete(3, start=5), np.int32(2)) == 7
    box = spaces.Box(-2.0, 2.0, (1, 2))
    assert decode_action(box, np.array([0.5, 9.0])).tolist() == [[0.5, 2.0]]


def _refuse():
    raise Refused("not on a Sunday")


def _fail():
    raise RuntimeError("no licence")


def _lack():
    raise gymnasium.error.DependencyNotInstalled("Box2D is not installed, run pip install gymnasium[box2d]")
