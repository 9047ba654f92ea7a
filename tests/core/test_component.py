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


def test_a_class_without_the_decorator_is_refused_since_it_would_take_any_key():
    plain = dataclasses.make_dataclass("Plain", [("capacity", int, 1)])
    for cls in (plain, object, type("Heir", (Store,), {})):
        with pytest.raises(ConfigError, match=r"^x: .* is no component; decorate it"):
            make(cls, {"capacty": 3}, "x")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"rate": "0.1"}, "x.rate is '0.1'; it must be a number"),
        ({"rate": True}, "x.rate is True; it must be a number"),
        ({"rate": 0.1, "hidden": ["8"]}, "x.hidden[0] is '8'; it must be a whole number"),
        ({"rate": 0.1, "hidden": [8.5]}, "x.hidden[0] is 8.5; it must be a whole number"),
        ({"rate": 0.1, "hidden": 8}, "x.hidden is 8; it must be a list"),
        ({"rate": 0.1, "store": {"capacity": False}}, "x.store.capacity is False; it must be a whole number"),
        ({"rate": 0.1, "store": 3}, "x.store is 3; it must be a mapping of keys to values"),
    ],
)
def test_a_value_of_another_kind_is_never_turned_into_a_number(values, says):
    with pytest.raises(ConfigError) as caught:
        make(Agent, values, "x")
    assert str(caught.value) == says


@component
class Disk:
    path: str
    kind: str = "disk"


@component
class Cache:
    size: int = 1
    share: float = 0.5


@component
class Either:
    store: Cache | Disk = Cache()


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ({"size": "x"}, "x.store.size is 'x'; it must be a whole number"),
        ({"siz": 3}, "x.store.siz is not a key here; did you mean 'size'?"),
        ({"path": "p", "knd": "k"}, "x.store.knd is not a key here; did you mean 'kind'?"),
    ],
)
def test_a_union_is_told_of_by_the_member_that_was_meant(store, says):
    with pytest.raises(ConfigError) as caught:
        make(Either, {"store": store}, "x")
    assert str(caught.value) == says
