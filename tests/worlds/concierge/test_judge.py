import pytest

from perdure.worlds.concierge import judge
from perdure.worlds.concierge.records import Constraint, Goal

NOW = "2026-05-01T15:00"
OFFERS = [
    {"index": 0, "fare": 3000, "depart": "2026-05-01T18:00:00+05:30", "cabin_kg": -1, "reschedule_percent": -1},
    {"index": 1, "fare": 4000, "depart": "2026-05-01T20:00:00+05:30", "cabin_kg": 10, "reschedule_percent": 0},
    {"index": 2, "fare": 2000, "depart": "2026-05-01T09:00:00+05:30", "cabin_kg": 10, "reschedule_percent": 0},
]


def goal(*constraints, prefer=("fare", "lowest"), **request):
    return Goal("airline", "", "", ({},), request or {"passengers": 1}, constraints, prefer, "en", "", (), {})


def best(contract, posed):
    choice = judge.best(contract, judge.candidates(contract, OFFERS, {}, posed), posed, NOW)
    return None if choice is None else choice.offer["index"]


@pytest.mark.parametrize(
    ("numerator", "denominator", "rounded"), [(5, 2, 3), (4, 2, 2), (7, 5, 1), (8, 5, 2), (0, 3, 0)]
)
def test_rupees_are_rounded_half_up(numerator, denominator, rounded):
    assert judge.rounded(numerator, denominator) == rounded


def test_the_best_offer_is_the_preferred_one_of_those_that_will_do(data):
    contract = data.contract("airline", 1)
    assert best(contract, goal()) == 0, "the flight at nine has left"
    assert best(contract, goal(prefer=("depart", "highest"))) == 1
    assert best(contract, goal(Constraint("cabin_bag", "cabin_kg", "at_least", 8))) == 1
    assert best(contract, goal(Constraint("budget", "total", "at_most", 3000))) == 0
    assert best(contract, goal(Constraint("budget", "total", "at_most", 5999), passengers=2)) is None
    assert best(contract, goal(Constraint("x", "nothing", "at_most", 1))) is None


def test_a_term_stands_in_where_an_offer_is_silent_and_follows_the_drift(data):
    posed = goal(Constraint("cabin_bag", "cabin_kg", "at_least", 6))
    assert best(data.contract("airline", 1), posed) == 0
    assert best(data.contract("airline", 1, ("airline.baggage_tnc_rewrite",)), posed) == 1


def test_fees_count_in_the_total_and_not_in_the_quote(data):
    contract = data.contract("airline", 1, ("airline.convenience_fee_append",))
    known = judge.facts(contract, OFFERS[0], {"passengers": 2})
    assert (known["quote"], known["total"]) == (6000, 6199)
    assert known["breakdown"] == {"fare": 6000, "convenience_fee": 199}


def test_same_day_sales_close(data):
    contract = data.contract("airline", 1, ("airline.booking_window_shrink",))
    known = judge.facts(contract, OFFERS[0], {"passengers": 1})
    assert judge.refusal(contract, known, "2026-05-01T14:00").code == "BOOKING_WINDOW_CLOSED"
    assert judge.refusal(contract, known, "2026-05-01T13:59") is None
    assert judge.refusal(contract, known, "2026-04-30T23:00") is None


def test_an_order_too_small_is_filled_up_with_what_was_asked_for(data):
    kitchen = {
        "index": 0,
        "menu": (("dosa", "veg", 90),),
        "delivery": 20,
        "pure_veg": True,
        "rating": 80,
        "eta_min": 30,
    }
    posed = Goal("restaurant", "", "", ({},), {"items": (("dosa", 1),)}, (), ("rating", "highest"), "en", "", (), {})
    filled = {
        version: judge.candidates(data.contract("restaurant", version), [kitchen], {}, posed)[0] for version in (1, 2)
    }
    assert [dict(each.request["items"])["dosa"] for each in filled.values()] == [3, 4]
    assert [each.facts["total"] for each in filled.values()] == [290, 380]


@pytest.mark.parametrize(
    ("test", "value", "limit", "holds"),
    [
        ("at_most", 5, 5, True),
        ("at_most", 6, 5, False),
        ("at_least", 5, 5, True),
        ("at_least", 4, 5, False),
        ("equals", 0, 0, True),
        ("holds", True, 1, True),
        ("lacks", True, 1, False),
        ("window", "2026-05-01T11:59:00", "morning", True),
        ("window", "2026-05-01T12:00:00", "morning", False),
    ],
)
def test_constraints(test, value, limit, holds):
    assert judge.holds(Constraint("c", "fact", test, limit), {"fact": value}) is holds
