import pytest

from perdure.core import registry
from perdure.core.errors import PerdureError, UnknownName


@pytest.fixture
def own_tables(monkeypatch):
    """Tables that a test may add to without changing those of other tests."""
    monkeypatch.setattr(registry, "_TABLES", {family: dict(table) for family, table in registry._TABLES.items()})


@pytest.mark.usefixtures("own_tables")
def test_a_registered_name_resolves_to_its_target():
    registry.register("rewards", "ordered", "collections:OrderedDict")
    assert registry.resolve("rewards", "ordered").__name__ == "OrderedDict"


@pytest.mark.usefixtures("own_tables")
def test_a_name_that_is_taken_is_refused_with_its_owner():
    with pytest.raises(
        PerdureError, match=r"'constant' is already registered as perdure\.rewards\.components:Constant"
    ):
        registry.register("rewards", "constant", "collections:OrderedDict")


@pytest.mark.usefixtures("own_tables")
@pytest.mark.parametrize("target", ["collections", "collections:", ":OrderedDict"])
def test_a_target_that_is_no_module_and_attribute_is_refused(target):
    with pytest.raises(PerdureError, match=r"package\.module:Attribute"):
        registry.register("rewards", "odd", target)


def test_an_unknown_name_is_refused_with_its_place_and_the_nearest_one():
    with pytest.raises(UnknownName, match=r"^regime\.provider is 'schedul', .*did you mean 'schedule'\?$"):
        registry.check("regimes", "schedul", "regime.provider")


def test_an_unknown_family_is_refused_with_the_nearest_one():
    with pytest.raises(UnknownName, match="did you mean 'rewards'"):
        registry.names("reward")


def test_a_module_that_cannot_be_imported_is_named_with_the_place():
    with pytest.raises(UnknownName, match=r"^environment\.id: cannot import 'no_such_module'"):
        registry.load("no_such_module:Thing", "environment.id")


def test_a_missing_attribute_is_named_with_the_nearest_one():
    with pytest.raises(UnknownName, match=r"has no 'OrderdDict'; did you mean 'OrderedDict'\?"):
        registry.load("collections:OrderdDict", "environment.id")


@pytest.mark.parametrize("family", ["regimes", "rewards", "detectors"])
def test_every_name_of_the_family_resolves(family):
    for name in registry.names(family):
        assert isinstance(registry.resolve(family, name), type), name


def test_plug_ins_are_listed_without_being_imported(monkeypatch):
    entry = type("Entry", (), {"name": "foreign", "value": "not_installed.module:Thing"})
    monkeypatch.setattr(registry.metadata, "entry_points", lambda group: [entry] if group == "perdure.agents" else [])
    registry._plugins.cache_clear()
    try:
        assert registry.names("agents")["foreign"] == "not_installed.module:Thing"
        with pytest.raises(UnknownName, match=r"cannot import 'not_installed\.module'"):
            registry.resolve("agents", "foreign")
    finally:
        registry._plugins.cache_clear()
