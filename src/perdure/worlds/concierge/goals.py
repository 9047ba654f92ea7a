"""Goals: a template's slots and constraints drawn so that the drifts of the task decide what is right."""

import datetime
import functools
from collections.abc import Mapping
from typing import Any

from perdure.worlds.concierge import judge, offers, phrases
from perdure.worlds.concierge.catalogue import Catalogue, Pattern
from perdure.worlds.concierge.chance import Draws
from perdure.worlds.concierge.contract import Contract
from perdure.worlds.concierge.judge import Choice
from perdure.worlds.concierge.offers import Listing
from perdure.worlds.concierge.records import Constraint, Goal
from perdure.worlds.concierge.settings import Settings, has

WITHHELD = 0.25
"""Probability that a user of stage 2 or 3 does not tell the budget unasked."""
_NO_LIMIT = 10**9
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


def drawn(
    catalogue: Catalogue,
    domain: str,
    settings: Settings,
    versions: Mapping[str, int],
    drifts: tuple[Pattern, ...],
    seed: int,
    now: str,
    language: str,
    draws: Draws,
) -> tuple[Goal, dict[str, Listing]] | None:
    """A goal with the listings it is about, or None where this draw does not make the drifts matter."""
    spec = catalogue.domains[domain]
    needs = [_needs(pattern, draws) for pattern in drifts]
    templates = [
        each
        for each in spec["templates"]
        if each.get("min_stage", 1) <= settings.stage and has(settings.templates, each.get("held_out", False))
    ]
    if not templates:
        return None
    template = draws.choice(templates)
    slots = _slots(spec, template, needs, now, _places(catalogue, settings.places), draws)
    search = next(tool for tool in spec["tools"].values() if tool["kind"] == "search")
    keys, request = _split(search, spec, slots)
    constraints = _constraints(spec, template, needs, slots, draws)
    asked = [need["prefer"] for need in needs if "prefer" in need]
    preferences = [each for each in asked[0] if all(each in other for other in asked)] if asked else template["prefer"]
    fact, order = _preference(draws.choice(preferences))
    goal = Goal(
        domain,
        template["id"],
        template["id"],
        keys,
        request,
        constraints,
        (fact, order),
        language,
        "",
        (),
        _secrets(draws),
    )
    planted = {
        offers.listing_key(domain, each): offers.listing(
            spec["offers"], domain, seed, {**each, "#": draws.below(1 << 30)}, settings.most_offers
        )
        for each in keys
    }
    stages = _contracts(catalogue, domain, versions, drifts)
    goal = _with_budget(goal, planted, stages, drifts, now, draws)
    if goal is None:
        return None
    return _told(catalogue, goal, template, slots, settings, now, draws), planted


def _needs(pattern: Pattern, draws: Draws) -> Mapping[str, Any]:
    """What a pattern asks of the goal, one of its alternatives chosen."""
    return {**pattern.needs, **draws.choice(pattern.needs.get("either", [{}]))}


def _preference(text: str) -> tuple[str, str]:
    order, _, fact = text.partition(":")
    return fact, order


def _secrets(draws: Draws) -> dict[str, str]:
    """What only the user knows: a GSTIN of the right form and a one-time code."""
    name = "".join(draws.choice(_LETTERS) for _ in range(5))
    gst = f"{draws.between(10, 37)}{name}{draws.between(1000, 9999)}{draws.choice(_LETTERS)}1Z{draws.below(10)}"
    return {"gst_number": gst, "mfa_code": f"{draws.between(100000, 999999)}"}


def _slots(
    spec: Any, template: Any, needs: Any, now: str, places: Mapping[str, list[str]], draws: Draws
) -> dict[str, Any]:
    """A value for each slot of the domain; a list where several will do."""
    today = datetime.date.fromisoformat(now[:10])
    fixed = {**template.get("slots", {})}
    for need in needs:
        fixed |= need.get("slots", {})
    slots: dict[str, Any] = {}
    for name, drawn_as in spec["slots"].items():
        drawn_as = {**drawn_as, **fixed.get(name, {})}
        slots[name] = _slot(drawn_as, slots, today, places, draws)
    if any(need.get("setting") == "same_day" for need in needs):
        slots["date"] = [today.isoformat(), (today + datetime.timedelta(days=1)).isoformat()]
    for need in needs:
        slots |= need.get("request", {})
    return slots


def _slot(
    drawn_as: Mapping[str, Any], slots: Mapping[str, Any], today: datetime.date, places: Any, draws: Draws
) -> Any:
    kind = drawn_as["type"]
    if "choice" in drawn_as and kind != "moment":
        allowed = [value for value in drawn_as["choice"] if value in places.get(kind, (value,))]
        return draws.choice(allowed or drawn_as["choice"])
    if kind == "date":
        after = datetime.date.fromisoformat(slots[drawn_as["after"]]) if "after" in drawn_as else today
        return (after + datetime.timedelta(days=draws.between(*drawn_as["days"]))).isoformat()
    if kind == "moment":
        day = today + datetime.timedelta(days=draws.between(*drawn_as["days"]))
        return f"{day.isoformat()}T{draws.choice(drawn_as['choice']):02d}:{15 * draws.below(4):02d}"
    if kind == "items":
        dish = draws.choice(drawn_as["dishes"])
        return ((dish, draws.between(*drawn_as["count"])),)
    others = {slots.get(drawn_as.get("other_than", ""))}
    return draws.choice([code for code in places[kind] if code not in others])


@functools.lru_cache(maxsize=16)
def _places(catalogue: Catalogue, choice: int) -> dict[str, list[str]]:
    """Kind -> the places that tasks may have to do with; all of a kind of which none is held out."""
    return {
        kind: [code for code in codes if has(choice, code in held_out)] if held_out else codes
        for kind, codes in catalogue.words["places"].items()
        for held_out in (catalogue.held_out_places(kind),)
    }


