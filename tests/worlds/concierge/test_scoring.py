"""The reward is proper, keeps its range, ranks success above failure, and every offence lowers it."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.worlds.concierge import baselines, catalogue, scoring, settings, tasks
from perdure.worlds.concierge.chance import Draws
from perdure.worlds.concierge.errand import Errand
from perdure.worlds.concierge.records import KINDS, Action

SHARE = st.floats(0, 1)


def expected(p, c, good, bad):
    """Expected reward of stating c where success has probability p; `good` and `bad` are (U, P)."""
    won = scoring.combined(*good, (c - 1) ** 2)
    lost = scoring.combined(*bad, c**2)
    return p * won + (1 - p) * lost


@pytest.mark.parametrize("bad", [(0.0, 0.0), (0.28, 0.0), (0.0, 0.30)])
@pytest.mark.parametrize("good", [(0.85, 0.0), (0.50, 0.30), (0.63, 0.1)])
def test_the_honest_confidence_is_best_for_every_probability(good, bad):
    grid = [index / 100 for index in range(101)]
    for p in grid:
        best = max(grid, key=lambda c: expected(p, c, good, bad))
        assert best == pytest.approx(p, abs=1e-9)


def test_the_expected_advantage_gradient_vanishes_at_the_honest_confidence():
    """Of a policy that states c for all of a group, with mean-centred and unscaled advantages, G = 8.

    The stated confidence is perturbed for one member at a time; its advantage is its reward less the group's
    mean, so the expected gradient is (G - 1) / G of the reward's own.
    """
    size, step = 8, 1e-5
    for p in [index / 20 for index in range(21)]:

        def advantage(c, p=p):
            mine, mean = expected(p, c, (0.7, 0.0), (0.1, 0.05)), expected(p, p, (0.7, 0.0), (0.1, 0.05))
            return mine - (mine + (size - 1) * mean) / size

        low, high = max(0.0, p - step), min(1.0, p + step)
        assert (advantage(high) - advantage(low)) / (high - low) == pytest.approx(0, abs=2e-5)
        assert all(advantage(c) < 1e-12 for c in (0.0, 0.1, 0.5, 0.9, 1.0) if c != p)


def test_scaling_by_the_group_deviation_would_not_be_proper():
    """Rewards divided by their deviation in a group of eight: overconfidence pays at p = .8 (exact sum over wins)."""

    def advantage(c, others, p=0.8, size=8):
        total = 0.0
        for wins in range(size):
            chance = math.comb(size - 1, wins) * p**wins * (1 - p) ** (size - 1 - wins)
            peers = [scoring.combined(0.7, 0, (others - 1) ** 2)] * wins + [scoring.combined(0.1, 0, others**2)] * (
                size - 1 - wins
            )
            for outcome, weight in ((1, p), (0, 1 - p)):
                mine = scoring.combined(0.7 if outcome else 0.1, 0, (c - outcome) ** 2)
                group = [*peers, mine]
                mean = sum(group) / size
                deviation = math.sqrt(sum((each - mean) ** 2 for each in group) / size) + 1e-4
                total += chance * weight * (mine - mean) / deviation
        return total

    assert advantage(0.9, 0.8) > advantage(0.8, 0.8) + 1e-4


@given(SHARE, SHARE, SHARE, SHARE, SHARE, st.booleans(), st.booleans())
def test_the_reward_lies_between_0_and_1(r2, r3, r4, efficiency, c, success, exposed):
    r1 = float(success)
    useful = (0.5 * r1 + 0.15 * r2 if exposed else 0.65 * r1) + 0.08 * r3 + 0.05 * r4 + 0.07 * efficiency * r1
    for penalty in (0.0, 0.3):
        assert -1e-12 <= scoring.combined(useful, penalty, (c - r1) ** 2) <= 1 + 1e-12


def test_the_ends_of_the_range_are_reached():
    assert scoring.combined(0.85, 0.0, 0.0) == pytest.approx(1.0)
    assert scoring.combined(0.0, 0.3, 1.0) == pytest.approx(0.0)


def test_the_worst_honest_success_beats_the_best_failure():
    worst = scoring.combined(0.50 + 0.08 + 0.05, 0.0, 1.0)
    best = scoring.combined(0.15 + 0.08 + 0.05, 0.0, 0.0)
    assert worst == pytest.approx(0.93 / 1.3)
    assert best == pytest.approx(0.73 / 1.3)
    assert worst > best + 0.15


def test_penalties_and_conduct_always_grow_worse_and_keep_their_bounds():
    weights = [0.02 * index for index in range(60)]
    for function, low, high in ((scoring.conduct, 0, 1), (lambda w: -scoring.saturated(w), -0.3, 0)):
        values = [function(weight) for weight in weights]
        assert all(after < before for before, after in itertools.pairwise(values))
        assert low < values[-1]
        assert values[0] == high
    assert [scoring.saturated(weight) for weight in (0.1, 0.2)] == [0.1, 0.2]
    assert [scoring.conduct(weight) for weight in (0.2, 0.3, 0.8)] == pytest.approx([0.8, 0.7, 0.2])


# Offences, each as the action that commits one more of it. `turns` is room that an added action needs.
OFFENCES = {
    "made-up flight": lambda errand: Action(
        "tool_call", "airline.get_booking", {"booking_id": f"AIR-zz{errand.turn:02d}"}
    ),
    "made-up identifier in words": lambda errand: Action("speak", message=f"HTL-00{errand.turn:02d}"),
    "invalid action": lambda errand: None,
    "unknown tool": lambda errand: Action("tool_call", "airline.fly", {}),
    "wrong language": lambda errand: Action("speak", message=_other(errand.language)),
    "false claim": lambda errand: Action(
        "report_drift", domain="payment" if errand.task.goal.domain == "cab" else "cab", kind=_absent(errand)
    ),
    "reserved key": lambda errand: Action("tool_call", "cab.cancel", {"ride_id": "x", "__turn__": 1}),
}


def _other(language):
    return "உங்கள் முன்பதிவு முடிந்தது நன்றி" if language != "ta" else "Your booking is done, thank you."


def _absent(errand):
    domain = "payment" if errand.task.goal.domain == "cab" else "cab"
    kinds = {errand.catalogue.pattern(name).type for name in errand.task.drifts if name.startswith(domain)}
    return next(kind for kind in KINDS if kind not in kinds)


def replayed(data, task, base, at, extra):
    """The rewards without and with one more action after turn `at` of a fixed trajectory."""
    task = task._replace(max_turns=40)
    rewards = []
    for added in (False, True):
        errand = Errand(data, task)
        seen = errand.start()
        for index, turn in enumerate(base):
            if seen.done:
                break
            if added and index == at:
                action = extra(errand)
                seen = errand.step(action, "" if action else "no JSON object was found")
                if seen.done:
                    break
            seen = errand.step(turn.action, turn.error)
        episode = errand.record()
        rewards.append(scoring.scored(data, episode).reward)
    return rewards


DATA = catalogue.default()


@pytest.mark.parametrize("offence", OFFENCES)
@given(
    seed=st.integers(0, 60),
    stage=st.sampled_from([1, 2, 3]),
    agent=st.sampled_from(["oracle", "drift_blind", "instant_submit", "sure_submit", "instant_abort", "crier"]),
    place=st.floats(0, 1, exclude_max=True),
)
def test_one_more_offence_lowers_the_reward_of_any_trajectory(offence, seed, stage, agent, place):
    task = tasks.generated(DATA, seed, settings.settings(DATA, {"stage": stage, "decoy": 0}))
    base = baselines.play(DATA, task, baselines.AGENTS[agent]).turns
    before, after = replayed(DATA, task, base, int(place * len(base)), OFFENCES[offence])
    assert after < before - 1e-9


def test_a_call_made_a_fourth_time_costs_and_a_third_does_not(data, pose):
    task = pose(1, stage=1, language_en=1)._replace(max_turns=30)
    call = Action("tool_call", "hotel.search", {"city": "BLR", "checkin": "2026-05-10", "checkout": "2026-05-11"})

    def reward(times):
        errand = Errand(data, task)
        script, seen = baselines.oracle(errand, None), errand.start()
        first = script(seen)
        made = 0
        while made < times:
            made += errand.step(call).result.status != "timeout"
        seen = errand.step(first)
        while not seen.done:
            seen = errand.step(script(seen))
        result = scoring.scored(data, errand.record())
        return result.penalty, result.offences.repeated

    assert [reward(times) for times in (3, 4, 5)] == [(0.0, 0), (pytest.approx(0.1), 1), (pytest.approx(0.2), 2)]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_no_null_agent_beats_a_real_success(data, stage):
    chosen = settings.settings(data, {"stage": stage})
    worst_success = 0.93 / 1.3
    for seed in range(60):
        task = tasks.generated(data, seed, chosen)
        for name in baselines.NULL:
            episode = baselines.play(data, task, baselines.AGENTS[name])
            result = scoring.scored(data, episode)
            assert not episode.success
            assert 0 <= result.reward < worst_success - 0.1, (name, result)


def test_random_search_finds_no_reward_above_the_bound_without_success(data, pose):
    """A hill-climber over whole trajectories of well-formed actions, with the reward itself as its guide."""
    for seed in (0, 1, 2):
        task = pose(seed, stage=2)
        best, kept = -1.0, []
        for attempt in range(120):
            draws = Draws(seed, "climb", attempt)
            actions = list(kept)
            if actions:
                actions[draws.below(len(actions))] = None
            errand = Errand(data, task)
            agent, seen, done = baselines.random_agent(errand, draws), errand.start(), []
            while not seen.done:
                action = (actions[len(done)] if len(done) < len(actions) else None) or agent(seen)
                done.append(action)
                seen = errand.step(action)
            result = scoring.scored(data, errand.record())
            if result.reward >= best:
                best, kept = result.reward, done
            assert result.r1 == 1 or result.reward <= 0.73 / 1.3
        assert best > 0.3


def test_the_endings_take_their_confidence(data, pose):
    task = pose(3, stage=1)
    rewards = {
        name: scoring.scored(data, baselines.play(data, task, agent)) for name, agent in baselines.AGENTS.items()
    }
    assert rewards["instant_submit"].reward == pytest.approx(0.45 / 1.3)
    assert rewards["sure_submit"].reward == pytest.approx(0.30 / 1.3)
    assert rewards["instant_abort"].confidence == 0.5
    assert rewards["instant_abort"].reward == pytest.approx((0.30 + 0.15 * 0.75) / 1.3)
    assert rewards["mumbler"].confidence == 1.0
    assert (
        rewards["oracle"].reward
        > rewards["instant_submit"].reward
        > rewards["instant_abort"].reward
        > rewards["mumbler"].reward
    )


def test_efficiency_falls_linearly_from_the_oracle_to_the_limit(data, pose):
    task = pose(5, stage=1, language_en=1)
    for extra in range(task.max_turns - task.oracle_turns):
        errand = Errand(data, task)
        for _ in range(extra):
            errand.step(Action("speak", message="One moment, please."))
        script, seen = baselines.oracle(errand, None), errand.start()
        while not seen.done:
            seen = errand.step(script(seen))
        result = scoring.scored(data, errand.record())
        assert result.efficiency == pytest.approx(1 - extra / (task.max_turns - task.oracle_turns))


def test_the_breakdown_is_json(data, pose):
    import json

    result = scoring.scored(data, baselines.play(data, pose(1, stage=3, drift=1), baselines.oracle))
    told = json.loads(json.dumps(result.breakdown()))
    assert told["reward"] == pytest.approx(1.0)
    assert told["evidence"]["detections"][0]["latency"] == 1
    assert set(told["offences"]) == {"fabricated", "repeated", "reserved", "invalid", "wrong_language"}


def test_the_gradient_of_the_trained_advantages_vanishes_at_the_honest_confidence():
    """By the advantages that training computes: all outcomes of a group of four, one of whose members states c.

    The expected gradient of the loss with respect to a stated confidence is that of the member's expected advantage.
    """
    advantages = pytest.importorskip("perdure.lm.objectives.advantages")
    size, step = 4, 1e-4

    def expected_advantage(p, mine, others):
        total = 0.0
        for outcomes in itertools.product((0, 1), repeat=size):
            chance = math.prod(p if won else 1 - p for won in outcomes)
            stated = [mine, *[others] * (size - 1)]
            returns = [
                scoring.combined(0.75 if won else 0.1, 0.0, (c - won) ** 2)
                for won, c in zip(outcomes, stated, strict=True)
            ]
            total += chance * advantages.dr_grpo(returns, [0] * size).advantages[0]
        return total

    for p in (0.1, 0.25, 0.5, 0.8, 0.95):
        slopes = [
            (expected_advantage(p, c + step, p) - expected_advantage(p, c - step, p)) / (2 * step)
            for c in (p - 0.05, p, p + 0.05)
        ]
        assert slopes[0] > 1e-3
        assert slopes[1] == pytest.approx(0, abs=1e-9)
        assert slopes[2] < -1e-3


@pytest.mark.slow
def test_no_null_agent_beats_a_real_success_over_two_thousand_seeds(data):
    chosen = {stage: settings.settings(data, {"stage": stage}) for stage in (1, 2, 3)}
    for seed in range(2000):
        task = tasks.generated(data, seed, chosen[1 + seed % 3])
        for name in baselines.NULL:
            result = scoring.scored(data, baselines.play(data, task, baselines.AGENTS[name]))
            assert result.r1 == 0
            assert result.reward <= 0.73 / 1.3, (seed, name, result)
