"""Templates, places and patterns that are held out: no training task is of them, each can be asked for alone."""

import re

import pytest

from perdure.core.errors import ConfigError
from perdure.worlds.concierge import baselines, catalogue, scoring, settings, tasks

SEEDS = 2000


def named(data, task):
    """The places that a task has to do with."""
    known = {code for codes in data.words["places"].values() for code in codes}
    return {value for keys in task.goal.keys for value in keys.values() if value in known}


def drawn(data, seeds, **params):
    """Templates, sets of places and patterns of many tasks of all stages."""
    templates, places, patterns = set(), set(), set()
    chosen = {stage: settings.settings(data, {"stage": stage, **params}) for stage in (1, 2, 3)}
    for seed in range(seeds):
        task = tasks.generated(data, seed, chosen[1 + seed % 3])
        templates.add(task.goal.template)
        places.add(frozenset(named(data, task)))
        patterns.update(task.drifts)
    return templates, places, patterns


@pytest.fixture(scope="module")
def training(data):
    return drawn(data, SEEDS)


def test_every_vendor_has_held_out_templates_and_every_kind_of_place(data):
    for domain in data.consumers:
        held_out = [each for each in data.domains[domain]["templates"] if each.get("held_out")]
        trained = [each for each in data.domains[domain]["templates"] if not each.get("held_out")]
        assert len(held_out) >= 2
        assert len(trained) >= 6
        combined = {tuple(sorted((*each["constraints"], *each["prefer"]))) for each in trained}
        assert all(tuple(sorted((*each["constraints"], *each["prefer"]))) not in combined for each in held_out)
    for kind, codes in data.words["places"].items():
        assert len(set(codes) & set(data.held_out_places(kind))) >= 4


def test_no_training_task_is_of_a_held_out_template_place_or_pattern(data, training):
    templates, places, patterns = training
    assert not any(
        each.get("held_out")
        for name in data.consumers
        for each in data.domains[name]["templates"]
        if each["id"] in templates
    )
    held_out = {code for kind in data.words["places"] for code in data.held_out_places(kind)}
    assert not any(found & held_out for found in places)
    assert not any(data.pattern(name).held_out for name in patterns)
    assert len(templates) == 24
    assert len(patterns) == 20


def test_held_out_templates_are_met_by_none_of_the_training(data, training):
    templates, _, _ = drawn(data, SEEDS, held_out_templates=1)
    assert len(templates) == 8
    assert not templates & training[0]


def test_held_out_routes_are_met_by_none_of_the_training(data, training):
    _, places, _ = drawn(data, SEEDS, held_out_places=1)
    assert len(places) == 18, "four cities, six routes between them, six between places, two to the airport"
    assert not places & training[1]
    seen = {code for found in training[1] for code in found}
    assert all(found - seen for found in places), "each has to do with a place that no training task names"


def test_held_out_patterns_are_met_by_none_of_the_training(data, training):
    for held_out in (1, 2):
        patterns = drawn(data, 300, held_out=held_out)[2]
        assert patterns
        assert not patterns & training[2]


@pytest.mark.parametrize(
    "params",
    [{"held_out_templates": 1}, {"held_out_places": 1}, {"held_out_templates": 2, "held_out_places": 2, "held_out": 3}],
)
def test_held_out_tasks_are_solvable_and_their_drifts_matter(data, params):
    for stage in (2, 3):
        chosen = settings.settings(data, {"stage": stage, **params})
        for seed in range(40):
            task = tasks.generated(data, seed, chosen)
            assert scoring.scored(data, baselines.play(data, task, baselines.oracle)).reward == pytest.approx(1.0)
            blind = baselines.play(data, task, baselines.drift_blind)
            assert blind.success is not bool(task.drifts)


def test_both_draw_from_both(data):
    templates, places, _ = drawn(data, 400, held_out_templates=2, held_out_places=2)
    held_out = {
        each["id"] for name in data.consumers for each in data.domains[name]["templates"] if each.get("held_out")
    }
    assert templates & held_out
    assert templates - held_out
    kinds = {code for kind in data.words["places"] for code in data.held_out_places(kind)}
    assert any(found & kinds for found in places)
    assert any(not found & kinds for found in places)


def test_vendors_serve_held_out_places_at_all_times(data, vendors):
    answer = vendors().call("airline.search", {"from": "JAI", "to": "DEL", "date": "2026-05-09"}, 1)
    assert answer.status == "ok"
    assert answer.response["results"]


def test_held_out_words_are_in_the_language_they_are_said_in(data):
    for language, block in (("hi", "\u0900-\u097f"), ("ta", "\u0b80-\u0bff"), ("kn", "\u0c80-\u0cff")):
        chosen = settings.settings(
            data, {"stage": 1, "held_out_templates": 1, "held_out_places": 1, f"language_{language}": 1}
        )
        for seed in range(60):
            said = tasks.generated(data, seed, chosen).goal.utterance
            assert not re.search("[A-Za-z]", said)
            assert re.search(f"[{block}]", said)


def test_a_vendor_without_held_out_tasks_is_left_out_or_refused(tmp_path, data):
    text = (catalogue.DATA / "domains" / "airline.toml").read_text(encoding="utf-8")
    text = re.sub(r'domain = "airline"\nprefix = "AIR"', 'domain = "rail"\nprefix = "RAI"', text)
    text = text.partition("\n[[patterns]]")[0].replace("held_out = true\n", "")
    (tmp_path / "domains").mkdir()
    (tmp_path / "domains" / "rail.toml").write_text(text, encoding="utf-8")
    with_rail = catalogue.Catalogue([tmp_path])
    assert "rail" in dict(settings.settings(with_rail, {}).domains)
    assert "rail" not in dict(settings.settings(with_rail, {"held_out_templates": 1}).domains)
    with pytest.raises(ConfigError, match="no vendor of this regime has held-out"):
        settings.settings(with_rail, {"held_out_templates": 1, "domain_rail": 1})
