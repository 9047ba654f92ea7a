import dataclasses

import pytest

from perdure.core.component import component, make
from perdure.core.errors import ConfigError


@component
class Store:
    capacity: int = 10


@component
class Agent:
    rate: float
    store: Store = Store()
    hidden: tuple[int, ...] = (64, 64)


def test_a_component_is_a_frozen_hashable_value():
    assert hash(Agent(0.1)) == hash(Agent(0.1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Agent(0.1).rate = 0.2


def test_make_builds_nested_components_from_plain_values():
    made = make(Agent, {"rate": 1, "store": {"capacity": 3}, "hidden": [8]}, "algorithm.kwargs")
    assert made == Agent(1.0, Store(3), (8,))


def test_a_misspelt_key_is_named_with_its_place_and_the_nearest_one():
    with pytest.raises(ConfigError, match=r"^algorithm\.kwargs\.hiden is not a key here; did you mean 'hidden'\?$"):
        make(Agent, {"rate": 0.1, "hiden": [8]}, "algorithm.kwargs")


def test_a_misspelt_nested_key_is_named_with_its_path_and_the_nearest_one():
    with pytest.raises(ConfigError, match=r"^algorithm\.kwargs\.store\.capacty is not .*'capacity'\?$"):
        make(Agent, {"rate": 0.1, "store": {"capacty": 3}}, "algorithm.kwargs")


def test_a_missing_key_is_named():
    with pytest.raises(ConfigError, match=r"^algorithm\.kwargs\.rate is missing"):
        make(Agent, {}, "algorithm.kwargs")


def test_a_wrong_type_is_named_with_its_value():
    with pytest.raises(ConfigError, match=r"^algorithm\.kwargs\.store\.capacity is 'many'"):
        make(Agent, {"rate": 0.1, "store": {"capacity": "many"}}, "algorithm.kwargs")


def test_a_plain_dataclass_without_the_decorator_would_not_refuse_a_misspelt_key():
    # The reason why the decorator exists: this must go on failing to be refused for it to be needed.
    plain = dataclasses.make_dataclass("Plain", [("capacity", int, 1)])
    assert make(plain, {"capacty": 3}, "x").capacity == 1
