"""Tasks are determined by their seed, solvable, and every drift in them matters."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from perdure.core.errors import ConfigError
from perdure.worlds.concierge import baselines, outcome, scoring, scripts, settings, tasks
from perdure.worlds.concierge.errand import Errand
from perdure.worlds.concierge.world import Concierge

FAST, ALL = 200, 2000
PRINT = """
import hashlib, json
from perdure.worlds.concierge import catalogue, settings, tasks
from perdure.worlds.concierge.world import Concierge
data = catalogue.default()
state = hashlib.sha256(data.hash.encode())
for stage in (1, 2, 3):
    chosen = settings.settings(data, {"stage": stage, "held_out": 3})
    for seed in range(40):
        state.update(json.dumps(tasks.generated(data, seed, chosen), sort_keys=True).encode())
world = Concierge({"stage": 3})
for seed in range(10):
    text, _ = world.reset(seed=seed)
    over = False
    while not over:
        state.update(text.encode())
        text, reward, over, _, info = world.step(world.expert())
    state.update(json.dumps(info, sort_keys=True).encode())
print(state.hexdigest())
"""


def test_worlds_are_byte_identical_across_processes_and_hash_seeds():
    digests = {
        subprocess.run(
            [sys.executable, "-c", PRINT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "4242")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


def check(data, seeds, **params):
    """The oracle has full marks in every task, the drift-blind script fails every one that drifts."""
    chosen = settings.settings(data, params)
    drifted = 0
    for seed in seeds:
        task = tasks.generated(data, seed, chosen)
        episode = baselines.play(data, task, baselines.oracle)
        result = scoring.scored(data, episode)
        assert episode.success, (seed, task.goal)
        assert result.reward == pytest.approx(1.0, abs=1e-12), (seed, result)
        assert set(episode.exposed) == set(task.drifts)
        assert result.offences == (0, 0, False, 0, 0)
        assert result.evidence.false_claims == 0
        assert len(episode.turns) == task.oracle_turns < task.max_turns
        assert tuple(turn.action for turn in episode.turns) == task.oracle
        if task.drifts:
            drifted += 1
            blind = baselines.play(data, task, baselines.drift_blind)
            assert not blind.success, (seed, task.drifts)
            assert scoring.scored(data, blind).reward < 0.62
        else:
            assert baselines.play(data, task, baselines.drift_blind).success
    return drifted


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_oracle_has_full_marks_and_the_blind_script_fails(data, stage):
    drifted = check(data, range(FAST), stage=stage)
    assert drifted == 0 if stage == 1 else drifted > 0.7 * FAST


@pytest.mark.slow
@pytest.mark.parametrize("held_out", [0, 3])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_oracle_has_full_marks_over_two_thousand_seeds(data, stage, held_out):
    check(data, range(ALL), stage=stage, held_out=held_out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        {"held_out_templates": 1},
        {"held_out_places": 1},
        {"held_out": 3, "lead_time": 2},
        {"severity": 0.6},
        {"severity": 1.5},
    ],
)
def test_so_it_is_with_every_knob_over_two_thousand_seeds(data, params):
    check(data, range(ALL), stage=3, **params)


@pytest.mark.parametrize("lead", [0, 2])
def test_a_branch_and_its_origin_leave_each_other_alone(data, lead):
    """The proof plays the blind script from where the first drift shows; played from the start it ends the same."""
    chosen = settings.settings(data, {"stage": 3, "drift": 1, "held_out": 3, "lead_time": lead})
    for seed in range(150):
        task = tasks.generated(data, seed, chosen)
        errand = Errand(data, task)
        script, seen = scripts.Script(errand), errand.start()
        while not errand.exposed:
            seen = errand.step(script.act(seen))
        other = errand.branch()
        blind, last = script.blinded(other), seen
        while not seen.done:
            seen = errand.step(script.act(seen))
        while not last.done:
            last = other.step(blind.act(last))
        assert other.record() == baselines.play(data, task, baselines.drift_blind)
        assert errand.record() == baselines.play(data, task, baselines.oracle)


def test_every_pattern_is_posed_exposed_and_decisive(data):
    for pattern in data.patterns.values():
        name = pattern.id.replace(".", "_", 1)
        assert check(data, range(6), stage=2, drift=1, **{f"pattern_{name}": 1}) == 6


def test_a_pattern_is_drawn_in_each_language(pose):
    for language in ("hi", "ta", "kn", "en", "hinglish"):
        goal = pose(3, stage=2, **{f"language_{language}": 1}).goal
        assert goal.language == language


def test_stages_bring_their_number_of_drifts_and_turns(pose):
    drifts = {stage: [len(pose(seed, stage=stage, drift=1).drifts) for seed in range(60)] for stage in (1, 2, 3)}
    assert set(drifts[1]) == {0}
    assert set(drifts[2]) == {1}
    assert drifts[3].count(2) > 40
    assert [pose(0, stage=stage).max_turns for stage in (1, 2, 3)] == [8, 12, 16]


def test_second_drifts_follow_the_first_by_version_or_are_payments(data, pose):
    homes = 0
    for seed in range(120):
        task = pose(seed, stage=3, drift=1)
        if len(task.drifts) < 2:
            continue
        first, second = map(data.pattern, task.drifts)
        assert first.id != second.id
        assert len({first.domain, second.domain} | {task.goal.domain} - {"payment"}) <= 2
        if first.domain == second.domain:
            homes += 1
            assert second.from_version == first.to_version
        assert task.versions[first.domain] == first.from_version
    assert homes > 20


def test_the_answer_is_one_offer_and_changes_with_the_contract_where_it_must(data, pose):
    """For drifts of prices and terms: what was right before is wrong after, and both exist."""
    for seed in range(60):
        task = pose(seed, stage=2, drift=1)
        pattern = data.pattern(task.drifts[0])
        if pattern.type != "pricing" or pattern.domain != task.goal.domain:
            continue
        errand = Errand(data, task)
        version = task.versions[pattern.domain]
        before, after = (
            outcome.best_of(errand.vendors, data.contract(pattern.domain, version, drifts), task.goal)
            for drifts in ((), (pattern.id,))
        )
        assert before.offer["index"] != after.offer["index"]


def test_routes_differ_dates_lie_ahead_and_stays_have_nights(pose):
    for seed in range(150):
        task = pose(seed, stage=2)
        goal, today = task.goal, task.now[:10]
        for keys in goal.keys:
            if goal.domain == "airline":
                assert keys["from"] != keys["to"]
                assert keys["date"] >= today
            if goal.domain == "cab":
                assert keys["pickup"] != keys["drop"]
                assert keys["pickup_time_ist"] > task.now
        if goal.domain == "hotel":
            assert today < goal.request["checkin"] < goal.request["checkout"]


def test_decoys_and_calm_tasks_occur(pose):
    posed = [pose(seed, stage=2) for seed in range(200)]
    calm = sum(not task.drifts for task in posed) / 200
    assert 0.08 < calm < 0.24
    assert 0.1 < sum(bool(task.failing) for task in posed) / 200 < 0.35
    assert 0.1 < sum(bool(task.notices) for task in posed) / 200 < 0.35
    assert any(task.goal.withheld for task in posed)
    assert any(pose(seed, stage=3).switch for seed in range(60))


def test_terse_tasks_have_three_offers_at_most_and_two_languages(pose):
    for seed in range(60):
        task = pose(seed, terse=True, stage=2)
        assert task.goal.language in ("en", "hinglish")
        if task.goal.domain != "cab":
            assert all(len(listing) <= 3 for listing in task.planted.values())


def test_splits_do_not_meet():
    training = {range(base, base + 900_000) for base in tasks.STAGE_BASE.values()}
    assert all(not set(range(each.start, each.stop, 1000)) & set(tasks.VALIDATION) for each in training)
    assert len(tasks.VALIDATION) == 500
    assert tasks.VALIDATION.start > max(each.stop for each in training)


def test_a_regime_with_nothing_to_pose_is_refused(data):
    late = settings.settings(
        data, {"stage": 2, "drift": 1, "domain_airline": 1, "version_airline": 2, "pattern_airline_price_rename": 1}
    )
    with pytest.raises(ConfigError, match="can drift from the start versions"):
        tasks.generated(data, 1, late)
    poor = settings.settings(data, {"stage": 2, "drift": 1, "domain_cab": 1, "pattern_payment_mfa_required": 1})
    with pytest.raises(
        ConfigError, match=r"no task worth posing .* vendors cab, patterns payment\.mfa_required\): in 400 of them no "
    ):
        tasks.generated(data, 1, poor)


def test_a_world_refuses_such_a_regime_before_any_errand():
    evening = {"stage": 2, "domain_airline": 1, "pattern_airline_booking_window_shrink": 1, "severity": 0.2}
    with pytest.raises(ConfigError, match=r"vendors airline, patterns airline\.booking_window_shrink@22"):
        Concierge(evening)
    world = Concierge({"stage": 1})
    with pytest.raises(ConfigError, match=r"booking_window_shrink@22, .*@21, .*@20, .*@19 and others"):
        world.check_regime({**evening, "severity_to": 0.6})
    world.set_regime({"stage": 2, "domain_cab": 1, "severity": 0.2})
    assert "airline.baggage_tnc_rewrite" not in world.check_regime({"stage": 2, "domain_cab": 1}).patterns


def test_equal_arguments_give_equal_tasks_without_the_cache(data):
    chosen = settings.settings(data, {"stage": 3})
    for seed in range(20):
        plain = tasks.generated.__wrapped__
        texts = {json.dumps(plain(data, seed, chosen), sort_keys=True) for _ in range(2)}
        assert len({hashlib.sha256(text.encode()).hexdigest() for text in texts}) == 1
