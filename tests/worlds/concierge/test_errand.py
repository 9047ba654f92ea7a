import pytest

from perdure.core.errors import PerdureError
from perdure.worlds.concierge import baselines, proof
from perdure.worlds.concierge.errand import Errand
from perdure.worlds.concierge.records import ABORT, ANTI_HACK, SUBMIT, TIMEOUT, Action

FEE = {"stage": 2, "drift": 1, "decoy": 0, "pattern_airline_convenience_fee_append": 1, "language_en": 1}
SEARCH = Action("tool_call", "payment.get_token", {"requested_scope": "payments:write:v1"})


@pytest.fixture
def errand(data, pose):
    def begin(seed=1, **params):
        made = Errand(data, pose(seed, **(params or {"stage": 1})))
        made.start()
        return made

    return begin


def test_the_request_comes_first_and_every_action_takes_a_turn(errand):
    going = errand()
    assert going.start().user == going.task.goal.utterance
    seen = going.step(SEARCH)
    assert (seen.turn, seen.budget_remaining, seen.done) == (1, 7, False)
    assert seen.user == ""
    assert going.step(None, "bad").error == "bad"
    assert going.turn == 2


@pytest.mark.parametrize(
    ("action", "ended"),
    [
        (Action("submit", confidence=0.4), SUBMIT),
        (Action("abort"), ABORT),
        (Action("tool_call", "cab.cancel", {"__turn__": 1}), ANTI_HACK),
    ],
)
def test_endings(errand, action, ended):
    going = errand()
    assert going.step(action).done
    assert going.record().ended == ended
    with pytest.raises(PerdureError, match="has ended"):
        going.step(SEARCH)


def test_reserved_keys_are_found_at_any_depth(errand):
    going = errand()
    going.step(Action("tool_call", "restaurant.order", {"items": [{"dish_id": {"__done__": True}}]}))
    assert going.record().reserved


def test_turns_run_out(errand):
    going = errand()
    for _ in range(8):
        seen = going.step(SEARCH)
    assert seen.done
    assert going.record().ended == TIMEOUT


def test_three_invalid_actions_in_a_row_end_it_and_two_do_not(errand):
    going = errand()
    for action in (None, None, SEARCH, None, Action("tool_call", "airline.fly", {})):
        assert not going.step(action, "" if action else "bad").done
    assert going.step(Action("probe_schema", "moon")).done
    assert going.record().ended == ANTI_HACK


def test_probes_and_reports_are_counted(errand):
    going = errand(stage=3)
    errors = [going.step(Action("probe_schema", "cab")).error for _ in range(3)]
    assert errors == ["", "", "probe_schema is allowed 2 times"]
    errors = [going.step(Action("report_drift", domain="cab", kind="tnc")).error for _ in range(5)]
    assert errors == [""] * 4 + ["report_drift is allowed 4 times"]


def test_a_drift_comes_into_force_as_a_booking_is_tried_and_not_before(errand):
    going = errand(**FEE)
    script = baselines.oracle(going, None)
    seen = going.start()
    while not going.drifts:
        action = script(seen)
        seen = going.step(action)
    assert action.tool_name == "airline.book"
    assert going.exposed == {"airline.convenience_fee_append": going.turn}


def test_whoever_never_books_meets_the_drift_all_the_same(errand):
    going = errand(**FEE)
    for _ in range(8):
        going.step(Action("speak", message="One moment."))
    assert [event.turn for event in going.drifts] == [8]
    assert going.exposed == {}
    going.step(Action("probe_schema", "airline"))
    assert going.exposed == {"airline.convenience_fee_append": 9}


def test_the_second_drift_waits_until_the_first_is_seen(data, pose):
    for seed in range(40):
        task = pose(seed, stage=3, drift=1)
        episode = proof.played(data, task)
        if len(task.drifts) == 2:
            first, second = episode.drifts
            assert (first.pattern_id, second.pattern_id) == task.drifts
            assert episode.exposed[first.pattern_id] < second.turn


def test_a_booking_is_judged_by_the_contract_it_was_made_under(data, pose):
    """A drift that comes too late for anybody to see takes nothing from who had finished."""
    going = Errand(data, pose(1, **FEE)._replace(drifts=()))
    script, seen = baselines.oracle(going, None), going.start()
    action = script(seen)
    while action.action_type != "submit":
        seen = going.step(action)
        action = script(seen)
    going.vendors.drift("airline.convenience_fee_append")
    going.step(action)
    assert going.record().success


def test_consent_must_come_before_the_booking(data, pose):
    task = pose(2, stage=2, drift=1, decoy=0, pattern_cab_surge_policy_tnc=1, language_en=1)
    told = Action("speak", message=f"Please note: {data.pattern('cab.surge_policy_tnc').tell['en']}.")

    def run(rebook):
        going = Errand(data, task)
        script, seen = baselines.drift_blind(going, None), going.start()
        while True:
            action = script(seen)
            if action.action_type == "submit":
                break
            seen = going.step(action)
        going.step(told)
        if rebook:
            ride = next(iter(going.vendors.bookings))
            going.step(Action("tool_call", "cab.cancel", {"ride_id": ride}))
            booking = next(turn.action for turn in going.turns if turn.action.tool_name == "cab.book")
            going.step(booking)
        going.step(Action("submit", confidence=1.0))
        return going.record().success

    assert [run(False), run(True)] == [False, True]


def oracle_then(data, task, *extra):
    """The oracle's errand with further actions before its end."""
    going = Errand(data, task)
    script, seen = baselines.oracle(going, None), going.start()
    action = script(seen)
    while action.action_type != "submit":
        seen = going.step(action)
        action = script(seen)
    for make in extra:
        going.step(make(going))
    going.step(action)
    return going.record()


def test_only_the_state_that_was_wanted_is_a_success(data, pose):
    task = pose(4, stage=1, domain_airline=1, language_en=1)

    def token(going):
        return next(iter(going.vendors.payments.tokens))

    def charge(going):
        return Action("tool_call", "payment.charge", {"amount_inr": 50, "payment_token": token(going)})

    def refund(going):
        (name,) = [each.charge_id for each in going.vendors.payments.charges.values() if not each.booking_id]
        return Action("tool_call", "payment.refund", {"charge_id": name, "amount_inr": 50})

    def ride(going):
        trip = {"pickup": "mall", "drop": "station", "pickup_time_ist": "2026-05-20T10:00", "vehicle_class": "sedan"}
        return Action("tool_call", "cab.book", {**trip, "payment_token": token(going)})

    def cancel(going):
        return Action("tool_call", "airline.cancel", {"booking_id": next(iter(going.vendors.bookings))})

    task = task._replace(max_turns=16)
    assert oracle_then(data, task).success
    assert not oracle_then(data, task, charge).success
    assert oracle_then(data, task, charge, refund).success
    assert not oracle_then(data, task, ride).success
    assert not oracle_then(data, task, cancel).success
    assert oracle_then(data, task, cancel).satisfied == ()


def test_users_may_go_on_in_another_language(data, pose):
    task = next(task for seed in range(80) if (task := pose(seed, stage=3)).switch)
    going = Errand(data, task)
    first = going.start().language
    seen = going.step(Action("clarify", message="?"))
    assert first != seen.language == task.switch
    assert seen.user
