"""Tasks: a goal, what vendors have on offer, and drifts, drawn from a seed and proven to be worth posing.

A task is kept only if it is solvable after its drifts and unsolved by the drift-blind script, both shown
by playing it; else the next attempt of the same seed is drawn. So every drift is exposed and matters.
"""

import datetime
import functools
from collections import Counter
from collections.abc import Iterable

from perdure.core.errors import ConfigError
from perdure.worlds.concierge import goals, proof
from perdure.worlds.concierge.catalogue import PAYMENT, PUBLISHED, Catalogue, Pattern
from perdure.worlds.concierge.chance import Draws
from perdure.worlds.concierge.errand import Task
from perdure.worlds.concierge.records import MAX_TURNS
from perdure.worlds.concierge.settings import Settings, usable

MOST_ATTEMPTS = 400
MOST_LISTED = 4
SAME_DRIFTS = 40
"""Attempts with the same drifts before others are drawn."""
FIRST_DAY = datetime.date(2026, 4, 25)
DAYS = 60
"""Errands happen on one of so many days from FIRST_DAY on."""
SECOND_AT_HOME = 0.8
"""Probability that the second drift is the goal's vendor's too, where both could be."""
NO_GOAL = "no offer fulfils the wishes, or no budget makes the drifts decide"
HARMLESS = "Our app will be down for maintenance at 03:00 tonight."

STAGE_BASE = {1: 1_000_000, 2: 2_000_000, 3: 3_000_000}
"""First seed of a stage's training split."""
VALIDATION = range(20_000_000, 20_000_500)
"""Seeds of the validation split: the first 50 evaluate, the next 200 probe."""


@functools.lru_cache(maxsize=256)
def generated(catalogue: Catalogue, seed: int, settings: Settings) -> Task:
    """The task of a seed; equal arguments give equal tasks in every process.

    Raises ConfigError where no attempt gives a task, since the settings then leave nothing to pose.
    """
    drifts: tuple[Pattern, ...] = ()
    reasons: Counter[str] = Counter()
    for attempt in range(MOST_ATTEMPTS):
        if attempt % SAME_DRIFTS == 0:
            drifts = _drifts(catalogue, settings, Draws(seed, "drifts", attempt // SAME_DRIFTS))
        task = _drawn(catalogue, seed, settings, drifts, Draws(seed, "task", attempt))
        oracle = NO_GOAL if task is None else proof.solution(catalogue, task)
        if task is None or isinstance(oracle, str):
            reasons[str(oracle)] += 1
        elif len(oracle) > (settings.most_turns or task.max_turns - 1):
            reasons["the oracle takes too many turns"] += 1
        else:
            return task._replace(oracle_turns=len(oracle), oracle=oracle)
    active = settings.patterns if settings.stage > 1 and settings.drift else ()
    names = [one for name in active for one in dict(settings.spread).get(name, (name,))]
    (reason, times), *_ = reasons.most_common(1)
    raise ConfigError(
        f"no task worth posing was found in {MOST_ATTEMPTS} attempts (seed {seed}, stage {settings.stage}, vendors "
        f"{_listed(name for name, _ in settings.domains)}, patterns {_listed(names) or 'none'}): in {times} of them "
        f"{reason}; mend that, or allow other patterns or vendors, or bring severity nearer to 1"
    )


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:MOST_LISTED]) + (" and others" if len(found) > MOST_LISTED else "")


@functools.lru_cache(maxsize=64)
def check(catalogue: Catalogue, settings: Settings) -> None:
    """Raise ConfigError where settings leave nothing to pose: their first task, with drifts if they have any.

    Of vendors that are none of the package's each is asked for one, without drifts and by each pattern of its own
    that can come first, since a fault of theirs would not show among others: those would be posed instead.
    """
    whole = settings._replace(drift=float(settings.drift > 0))
    generated(catalogue, VALIDATION[0], whole)
    for name, weight in settings.domains:
        if name in PUBLISHED:
            continue
        alone = whole._replace(domains=((name, weight),))
        generated(catalogue, VALIDATION[0], alone._replace(drift=0.0))
        for pattern in usable(catalogue, alone) if settings.stage > 1 and settings.drift else ():
            if pattern.domain == name:
                generated(catalogue, VALIDATION[0], alone._replace(patterns=(pattern.id,)))


