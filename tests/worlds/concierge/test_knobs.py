"""Deprecations with a grace period, lead time and severity: what is announced, accepted, refused and moved."""

import pytest

from perdure.core.errors import ConfigError
from perdure.worlds.concierge import baselines, catalogue, evidence, scoring, settings, tasks
from perdure.worlds.concierge.errand import Errand
from perdure.worlds.concierge.records import Action

SEATS, ARRIVAL = "airline.seats_deprecated", "hotel.arrival_deprecated"


def only(pattern, **params):
    name = pattern.replace(".", "_", 1)
    return {"stage": 2, "drift": 1, "decoy": 0, "language_en": 1, f"pattern_{name}": 1, **params}


def full_marks_and_blind_failure(data, seeds, **params):
    chosen = settings.settings(data, params)
    posed = [tasks.generated(data, seed, chosen) for seed in seeds]
    for task in posed:
        episode = baselines.play(data, task, baselines.oracle)
        assert scoring.scored(data, episode).reward == pytest.approx(1.0, abs=1e-12)
        assert set(episode.exposed) == set(task.drifts)
        blind = baselines.play(data, task, baselines.drift_blind)
        assert blind.success is not bool(task.drifts), task.drifts
    return posed


@pytest.fixture
def deprecated(data, pose):
    """An errand whose searches are done and one token fetched, at the turn of the notice plus `after`."""

    def begin(seed=0):
        errand = Errand(data, pose(seed, **only(SEATS)))
        goal = errand.task.goal
        trip = {name: goal.keys[0][name] for name in ("from", "to", "date")}
        errand.start()
        token = errand.step(Action("tool_call", "payment.get_token", {"requested_scope": "payments:write:v1"}))
        found = errand.step(Action("tool_call", "airline.search", trip))
        call = {
            "flight_id": found.result.response["results"][0]["flight_id"],
            "payment_token": token.result.response["payment_token"],
        }
        return (
            errand,
            found.result.response,
            lambda name: errand.step(Action("tool_call", "airline.book", {**call, name: 2})).result,
        )

    return begin


def quiet(begin):
    """An errand in which no call has been lost to a random timeout."""
    for seed in range(20):
        try:
            return begin(seed)
        except KeyError:
            continue
    raise AssertionError("every errand lost a call")


def test_a_deprecation_is_announced_with_its_turns_and_the_old_form_is_accepted_meanwhile(deprecated):
    errand, answer, book = quiet(deprecated)
    assert answer["_announced"] == (
        "In force in 2 turns: airline.book: passenger_count is deprecated, seat_count takes its place."
    )
    assert errand.exposed == {SEATS: 2}
    made = book("passenger_count")
    assert (made.status, made.schema_version) == ("ok", "v1")
    assert made.response["_announced"].startswith("In force in 1 turn: ")
    assert errand.drifts == []


def test_the_new_form_is_accepted_in_the_grace_period_too(deprecated):
    errand, _, book = quiet(deprecated)
    made = book("seat_count")
    assert (made.status, made.schema_version) == ("ok", "v2")
    (booking,) = errand.vendors.bookings.values()
    assert booking.patterns == (SEATS,)


def test_the_old_form_is_refused_after_the_grace_period(deprecated):
    errand, _, book = quiet(deprecated)
    errand.step(Action("speak", message="One moment, please."))
    refused = book("passenger_count")
    assert (refused.status, refused.response["error_code"]) == ("schema_error", "UNKNOWN_FIELD")
    assert "_announced" not in refused.response
    assert "_notice" not in refused.response
    assert [event.turn for event in errand.drifts] == [4]
    assert book("seat_count").status == "ok"


@pytest.mark.parametrize("pattern", [SEATS, ARRIVAL])
def test_deprecations_are_solvable_and_decisive(data, pattern):
    posed = full_marks_and_blind_failure(data, range(60), **only(pattern))
    assert all(task.drifts == (pattern,) for task in posed)


@pytest.mark.parametrize("lead", [1, 2])
@pytest.mark.parametrize("stage", [2, 3])
def test_every_family_can_be_announced_before_it_is_in_force(data, stage, lead):
    posed = full_marks_and_blind_failure(data, range(60), stage=stage, held_out=3, lead_time=lead)
    assert sum(bool(task.drifts) for task in posed) > 40


