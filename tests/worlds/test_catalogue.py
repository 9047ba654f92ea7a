import pytest

from perdure.core import registry
from perdure.core.errors import ConfigError, UnknownName
from perdure.worlds import catalogue
from perdure.worlds.pure.cartpole import CartPole


def test_every_registered_world_is_built_and_described():
    for name in registry.names("worlds"):
        world = catalogue.pure(name)
        assert world.spec.horizon >= 1


def test_fields_come_from_the_document():
    assert catalogue.pure("perdure/cartpole", {"horizon": 9}) == CartPole(horizon=9)


def test_a_misspelt_field_names_the_path_and_the_nearest_one():
    with pytest.raises(ConfigError, match=r"environment.kwargs.horizn .*'horizon'"):
        catalogue.pure("perdure/cartpole", {"horizn": 9})


def test_an_id_that_is_no_pure_world_is_refused():
    assert not catalogue.is_pure("CartPole-v1")
    with pytest.raises(UnknownName, match=r"environment.id is 'CartPole-v1', which is no pure world"):
        catalogue.pure("CartPole-v1")


def test_gymnax_ids_are_pure_worlds():
    assert catalogue.is_pure("gymnax/CartPole-v1")
