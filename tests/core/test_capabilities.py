import gymnasium
import pytest

from perdure.core import capabilities
from perdure.core.errors import PerdureError


class Silent(gymnasium.Env):
    pass


class Describing(gymnasium.Env):
    def describe_run(self):
        return {"server": "local"}


class Adding(gymnasium.Wrapper):
    def set_regime(self, params):
        return params


class Double:
    """A stand-in that is no gymnasium.Env."""

    def describe_run(self):
        return {"double": True}


def test_a_capability_of_a_wrapper_in_the_middle_is_found():
    env = gymnasium.Wrapper(Adding(Silent()))
    assert capabilities.capability(env, "set_regime")({"g": 1.0}) == {"g": 1.0}


def test_a_capability_of_the_innermost_environment_is_found():
    env = gymnasium.Wrapper(Adding(Describing()))
    assert capabilities.describe_run(env) == {"server": "local"}


def test_a_wrapper_answers_before_what_it_wraps():
    class Overriding(gymnasium.Wrapper):
        def describe_run(self):
            return {"server": "wrapped"}

    assert capabilities.describe_run(Overriding(Describing())) == {"server": "wrapped"}


def test_absence_is_none_and_an_empty_description():
    env = gymnasium.Wrapper(Silent())
    assert capabilities.capability(env, "set_regime") is None
    assert capabilities.describe_run(env) == {}


def test_a_stand_in_is_asked_directly():
    assert capabilities.describe_run(Double()) == {"double": True}
    assert capabilities.capability(Double(), "set_regime") is None


def test_the_protocol_recognises_who_describes_runs():
    assert isinstance(Describing(), capabilities.DescribesRuns)
    assert not isinstance(Silent(), capabilities.DescribesRuns)


def test_a_description_that_is_no_mapping_is_refused():
    class Odd(gymnasium.Env):
        def describe_run(self):
            return "a server"

    with pytest.raises(PerdureError, match="'a server'; it must return a mapping"):
        capabilities.describe_run(Odd())


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, (None, False)),
        ({"regime": None}, (None, False)),
        ({"regime": "spike"}, ("spike", False)),
        ({"regime": {"id": "spike", "boundary": True}}, ("spike", True)),
        ({"regime": {"id": "spike"}}, ("spike", False)),
        ({"regime": {"boundary": True}}, (None, True)),
        ({"regime": {}}, (None, False)),
    ],
)
def test_every_form_of_a_regime_label_is_read(info, expected):
    assert capabilities.regime_from_info(info) == expected


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, None),
        ({"regime": "spike"}, None),
        ({"regime": {"id": "again"}}, None),
        ({"regime": {"id": "again", "origin": "a"}}, "a"),
    ],
)
def test_the_origin_is_read_where_there_is_one(info, expected):
    assert capabilities.regime_origin_from_info(info) == expected


@pytest.mark.parametrize("label", [3, ["a"], {"id": 3}])
def test_a_label_of_another_kind_is_refused_with_its_value(label):
    with pytest.raises(PerdureError, match=r'info\["regime"\]'):
        capabilities.regime_from_info({"regime": label})


def test_the_record_of_a_step_is_handed_over_as_it_is():
    record = {"events": []}
    assert capabilities.record_from_info({"trace": record}) is record
    assert capabilities.record_from_info({}) is None