@pytest.mark.parametrize("lead", [0, 1, 2])
def test_a_drift_comes_into_force_the_lead_after_its_notice(data, pose, lead):
    for seed in range(12):
        episode = baselines.play(
            data, pose(seed, **only("airline.convenience_fee_append", lead_time=lead)), baselines.oracle
        )
        (event,) = episode.drifts
        exposed = episode.exposed[event.pattern_id]
        assert event.turn - exposed == lead
        if lead:
            notice = next(turn.result.response for turn in episode.turns if turn.turn == exposed)["_announced"]
            assert notice.startswith(f"In force in {lead} turn")
            assert "199" in notice
        (found,) = evidence.gathered(data, episode).detections
        assert found.score == 1.0


def test_an_announced_drift_leaves_prices_alone_until_it_is_in_force(data, pose):
    task = pose(1, **only("airline.convenience_fee_append", lead_time=2))
    errand = Errand(data, task._replace(failing=()))
    errand.start()
    token = errand.step(Action("tool_call", "payment.get_token", {"requested_scope": "payments:write:v1"}))
    trip = {name: task.goal.keys[0][name] for name in ("from", "to", "date")}
    row = errand.step(Action("tool_call", "airline.search", trip)).result.response["results"][0]
    call = {"flight_id": row["flight_id"], "payment_token": token.result.response["payment_token"]}
    early = errand.step(Action("tool_call", "airline.book", call)).result.response["price"]
    late = errand.step(Action("tool_call", "airline.book", {**call, "passenger_count": 2})).result.response["price"]
    assert (early, late) == (row["price"], 2 * row["price"] + 199)


@pytest.mark.parametrize(
    ("pattern", "factor", "number"),
    [
        ("airline.convenience_fee_append", 1.75, 348),
        ("airline.baggage_tnc_rewrite", 0.5, 6),
        ("airline.booking_window_shrink", 1.2, 12),
        ("payment.mfa_required", 1.2, 4000),
        ("restaurant.min_order_bump", 2, 399),
        ("hotel.cancel_window_shrink", 3, 1),
    ],
)
def test_severity_moves_a_number_in_proportion_from_what_it_was(data, pattern, factor, number):
    moved = data.pattern(data.scaled(pattern, factor))
    assert moved.id == f"{pattern}@{number}"
    assert moved.numbers == (number,)
    usual = data.pattern(pattern)
    assert (moved.from_version, moved.to_version, moved.type) == (usual.from_version, usual.to_version, usual.type)
    said = moved.notice + moved.tell["en"]
    assert f"{number:,}" in said or str(number) in said
    assert evidence.states(moved, moved.tell["hi"])
    assert not evidence.states(moved, usual.tell["hi"])
    before, after = (data.contract(usual.domain, usual.from_version, (each.id,)) for each in (usual, moved))
    assert before != after


def test_severity_of_one_is_the_catalogue_and_other_patterns_stay(data):
    plain = settings.settings(data, {"stage": 2})
    assert settings.settings(data, {"stage": 2, "severity": 1}) == plain
    harder = settings.settings(data, {"stage": 2, "severity": 1.5, "severity_hotel_resort_fee_append": 2})
    changed = set(harder.patterns) - set(plain.patterns)
    assert "hotel.resort_fee_append@1000" in changed
    assert "airline.convenience_fee_append@299" in changed
    assert "airline.price_rename" in harder.patterns
    assert len(harder.patterns) == len(plain.patterns)


def test_a_spread_of_severities_has_every_number_but_the_held_out_one(data):
    assert data.spread("cab.surge_policy_tnc", 1.3, 1.7) == tuple(
        f"cab.surge_policy_tnc@{number}" for number in (65, 70, 80, 85)
    ), "75 percent is held out"
    assert data.spread("airline.baggage_tnc_rewrite", 0.1, 1.0) == (
        "airline.baggage_tnc_rewrite@6",
        "airline.baggage_tnc_rewrite",
    ), "at 7 kg it would not move, 3 kg is held out"
    assert data.spread("airline.baggage_3kg", 0.2, 1.0) == (
        "airline.baggage_3kg@6",
        "airline.baggage_3kg@4",
        "airline.baggage_3kg",
    ), "5 kg is what is trained on"
    assert data.spread("airline.price_rename", 0.1, 2.0) == ("airline.price_rename",)
    spread = settings.settings(data, {"stage": 2, "severity": 0.2, "severity_to": 2})
    plain = settings.settings(data, {"stage": 2})
    assert spread.patterns == plain.patterns, "no pattern is likelier for having many numbers"
    assert plain.spread == ()


