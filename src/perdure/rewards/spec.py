"""A reward as a weighted sum of named components: read from a document, checked, and computed.

Everything that runs per step takes the array module `xp` and keeps no state of its own, so the same
specification serves one host environment and a compiled loop over many lanes.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.core import registry
from perdure.core.component import component, make
from perdure.core.errors import ConfigError, nearest
from perdure.rewards.component import Bounds, RewardComponent
from perdure.rewards.component import clip as hold
from perdure.rewards.reading import ALWAYS


class Term(NamedTuple):
    """One component of a reward."""

    name: str
    """Under which its contribution is reported; unique in a specification."""
    weight: float
    component: RewardComponent


class RewardStep(NamedTuple):
    """What one step of a specification gives."""

    memory: tuple[Any, ...]
    """One entry for each term."""
    reward: Any
    """The sum of the contributions, clipped where the specification says so."""
    contributions: Mapping[str, Any]
    """Term name -> weight times raw value; zero for an episode term within an episode."""
    raw: Mapping[str, Any]
    """Term name -> unweighted value."""


@component
class Entry:
    """One entry of a document's `components`."""

    name: str
    """A registered component (`perdure list rewards`)."""
    weight: float = 1.0
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    label: str | None = None
    """How the contribution is reported, where one component stands twice; its name by default."""


@component
class Document:
    """The reward section of a document."""

    components: tuple[Entry, ...]
    clip: tuple[float, float] | None = None
    """Lowest and highest reward of a step; contributions are reported before clipping."""
    regime_overrides: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """Regime id -> component label -> weight there: objectives that shift."""


class RewardSpec(NamedTuple):
    """A checked reward."""

    terms: tuple[Term, ...]
    clip: tuple[float, float] | None = None
    overrides: Mapping[str, Mapping[str, float]] = {}

    @classmethod
    def from_document(cls, section: Mapping[str, Any] | None, place: str = "reward") -> "RewardSpec":
        """Read the mapping with `components`, and optionally `clip` and `regime_overrides`.

        Raises ConfigError naming `place` and the key for a section without components, an unknown
        name, label or field, a clip range that is empty, and a reward that reads nothing of its world.
        """
        if not section or not section.get("components"):
            raise ConfigError(
                f"{place} names no components; list some, or remove the section to keep the world's reward"
            )
        document = make(Document, section, place)
        terms = tuple(
            _term(entry, f"{place}.components[{position}]") for position, entry in enumerate(document.components)
        )
        labels = [term.name for term in terms]
        for position, label in enumerate(labels):
            if label in labels[:position]:
                raise ConfigError(f"{place}.components[{position}] is a second {label!r}; give it a label of its own")
        if document.clip is not None and not document.clip[0] < document.clip[1]:
            raise ConfigError(f"{place}.clip is {list(document.clip)}; the first must be the lesser")
        for regime, weights in document.regime_overrides.items():
            for label in weights:
                if label not in labels:
                    hint = nearest(label, labels)
                    raise ConfigError(
                        f"{place}.regime_overrides.{regime}.{label} is no component of this reward; {hint}"
                    )
        spec = cls(terms, document.clip, document.regime_overrides)
        _refuse_blind(spec, place)
        return spec

    def weights(self, regime_id: str | None = None, origin: str | None = None) -> tuple[float, ...]:
        """The weight of each term under a regime; overrides of its id go before those of its origin."""
        own = self.overrides.get(regime_id or "", self.overrides.get(origin or "", {}))
        return tuple(own.get(term.name, term.weight) for term in self.terms)

    def bounds(self, regime_id: str | None = None, origin: str | None = None) -> Bounds:
        """Lowest and highest reward that can be earned on every step under a regime; None where unknown.

        Terms that cannot be earned on every step (episode scope, exploration) are left out, so that
        the upper bound is the sum of what the others give at best.
        """
        low: float | None = 0.0
        high: float | None = 0.0
        for term, weight in zip(self.terms, self.weights(regime_id, origin), strict=True):
            if weight == 0 or term.component.scope == "episode" or not term.component.sustained:
                continue
            ends = term.component.bounds() if weight > 0 else term.component.bounds()[::-1]
            low = None if low is None or ends[0] is None else low + weight * ends[0]
            high = None if high is None or ends[1] is None else high + weight * ends[1]
        return _clip_bounds(low, high, self.clip)

    def start(self, xp: Any, info: Mapping[str, Any]) -> tuple[Any, ...]:
        """The memories at the start of an episode, from the info of the reset."""
        return tuple(term.component.start(xp, info) for term in self.terms)

    def step(
        self, xp: Any, memory: tuple[Any, ...], action: Any, info: Mapping[str, Any], weights: Sequence[Any] | Any
    ) -> RewardStep:
        """The reward of a step whose info is `info`; `weights` has one number (or array of lanes) a term."""
        ended = xp.asarray(info["terminated"], bool) | xp.asarray(info["truncated"], bool)
        memories, contributions, raw = [], {}, {}
        for position, (term, kept) in enumerate(zip(self.terms, memory, strict=True)):
            kept, value = term.component.step(xp, kept, action, info)
            if xp.shape(value) != xp.shape(ended):
                raise ConfigError(
                    f"reward component {term.name} gives values of shape {list(xp.shape(value))}, "
                    f"not {list(xp.shape(ended))}; let it read one number of a step"
                )
            if term.component.scope == "episode":
                value = xp.where(ended, value, 0.0)
            memories.append(kept)
            raw[term.name] = value
            contributions[term.name] = weights[position] * value
        reward = sum(contributions.values())
        if self.clip is not None:
            reward = hold(xp, reward, *self.clip)
        return RewardStep(tuple(memories), reward, contributions, raw)

    def check(self, info_keys: Iterable[str], place: str = "reward") -> None:
        """Raise ConfigError, naming the term and what exists, if it reads a key that is not among `info_keys`."""
        _refuse_blind(self, place)
        known = ALWAYS.union(info_keys)
        for term in self.terms:
            for key in term.component.requires():
                if key not in known:
                    kind = type(term.component).__name__
                    raise ConfigError(
                        f"{place}: component {term.name} ({kind}) reads info key {key!r}, which this environment "
                        f"does not give; it has: {', '.join(sorted(known))}"
                    )


def _term(entry: Entry, place: str) -> Term:
    made = make(registry.resolve("rewards", entry.name, f"{place}.name"), entry.params, f"{place}.params")
    return Term(entry.label or entry.name, entry.weight, made)


def _refuse_blind(spec: RewardSpec, place: str) -> None:
    """Refuse a reward that is the same whatever happens: nothing it weighs reads the world."""
    regimes = [None, *spec.overrides]
    weighed = {position for regime in regimes for position, weight in enumerate(spec.weights(regime)) if weight != 0}
    if not any(spec.terms[position].component.requires() for position in weighed):
        raise ConfigError(
            f"{place} reads nothing from its environment; weigh a component that does, such as env_scalar"
        )


def _clip_bounds(low: float | None, high: float | None, clip: tuple[float, float] | None) -> Bounds:
    if clip is None:
        return low, high
    floor, ceiling = clip
    return (
        floor if low is None else min(max(low, floor), ceiling),
        ceiling if high is None else min(max(high, floor), ceiling),
    )
