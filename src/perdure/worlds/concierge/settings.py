"""What a regime fixes for whole episodes: stage, languages, vendors, active drifts, start versions."""

import functools
import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from perdure.core.errors import ConfigError, nearest
from perdure.worlds.concierge.catalogue import PAYMENT, Catalogue, Pattern
from perdure.worlds.concierge.records import LANGUAGES, MAX_TURNS

MIXES = {
    1: {"en": 0.5, "hinglish": 0.3, "hi": 0.2, "ta": 0.0, "kn": 0.0},
    2: {"en": 0.3, "hinglish": 0.3, "hi": 0.2, "ta": 0.1, "kn": 0.1},
    3: {"en": 0.3, "hinglish": 0.3, "hi": 0.2, "ta": 0.1, "kn": 0.1},
}
"""Stage -> weights of the languages where a regime names none."""
TRAINED, HELD_OUT, BOTH = 0, 1, 2
"""Which templates, and which places, tasks may have."""
MOST_LEAD = 2
MOST_SEVERITY = 10.0
TERSE_OFFERS, TERSE_TURNS = 3, 10
TERSE_LANGUAGES = ("en", "hinglish")


class Settings(NamedTuple):
    """The distribution that tasks are drawn from."""

    stage: int = 1
    languages: tuple[tuple[str, float], ...] = ()
    domains: tuple[tuple[str, float], ...] = ()
    patterns: tuple[str, ...] = ()
    """Active patterns, in the catalogue's order."""
    versions: tuple[tuple[str, int], ...] = ()
    """Stock versions that vendors begin at, at least."""
    drift: float = 0.85
    """Share of episodes of stages 2 and 3 that drift."""
    decoy: float = 0.2
    """Probability of each decoy in stages 2 and 3."""
    most_offers: int = 0
    most_turns: int = 0
    """Turns the oracle may take at most; 0 for as many as the stage allows."""
    templates: int = TRAINED
    """Whether tasks are of the templates that are trained on, of those held out, or of both."""
    places: int = TRAINED
    """The same of cities and places."""
    lead: int = 0
    """Turns from the notice of a drift until it is in force; 0 for no notice before."""
    spread: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Patterns of which an errand has one with a number of its own: the active id and the ids it is drawn from."""
    near_days: bool = True
    """Whether users say today, tomorrow and this Friday; else every day is one of a month."""


def settings(catalogue: Catalogue, params: Mapping[str, float], terse: bool = False) -> Settings:
    """Settings from a regime's numbers.

    `stage` (1 to 3), `drift` and `decoy` (probabilities), `held_out` (0: the published twenty, 1: variants of
    theirs, with other fields or thresholds, 2: the further families, 3: all), `held_out_templates` and
    `held_out_places` (0: those trained on, 1: those held out, 2: both), `language_NAME`, `domain_NAME` and
    `pattern_DOMAIN_NAME` (weights; naming one leaves out those not named), `version_DOMAIN` (a stock version),
    `severity` and `severity_DOMAIN_NAME` (how many times as far as usual a drift moves its number), `severity_to`
    (with it each errand has a severity between the two, by tenths, but none that gives the number of a variant),
    `lead_time` (turns from the notice of a drift until it is in force). Raises ConfigError for anything else.
    """
    _refuse_values(params)
    stage = _whole(params, "stage", 1, 1, max(MAX_TURNS))
    held_out = _whole(params, "held_out", 0, 0, 3)
    allowed = TERSE_LANGUAGES if terse else LANGUAGES
    for name in LANGUAGES:
        if name not in allowed and params.get(f"language_{name}", 0) > 0:
            raise ConfigError(f"language_{name} is set, but terse users speak {' and '.join(allowed)}; leave it out")
    languages = _weights(params, "language", allowed)
    if not languages:
        languages = {name: weight for name, weight in MIXES[stage].items() if weight and name in allowed}
    domains = _weights(params, "domain", catalogue.consumers) or dict.fromkeys(catalogue.consumers, 1.0)
    templates, places = (_whole(params, f"held_out_{name}", TRAINED, TRAINED, BOTH) for name in ("templates", "places"))
    domains = {name: weight for name, weight in domains.items() if _has(catalogue, name, templates, places)}
    if not domains:
        raise ConfigError("no vendor of this regime has held-out templates or places; name another or leave them out")
    ids = {name.replace(".", "_", 1): name for name in catalogue.patterns}
    named = _weights(params, "pattern", tuple(ids))
    _refuse_unknown(catalogue, params, ids)
    active = [ids[name] for name in named] if named else _of_families(catalogue, held_out)
    active = [name for name in active if catalogue.pattern(name).domain in (*domains, PAYMENT)]
    if named and not active:
        raise ConfigError(
            f"no errand is about the vendor of {', '.join(f'pattern_{name}' for name in named)}: this regime has only "
            f"{', '.join(domains)}; name others, or give their vendor a weight (domain_...)"
        )
    spread = _spread(catalogue, params, active)
    versions = {name: _whole(params, f"version_{name}", 1, 1, catalogue.versions(name)) for name in catalogue.domains}
    return Settings(
        stage=stage,
        languages=tuple(sorted(languages.items())),
        domains=tuple(sorted(domains.items())),
        patterns=tuple(
            name if spread else _moved(catalogue, params, name) for name in catalogue.patterns if name in active
        ),
        versions=tuple(sorted(versions.items())),
        drift=_share(params, "drift", Settings().drift),
        decoy=_share(params, "decoy", 0.0 if terse else Settings().decoy),
        most_offers=TERSE_OFFERS if terse else 0,
        most_turns=TERSE_TURNS if terse else 0,
        templates=templates,
        places=places,
        lead=_whole(params, "lead_time", 0, 0, MOST_LEAD),
        spread=spread,
        near_days=not terse,
    )


def has(choice: int, held_out: bool) -> bool:
    """Whether a template or place that is `held_out` or not is among those of a choice."""
    return choice == BOTH or held_out == (choice == HELD_OUT)


@functools.lru_cache(maxsize=64)
def usable(catalogue: Catalogue, chosen: Settings) -> tuple[Pattern, ...]:
    """The active patterns that can be the first drift: their vendor begins no later than they need."""
    least = dict(chosen.versions)
    possible = map(catalogue.pattern, chosen.patterns)
    return tuple(each for each in possible if least.get(each.domain, 1) <= each.from_version)


def _of_families(catalogue: Catalogue, held_out: int) -> list[str]:
    kinds = {name: 2 if each.family else int(bool(each.variant_of)) for name, each in catalogue.patterns.items()}
    return [name for name, kind in kinds.items() if held_out in (kind, 3)]


def _has(catalogue: Catalogue, domain: str, templates: int, places: int) -> bool:
    """Whether a vendor has templates and places to pose tasks of; what is not held out at all counts as trained on."""
    spec = catalogue.domains[domain]
    kinds = {slot["type"] for slot in spec["slots"].values()}
    with_places = places != HELD_OUT or any(catalogue.held_out_places(kind) for kind in kinds)
    return with_places and any(has(templates, each.get("held_out", False)) for each in spec["templates"])


def _moved(catalogue: Catalogue, params: Mapping[str, float], pattern_id: str) -> str:
    """The pattern whose number is moved as far as the regime says; the id as it is where that is as far as usual."""
    own = f"severity_{pattern_id.replace('.', '_', 1)}"
    factor = float(params.get(own, params.get("severity", 1.0)))
    if catalogue.pattern(pattern_id).moved_from is None and own not in params:
        return pattern_id
    return catalogue.scaled(pattern_id, factor)


def _spread(
    catalogue: Catalogue, params: Mapping[str, float], active: Collection[str]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What each active pattern is drawn from under `severity_to`; () without it."""
    if "severity_to" not in params:
        return ()
    own = next((name for name in params if name.startswith("severity_") and name != "severity_to"), None)
    if own is not None:
        raise ConfigError(f"{own} stands beside severity_to, which spreads all severities; leave one of them out")
    low, high = float(params.get("severity", 1.0)), float(params["severity_to"])
    if low >= high:
        raise ConfigError(f"severity is {low:g} and severity_to {high:g}; the second must be greater")
    return tuple((name, catalogue.spread(name, low, high)) for name in catalogue.patterns if name in active)