def _split(search: Any, spec: Any, slots: Mapping[str, Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """Slots as the keys of listings (one for each value of a slot that has several) and as the request."""
    names = [name for name in search["keys"] if name in slots]
    keys: list[dict[str, Any]] = [{}]
    for name in names:
        values = slots[name] if isinstance(slots[name], list) else [slots[name]]
        keys = [{**each, name: value} for each in keys for value in values]
    skipped = {*names, *spec.get("unrequested", ())}
    request = {name: value for name, value in slots.items() if name not in skipped and value != ""}
    return tuple(keys), request


def _constraints(spec: Any, template: Any, needs: Any, slots: Any, draws: Draws) -> tuple[Constraint, ...]:
    """The template's constraints and those the drifts need; a planted one waits for its value."""
    names = list(template["constraints"])
    forced = {need["constraint"]: need.get("values") for need in needs if "constraint" in need}
    names += [name for name in forced if name not in names]
    made: list[Constraint] = []
    for name in names:
        described = spec["constraints"][name]
        values = forced.get(name) or described.get("choice", [0])
        made.append(Constraint(name, described["fact"], described["test"], draws.choice(values)))
    return tuple(made)


def _contracts(
    catalogue: Catalogue, domain: str, versions: Mapping[str, int], drifts: tuple[Pattern, ...]
) -> list[Contract]:
    """The vendor's contract before the drifts and after each of them that is its own."""
    own: tuple[str, ...] = ()
    found = [catalogue.contract(domain, versions.get(domain, 1))]
    for pattern in drifts:
        if pattern.domain == domain:
            own = (*own, pattern.id)
            found.append(catalogue.contract(domain, versions.get(domain, 1), own))
    return found


def _with_budget(
    goal: Goal, planted: Any, stages: list[Contract], drifts: tuple[Pattern, ...], now: str, draws: Draws
) -> Goal | None:
    """The goal with a budget under which each contract has a best offer, and those that must differ do."""
    least = max((pattern.needs.get("total_above", 0) for pattern in drifts), default=0)
    own = [pattern for pattern in drifts if pattern.domain == goal.domain]
    choosing = [
        pattern.needs.get("choice", pattern.type in ("pricing", "tnc") and not pattern.consent) for pattern in own
    ]
    needs_budget = any(pattern.type == "pricing" for pattern in own) or any(
        pattern.needs.get("budget") for pattern in own
    )
    position = next((index for index, each in enumerate(goal.constraints) if each.name == "budget"), None)
    if position is None and needs_budget:
        goal = goal._replace(constraints=(*goal.constraints, Constraint("budget", "total", "at_most", 0)))
        position = len(goal.constraints) - 1
    bare = goal if position is None else _set_budget(goal, position, _NO_LIMIT)
    good: list[list[Choice]] = []
    for contract in stages:
        good.append(_acceptable(bare, planted, contract, now))
        if not good[-1] and len(good) in (1, len(stages)):
            return None
    ranked = [_ranked(goal, offered) for offered in good]
    for budget in _budgets(good, draws) if position is not None else [_NO_LIMIT]:
        bests = [next((choice for choice in offered if choice.facts["total"] <= budget), None) for offered in ranked]
        if bests[0] is None or bests[-1] is None or bests[-1].facts["total"] <= least:
            continue
        named = [None if best is None else (best.offer["index"], best.keys) for best in bests]
        if all(named[index] != named[index + 1] for index, must in enumerate(choosing) if must):
            return goal if position is None else _set_budget(goal, position, budget)
    return None


def _acceptable(goal: Goal, planted: Any, contract: Contract, now: str) -> list[Choice]:
    """What will do under a contract, in the order of the listings."""
    return [
        each
        for keys in goal.keys
        for each in judge.candidates(contract, planted[offers.listing_key(goal.domain, keys)], keys, goal)
        if judge.acceptable(contract, each, goal, now)
    ]


def _ranked(goal: Goal, choices: list[Choice]) -> list[Choice]:
    """Choices with the preferred one first; equals stay in their order."""
    fact, order = goal.prefer
    return sorted(choices, key=lambda choice: choice.facts[fact], reverse=order == "highest")


def _budgets(choices: Any, draws: Draws) -> list[int]:
    """Round numbers just above what offers cost under one contract or another, in random order."""
    totals = {choice.facts["total"] for offered in choices for choice in offered}
    limits = sorted({-(-(total + draws.choice((0, 20, 60))) // 10) * 10 for total in totals})
    return draws.sample(limits, len(limits))


def _set_budget(goal: Goal, position: int, budget: int) -> Goal:
    constraints = list(goal.constraints)
    constraints[position] = constraints[position]._replace(value=budget)
    return goal._replace(constraints=tuple(constraints))


def _told(
    catalogue: Catalogue, goal: Goal, template: Any, slots: Any, settings: Settings, now: str, draws: Draws
) -> Goal:
    """The goal with its utterance; some budgets are left for the agent to ask for."""
    names = [each.name for each in goal.constraints]
    withheld = ("budget",) if settings.stage > 1 and "budget" in names and draws.happens(WITHHELD) else ()
    speaker = phrases.Speaker(catalogue, goal.domain, goal.language, now, draws, near_days=settings.near_days)
    told = [each for each in goal.constraints if each.name not in withheld]
    prefer = f"{goal.prefer[1]}:{goal.prefer[0]}"
    return goal._replace(utterance=speaker.utterance(template, slots, told, prefer), withheld=withheld)