def test_each_errand_has_a_severity_of_its_own(data):
    knobs = {"severity": 0.2, "severity_to": 2, "drift": 1, "domain_cab": 1, "pattern_cab_surge_policy_tnc": 1}
    posed = full_marks_and_blind_failure(data, range(60), stage=2, **knobs)
    numbers = {data.pattern(task.drifts[0]).numbers[0] for task in posed}
    assert len(numbers) > 10
    assert numbers <= set(range(10, 105, 5)) - {75}


@pytest.mark.parametrize("severity", [0.6, 1.5])
@pytest.mark.parametrize("stage", [2, 3])
def test_moved_drifts_are_solvable_and_decisive(data, severity, stage):
    posed = full_marks_and_blind_failure(data, range(50), stage=stage, severity=severity)
    assert any("@" in name for task in posed for name in task.drifts)


def test_telling_a_moved_number_is_a_true_claim_and_the_usual_one_does_not_tell_it(data, pose):
    task = pose(1, **only("airline.convenience_fee_append", severity=2))
    (name,) = task.drifts
    episode = baselines.play(data, task, baselines.oracle)
    found = evidence.gathered(data, episode)
    assert (found.claims, found.false_claims) == (1, 0)
    assert not evidence.states(data.pattern(name), data.pattern("airline.convenience_fee_append").tell["en"])


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"severity": 0}, "severity is 0; give a factor above 0 and up to 10"),
        ({"severity_airline_price_rename": 2}, "moves no number"),
        ({"severity_to": 0.5}, "severity is 1 and severity_to 0.5; the second must be greater"),
        ({"severity": 0, "severity_to": 2}, "severity is 0; give a factor"),
        ({"severity_to": 20}, "severity_to is 20; give a factor above 0 and up to 10"),
        (
            {"severity_cab_surge_policy_tnc": -4, "pattern_cab_toll_unbundle": 1},
            "severity_cab_surge_policy_tnc is -4; give a factor",
        ),
        ({"severity": float("nan")}, "severity is nan; a parameter of the concierge world is a finite number"),
        ({"stage": "2"}, "stage is '2'; a parameter"),
        ({"held_out": None}, "held_out is None; a parameter"),
        ({"drift": True}, "drift is True; a parameter"),
        (
            {"domain_cab": 1, "pattern_airline_pax_required": 1},
            "no errand is about the vendor of pattern_airline_pax_required: this regime has only cab",
        ),
        ({"severity_to": 2, "severity_hotel_gst_field": 2}, "severity_hotel_gst_field stands beside severity_to"),
        ({"severity": 1.46, "severity_to": 1.54, "pattern_cab_surge_policy_tnc": 1}, "leaves nothing of cab.surge"),
        ({"severity_airline_baggage_tnc_rewrite": 0.1}, "leaves airline.baggage_tnc_rewrite at 7"),
        ({"severity_airline_bagage_tnc_rewrite": 2}, "did you mean"),
        ({"lead_time": 3}, "from 0 to 2"),
        ({"held_out_templates": 3}, "from 0 to 2"),
        ({"held_out_places": 0.5}, "whole number"),
    ],
)
def test_wrong_knobs_are_refused(data, params, said):
    with pytest.raises(ConfigError, match=said):
        settings.settings(data, {"stage": 2, **params})


PATTERN = """domain = "x"
prefix = "X"
tools = {}
[[patterns]]
id = "x.q"
from = 1
to = 2
type = "pricing"
words = {}
tell = {}
patch = []
"""


@pytest.mark.parametrize(
    ("line", "said"), [("moved_from = 3\n", "give one other number"), ("grace = 2\n", "no notice")]
)
def test_a_pattern_with_a_useless_knob_is_refused(tmp_path, line, said):
    (tmp_path / "domains").mkdir()
    (tmp_path / "domains" / "x.toml").write_text(PATTERN + line)
    with pytest.raises(ConfigError, match=said):
        catalogue.Catalogue([tmp_path])
