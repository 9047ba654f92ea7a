"""docs/concierge.md: its tables say what the data say, and its vendor works."""

import re
from pathlib import Path

import pytest
import yaml

from perdure.worlds.concierge import judge, patches, schema, settings, telling
from perdure.worlds.concierge.world import PROFILES, Concierge

PAGE = (Path(__file__).parents[3] / "docs" / "concierge.md").read_text(encoding="utf-8")


def block(language, beginning):
    return next(text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if text.startswith(beginning))


def test_the_table_of_tools_is_that_of_the_data(data):
    for domain in data.domains:
        contract = data.contract(domain, 1)
        for tool in contract.tools.values():
            said = telling.signature(tool, contract).partition("(")[2][:-1].replace("|", "/")
            assert f"| `{tool.name}` | `{said}` | {tool.description} |" in PAGE


def test_the_table_of_patterns_is_that_of_the_data(data):
    rows = re.findall(r"^\| `([a-z]+\.[a-z0-9_]+)` \| (\d)-(\d) \| (\w+) \| (.+) \| ([a-z ]+) \|$", PAGE, re.MULTILINE)
    found = {row[0]: row[1:] for row in rows}
    assert found.keys() == data.patterns.keys()
    for pattern in data.patterns.values():
        group = pattern.family.replace("_", " ") or ("variant" if pattern.variant_of else "published")
        versions = (str(pattern.from_version), str(pattern.to_version))
        assert found[pattern.id] == (*versions, pattern.type, pattern.description, group)


def test_everything_a_file_may_say_is_listed():
    names = {*patches.OPERATORS, *judge.RULES, *judge.TESTS, *schema.TYPES, "items", "scope", "rate_limit", "outage"}
    names -= {"date_dmy"}
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE] == []
    parameters = (
        "stage",
        "drift",
        "decoy",
        "held_out",
        "held_out_templates",
        "held_out_places",
        "lead_time",
        *PROFILES,
    )
    parameters += ("severity", "severity_DOMAIN_NAME", "moved_from", "grace", "_announced")
    assert [name for name in parameters if f"`{name}`" not in PAGE] == []


@pytest.fixture(scope="module")
def shows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shows")
    (folder / "domains").mkdir()
    (folder / "domains" / "cinema.toml").write_text(block("toml", 'domain = "cinema"'), encoding="utf-8")
    return str(folder)


def test_the_vendor_of_the_page_can_be_played_drifts_and_is_forked(shows):
    text = block("python", "world = Concierge({").replace('"shows"', repr(shows))
    scope = {"Concierge": Concierge}
    exec(text, scope)
    world = scope["world"]
    for seed in range(20):
        world.reset(seed=seed)
        assert world.task.goal.domain == "cinema"
        over = False
        while not over:
            _, reward, over, *_ = world.step(world.expert())
        assert reward == pytest.approx(1.0)
    assert world.fork().catalogue is world.catalogue


def test_a_vendor_of_ones_own_stands_beside_the_others(shows):
    world = Concierge({"stage": 1}, data=[shows])
    domains = set()
    for seed in range(60):
        world.reset(seed=seed)
        domains.add(world.task.goal.domain)
    assert domains == {"airline", "cab", "cinema", "hotel", "restaurant"}
    assert settings.settings(world.catalogue, {"domain_cinema": 1}).domains == (("cinema", 1.0),)


def test_the_first_example_runs():
    exec(block("python", "from perdure.worlds.concierge.world"), {})


def test_the_document_of_the_page_is_valid_and_poses_its_vendor(shows):
    document = yaml.safe_load(block("yaml", "stages:"))
    kwargs = {**document["environment"]["kwargs"], "data": [shows]}
    world = Concierge(**kwargs)
    for segment in document["regime"]["segments"]:
        world.set_regime(segment["params"])
        for seed in range(10):
            world.reset(seed=seed)
            assert world.task.goal.domain == "cinema"