def _weights(params: Mapping[str, float], prefix: str, names: tuple[str, ...]) -> dict[str, float]:
    found = {name: float(params[f"{prefix}_{name}"]) for name in names if f"{prefix}_{name}" in params}
    for name, weight in found.items():
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"{prefix}_{name} is {weight}; a weight is 0 or more")
    if found and not any(found.values()):
        raise ConfigError(f"all weights of {prefix}_... are 0; give one of them a positive weight")
    return {name: weight for name, weight in found.items() if weight > 0}


def _whole(params: Mapping[str, float], name: str, default: int, low: int, high: int) -> int:
    value = params.get(name, default)
    if value != int(value) or not low <= value <= high:
        raise ConfigError(f"{name} is {value}; give a whole number from {low} to {high}")
    return int(value)


def _refuse_values(params: Mapping[str, Any]) -> None:
    """Raise ConfigError for what is no finite number, and for a severity out of range, whatever it belongs to."""
    for name, value in params.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            raise ConfigError(f"{name} is {value!r}; a parameter of the concierge world is a finite number")
        if name.partition("_")[0] == "severity" and not 0 < value <= MOST_SEVERITY:
            raise ConfigError(f"{name} is {value}; give a factor above 0 and up to {MOST_SEVERITY:g}")


def _share(params: Mapping[str, float], name: str, default: float) -> float:
    value = float(params.get(name, default))
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value}; a probability lies between 0 and 1")
    return value


def _refuse_unknown(catalogue: Catalogue, params: Mapping[str, float], ids: Mapping[str, str]) -> None:
    known = {"stage", "held_out", "held_out_templates", "held_out_places", "drift", "decoy", "lead_time"}
    known |= {"severity", "severity_to"}
    known |= {f"language_{name}" for name in LANGUAGES} | {f"domain_{name}" for name in catalogue.consumers}
    known |= {f"version_{name}" for name in catalogue.domains}
    known |= {f"{prefix}_{name}" for prefix in ("pattern", "severity") for name in ids}
    for name in params:
        if name not in known:
            raise ConfigError(f"{name} is no parameter of the concierge world; {nearest(name, known)}")