def _drifts(catalogue: Catalogue, settings: Settings, draws: Draws) -> tuple[Pattern, ...]:
    """The drifts of a task, in order; none in stage 1 and in some tasks of the others."""
    if settings.stage == 1 or not draws.happens(settings.drift):
        return ()
    possible = usable(catalogue, settings)
    if not possible:
        raise ConfigError(
            f"no pattern of {_listed(settings.patterns)} can drift from the start versions of this regime; lower its "
            "version_..., or name other patterns"
        )
    first = draws.choice(possible)
    drifts = (first,) if settings.stage == 2 else (first, *_second(catalogue, settings, first, possible, draws))
    spread = dict(settings.spread)
    return tuple(catalogue.pattern(draws.choice(spread[each.id])) if each.id in spread else each for each in drifts)


def _second(catalogue: Catalogue, settings: Settings, first: Pattern, possible: tuple[Pattern, ...], draws: Draws):
    """A drift that can follow: the vendor's next version, or one of payment's; () where nothing can."""
    homes = _homes(catalogue, settings, (first,))
    if not homes:
        return ()
    home = draws.weighted(homes)
    after = first.to_version if first.domain == home else None
    at_home = [
        pattern
        for pattern in map(catalogue.pattern, settings.patterns)
        if pattern.domain == home
        and pattern.id != first.id
        and not pattern.family
        and _compatible(first, pattern)
        and (pattern.from_version == after or (after is None and pattern in possible))
    ]
    away = [
        pattern
        for pattern in possible
        if pattern.domain == PAYMENT and first.domain != PAYMENT and _affordable(catalogue, home, pattern)
    ]
    if at_home and (not away or draws.happens(SECOND_AT_HOME)):
        return (draws.choice(at_home),)
    return (draws.choice(away),) if away else ()


def _compatible(first: Pattern, second: Pattern) -> bool:
    """Whether one goal can make both matter."""
    if first.id.partition("@")[0] in second.needs.get("not_after", ()):
        return False
    wanted = [set(pattern.needs["prefer"]) for pattern in (first, second) if "prefer" in pattern.needs]
    return len(wanted) < 2 or bool(wanted[0] & wanted[1])


def _affordable(catalogue: Catalogue, domain: str, pattern: Pattern) -> bool:
    """Whether a vendor's totals can be as high as a drift needs."""
    return pattern.needs.get("total_above", 0) < catalogue.domains[domain].get("most_total", 10**9)


def _homes(catalogue: Catalogue, settings: Settings, drifts: tuple[Pattern, ...]) -> dict[str, float]:
    """Vendors the goal may be about."""
    own = {pattern.domain for pattern in drifts if pattern.domain != PAYMENT}
    return {
        name: weight
        for name, weight in settings.domains
        if (not own or name in own) and all(_affordable(catalogue, name, pattern) for pattern in drifts)
    }


def _drawn(
    catalogue: Catalogue, seed: int, settings: Settings, drifts: tuple[Pattern, ...], draws: Draws
) -> Task | None:
    """One attempt: None where no budget makes the drifts matter."""
    homes = _homes(catalogue, settings, drifts)
    if not homes:
        return None
    domain = draws.weighted(homes)
    versions = dict(settings.versions)
    for pattern in reversed(drifts):
        versions[pattern.domain] = pattern.from_version
    language = draws.weighted(dict(settings.languages))
    now = _clock(drifts, draws)
    made = goals.drawn(catalogue, domain, settings, versions, drifts, seed, now, language, draws)
    if made is None:
        return None
    goal, planted = made
    failing, notices = _decoys(settings, domain, draws)
    others = [name for name, weight in settings.languages if weight and name != language]
    switch = draws.choice(others) if settings.stage == 3 and others and draws.happens(0.25) else ""
    return Task(
        seed,
        settings.stage,
        goal,
        now,
        versions,
        planted,
        tuple(pattern.id for pattern in drifts),
        failing,
        notices,
        switch,
        settings.most_offers,
        MAX_TURNS[settings.stage],
        lead=settings.lead,
    )


def _clock(drifts: tuple[Pattern, ...], draws: Draws) -> str:
    """A moment of the errand: late enough in the day where a same-day rule is to bite."""
    day = FIRST_DAY + datetime.timedelta(days=draws.below(DAYS))
    late = any(pattern.needs.get("setting") == "same_day" for pattern in drifts)
    hour = draws.between(14, 17) if late else draws.between(6, 17)
    return f"{day.isoformat()}T{hour:02d}:{5 * draws.below(12):02d}"


def _decoys(settings: Settings, domain: str, draws: Draws) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Things that look like drift and are none: a timeout of the first booking, a notice of no consequence."""
    if settings.stage == 1:
        return (), ()
    failing = ("book",) if draws.happens(settings.decoy) else ()
    notices = ((domain, HARMLESS),) if draws.happens(settings.decoy) else ()
    return failing, notices
