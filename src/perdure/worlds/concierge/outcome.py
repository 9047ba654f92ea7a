"""Whether the state that an errand leaves behind is what the user wanted."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure.worlds.concierge import judge
from perdure.worlds.concierge.catalogue import Catalogue
from perdure.worlds.concierge.judge import Choice
from perdure.worlds.concierge.records import Booking, Goal


class Outcome(NamedTuple):
    """The judgement of a final state."""

    success: bool
    satisfied: tuple[bool, ...]
    """Of each constraint, for the last standing booking of the goal's vendor; empty without one."""
    fitting: tuple[int, ...]
    """Turns of bookings, cancelled or not, that fulfil every constraint under the contract they were made by."""


def judged(catalogue: Catalogue, vendors: Any, task: Any, told: Mapping[str, int], submitted: bool) -> Outcome:
    """Success asks for one standing booking, the right one by the contract it was made under, and no stray charge."""
    goal: Goal = task.goal
    own = [booking for booking in vendors.bookings.values() if booking.domain == goal.domain]
    tests = {booking.booking_id: _tests(catalogue, task, booking) for booking in own}
    fitting = tuple(booking.turn for booking in own if all(tests[booking.booking_id]))
    standing = vendors.standing()
    wanted = [booking for booking in standing if booking.domain == goal.domain]
    if not wanted:
        return Outcome(False, (), fitting)
    booking = wanted[-1]
    satisfied = tests[booking.booking_id]
    stray = any(
        not charge.booking_id and charge.refunded < charge.amount for charge in vendors.payments.charges.values()
    )
    right = submitted and len(standing) == 1 and not stray and all(satisfied)
    right = right and asked_for(goal, booking) and _consented(catalogue, booking, told)
    if right:
        contract = catalogue.contract(goal.domain, task.versions.get(goal.domain, 1), booking.patterns)
        offers = best_of(vendors, contract, goal)
        right = offers is not None and (offers.offer["index"], offers.keys) == (booking.offer["index"], booking.keys)
    return Outcome(right, satisfied, fitting)


def _tests(catalogue: Catalogue, task: Any, booking: Booking) -> tuple[bool, ...]:
    contract = catalogue.contract(booking.domain, task.versions.get(booking.domain, 1), booking.patterns)
    known = judge.facts(contract, booking.offer, booking.request) | {"total": booking.total}
    return tuple(judge.holds(each, known) for each in task.goal.constraints)


def best_of(vendors: Any, contract: Any, goal: Goal) -> Choice | None:
    """The offer that the user wants under a contract, among all listings that will do."""
    choices = [
        choice
        for keys in goal.keys
        for choice in judge.candidates(contract, vendors.listing(goal.domain, keys), keys, goal)
    ]
    return judge.best(contract, choices, goal, vendors.now)


def asked_for(goal: Goal, booking: Booking) -> bool:
    """Whether it was booked as asked: where, when, for how many; of dishes at least those."""
    if dict(booking.keys) not in [dict(keys) for keys in goal.keys]:
        return False
    if booking.request.get("gst_number", goal.secrets["gst_number"]) != goal.secrets["gst_number"]:
        return False
    for name, value in goal.request.items():
        given = booking.request.get(name)
        if name == "items":
            ordered = dict(given or ())
            if any(ordered.get(dish, 0) < count for dish, count in value):
                return False
        elif given != value:
            return False
    return True


def _consented(catalogue: Catalogue, booking: Booking, told: Mapping[str, int]) -> bool:
    """Whether the user was told, before the booking, of every change that needs consent."""
    needed = [name for name in booking.patterns if catalogue.pattern(name).consent]
    return all(name in told and told[name] < booking.turn for name in needed)
