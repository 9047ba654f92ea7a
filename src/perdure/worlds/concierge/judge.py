"""What an offer amounts to under a contract, whether the vendor would sell it, and which one the user wants.

Vendors, scoring, task generation and scripts all ask here, so they cannot disagree.
"""

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from perdure.worlds.concierge.contract import Contract
from perdure.worlds.concierge.records import Constraint, Goal

Facts = dict[str, Any]
Offer = Mapping[str, Any]

WINDOWS = {"morning": (5, 12), "afternoon": (12, 17), "evening": (17, 21), "night": (21, 24)}
"""Part of the day -> hours [begin, end)."""


class Refusal(NamedTuple):
    """Why a vendor would not sell."""

    status: str
    code: str
    extras: Mapping[str, Any]


ANYWHERE = (
    "UNKNOWN_FIELD",
    "MISSING_FIELD",
    "TYPE_MISMATCH",
    "INVALID_ITEMS_SHAPE",
    "UNKNOWN_ID",
    "QUOTE_EXPIRED",
    "DUPLICATE_BOOKING",
    "ALREADY_CANCELLED",
    "TOKEN_INVALID",
    "MFA_REQUIRED",
    "PAYMENT_AUTH_FAILED",
    "AUTH_SCOPE_INSUFFICIENT",
    "DUPLICATE_CHARGE",
    "REFUND_TOO_LARGE",
    "TIMEOUT",
)
"""Error codes that vendors answer with whatever their files say; others stand in the files."""


class Choice(NamedTuple):
    """An offer that will do, as it would be booked."""

    offer: Offer
    keys: Mapping[str, Any]
    request: Mapping[str, Any]
    facts: Facts


def facts(contract: Contract, offer: Offer, request: Mapping[str, Any]) -> Facts:
    """Everything that is true of an offer for this request: its attributes, terms, `quote` and `total` in rupees."""
    known = {**offer, **request}
    for attribute, term in contract.derived.items():
        if known.get(attribute, -1) == -1:
            known[attribute] = contract.terms[term]
    if "checkin" in request and "checkout" in request:
        known["nights"] = nights(request["checkin"], request["checkout"])
        known["early"] = request.get("arrival_time", "14:00") < "12:00"
    if "menu" in offer:
        _add_basket(contract, known)
    _add_price(contract, known)
    return known


def nights(checkin: str, checkout: str) -> int:
    """Nights between two ISO dates; negative where they are reversed."""
    return (datetime.date.fromisoformat(checkout) - datetime.date.fromisoformat(checkin)).days


def refusal(contract: Contract, known: Facts, now: str) -> Refusal | None:
    """The first policy that forbids this sale at `now` (ISO, to the minute), or None."""
    for policy in contract.policies:
        rule = RULES.get(policy["kind"])
        extras = rule(policy, known, now) if rule is not None else None
        if extras is not None:
            return Refusal("policy_error", policy["code"], extras)
    return None


def holds(constraint: Constraint, known: Facts) -> bool:
    """Whether a constraint is fulfilled; a fact that does not exist fulfils nothing."""
    if constraint.fact not in known:
        return False
    return TESTS[constraint.test](known[constraint.fact], constraint.value)


def candidates(contract: Contract, listing: Iterable[Offer], keys: Mapping[str, Any], goal: Goal) -> list[Choice]:
    """The offers of a listing as the goal would book them; an order too small is filled up with what was asked for."""
    found: list[Choice] = []
    for offer in listing:
        request = goal.request
        if "menu" in offer and "items" in request:
            request = _filled(contract, offer, request)
        found.append(Choice(offer, keys, request, facts(contract, offer, request)))
    return found


def acceptable(contract: Contract, choice: Choice, goal: Goal, now: str) -> bool:
    """Whether the vendor sells it and every constraint holds."""
    known = choice.facts
    return all(holds(each, known) for each in goal.constraints) and refusal(contract, known, now) is None


def best(contract: Contract, choices: Iterable[Choice], goal: Goal, now: str) -> Choice | None:
    """The acceptable choice that the user prefers; the first of equals, None where nothing will do."""
    fact, order = goal.prefer
    good = [choice for choice in choices if acceptable(contract, choice, goal, now) and fact in choice.facts]
    if not good:
        return None
    rank = max if order == "highest" else min
    return rank(good, key=lambda choice: choice.facts[fact])


def rounded(numerator: int, denominator: int) -> int:
    """A quotient of non-negative whole numbers, half up."""
    return (2 * numerator + denominator) // (2 * denominator)


def _add_price(contract: Contract, known: Facts) -> None:
    quote = total = 0
    breakdown: dict[str, int] = {}
    for name, of, amount, percent, per, condition, exception, quoted in contract.pricing:
        if (condition and not known.get(condition)) or (exception and known.get(exception)):
            continue
        if of == "sum":
            amount = total
        elif of:
            if of not in known:
                continue
            amount = known[of]
        if percent is not None:
            amount = rounded(amount * percent, 100)
        if per:
            amount *= known.get(per, 1)
        breakdown[name] = amount
        total += amount
        if quoted:
            quote += amount
    known["quote"], known["total"] = quote, total
    known["breakdown"] = breakdown


def _add_basket(contract: Contract, known: Facts) -> None:
    """The menu as the contract lets this kitchen serve it, and what the items come to."""
    menu = known["menu"]
    if known.get("pure_veg") and not contract.terms.get("veg_kitchens_serve_egg", True):
        menu = tuple(dish for dish in menu if dish[1] != "egg")
    prices = {dish[0]: dish[2] for dish in menu}
    known["menu_shown"] = [{"dish_id": dish, "diet": diet, "price_inr": price} for dish, diet, price in menu]
    known["least_price"] = min((dish[2] for dish in menu), default=0)
    known["serves_egg"] = any(dish[1] == "egg" for dish in menu)
    items = known.get("items", ())
    known["order_lines"] = [{"dish_id": dish, "qty": count, "modifiers": []} for dish, count in items]
    known["missing"] = [dish for dish, _ in items if dish not in prices]
    known["subtotal"] = sum(prices.get(dish, 0) * count for dish, count in items)


def _filled(contract: Contract, offer: Offer, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request with more of its first dish, where the contract asks for a larger order."""
    least = max((policy["amount"] for policy in contract.policies if policy["kind"] == "minimum"), default=0)
    prices = {dish[0]: dish[2] for dish in offer["menu"]}
    items = request["items"]
    if any(dish not in prices for dish, _ in items):
        return request
    lacking = least - sum(prices[dish] * count for dish, count in items)
    if lacking <= 0:
        return request
    (dish, count), *others = items
    return {**request, "items": ((dish, count - (-lacking // prices[dish])), *others)}


def _same_day(policy, known, now):
    closed = known.get("depart", "")[:10] == now[:10] and int(now[11:13]) >= policy["hour"]
    return {} if closed else None


def _offered(policy, known, now):
    refused = known.get(policy["attribute"]) not in policy["values"]
    return {"available": list(policy["values"])} if refused else None


def _hours(policy, known, now):
    hour = int(known.get(policy["of"], "T00")[11:13] or 0)
    refused = known.get(policy["attribute"]) == policy["value"] and policy["start"] <= hour < policy["end"]
    return {"available": list(policy["available"])} if refused else None


def _minimum(policy, known, now):
    if known["subtotal"] >= policy["amount"]:
        return None
    return {"min_order_inr": policy["amount"], "got_total_inr": known["subtotal"]}


def _menu(policy, known, now):
    return {"missing": known["missing"]} if known["missing"] else None


def _departed(policy, known, now):
    return {} if known.get("depart", now)[:16] < now else None


def _stay(policy, known, now):
    return {"field_name": "checkout"} if known["nights"] < 1 else None


RULES = {
    "departed": _departed,
    "stay": _stay,
    "same_day_after": _same_day,
    "offered": _offered,
    "hours_refused": _hours,
    "minimum": _minimum,
    "menu": _menu,
}
"""Kinds of policy that depend on the sale alone; `calls` in vendors holds those that depend on earlier calls."""

TESTS = {
    "at_most": lambda value, limit: value <= limit,
    "at_least": lambda value, limit: value >= limit,
    "equals": lambda value, wanted: value == wanted,
    "holds": lambda value, _: bool(value),
    "lacks": lambda value, _: not value,
    "window": lambda value, window: in_window(value, window),
}


def gone(contract: Contract, known: Facts, now: str) -> bool:
    """Whether an offer is over, so that no search shows it any more."""
    return any(
        policy["kind"] == "departed" and _departed(policy, known, now) is not None for policy in contract.policies
    )


def in_window(stamp: str, window: str) -> bool:
    """Whether an ISO time lies in a part of the day."""
    begin, end = WINDOWS[window]
    return begin <= int(stamp[11:13]) < end
