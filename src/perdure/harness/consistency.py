"""Checks that concern several keys of an experiment document at once, and its schedule of regimes."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perdure.core import registry
from perdure.core.errors import ConfigError, UnknownName, nearest
from perdure.core.records import RegimeSchedule
from perdure.harness import mistakes, sections
from perdure.regimes import schedules

if TYPE_CHECKING:
    from perdure.harness.config import ExperimentConfig


GROUP_LEARNERS = ("lm/grpo", "lm/reinforce", "lm/rloo")
"""Trainers whose window is one update: all turns of groups_per_update x group_size episodes."""


def check(config: "ExperimentConfig") -> None:
    """Raise ConfigError for the first contradiction between the parts of a document."""
    _check_world(config)
    _check_algorithm(config)
    _check_expert(config)
    _check_extensions(config)
    _check_seeds(config)
    _check_multiples(config)
    _check_groups(config)
    _check_regime(config)
    _check_detector(config)
    _check_regime_names(config)


def provider_fields(provider: str) -> tuple[str, ...]:
    """Names of a regime provider's own fields."""
    cls = registry.resolve("regimes", provider, "regime.provider")
    return tuple(field.name for field in dataclasses.fields(cls))


def schedule(config: "ExperimentConfig") -> RegimeSchedule | None:
    """The segments of a run in multiples of n_envs, or None where only the environment knows them."""
    provider = config.regime.build()
    if not provider.scheduled:
        return None
    rollout = config.rollout
    return schedules.schedule(provider, rollout.total_steps, config.regime.boundary_source, rollout.n_envs)


def _check_world(config: "ExperimentConfig") -> None:
    name = config.environment.id
    known = [*registry.names("worlds"), *registry.names("text_worlds")]
    if name.startswith("perdure/") and name not in known:
        raise UnknownName(f"environment.id is {name!r}, which is not a registered name; {nearest(name, known)}")
    if name in registry.names("text_worlds") and config.algorithm.name in registry.names("agents"):
        algorithm = config.algorithm.name
        remedy = "did you mean lm/ppo?" if algorithm == "ppo" else "train a language policy in it, as lm/grpo does"
        raise ConfigError(f"algorithm.name is {algorithm!r}, but {name} speaks text; {remedy}")


def _check_algorithm(config: "ExperimentConfig") -> None:
    name, policy = config.algorithm.name, config.algorithm.policy
    if ":" in name:
        _check_factory(name, "algorithm.name")
        return
    agents, trainers = registry.names("agents"), registry.names("trainers")
    if name in agents and policy is not None:
        remedy = "did you mean lm/ppo?" if name == "ppo" else "a control agent brings its own; remove the section"
        raise ConfigError(f"algorithm.policy is given but algorithm.name is {name!r}; {remedy}")
    if name in registry.names("extensions"):
        raise UnknownName(f"algorithm.name is {name!r}, which is an extension; list it under algorithm.extensions")
    if name not in agents and name not in trainers:
        known = nearest(name, [*agents, *trainers])
        raise UnknownName(f"algorithm.name is {name!r}, which is not a registered name; {known}")


def _check_extensions(config: "ExperimentConfig") -> None:
    if config.algorithm.name in registry.names("trainers"):
        return  # A trainer's extensions are its own family; the builder looks them up.
    for index, extension in enumerate(config.algorithm.extensions):
        place = f"algorithm.extensions[{index}].name"
        if ":" in extension.name:
            _check_factory(extension.name, place)
        else:
            registry.check("extensions", extension.name, place)


def _check_expert(config: "ExperimentConfig") -> None:
    expert = config.algorithm.expert
    if expert is None:
        return
    if config.algorithm.name not in registry.names("agents"):
        raise ConfigError(f"algorithm.expert is given but {config.algorithm.name!r} asks none; remove the key")
    if ":" in expert.name:
        _check_factory(expert.name, "algorithm.expert.name")
    else:
        registry.check("experts", expert.name, "algorithm.expert.name")


def _check_factory(name: str, place: str) -> None:
    if not sections.FACTORY.fullmatch(name):
        raise ConfigError(f"{place} is {name!r}; a factory reads 'package.module:factory'")


def _check_seeds(config: "ExperimentConfig") -> None:
    seeds = config.run.seeds
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ConfigError(f"run.seeds holds {seed} more than once, which would repeat a run; keep one")


def _check_multiples(config: "ExperimentConfig") -> None:
    steps = {
        "rollout.total_steps": config.rollout.total_steps,
        "evaluation.every": config.evaluation.every,
        "run.checkpoint_every": config.run.checkpoint_every,
    }
    for place, value in steps.items():
        copies = config.rollout.n_envs
        if value is not None and value % copies:
            low, high = value // copies * copies, -(-value // copies) * copies
            offer = f"{low} or {high}" if low else f"{high}"
            raise ConfigError(f"{place} is {value}, which is not a multiple of rollout.n_envs ({copies}); use {offer}")


def _check_groups(config: "ExperimentConfig") -> None:
    name, rollout = config.algorithm.name, config.rollout
    if name not in GROUP_LEARNERS:
        for key in ("groups_per_update", "group_size"):
            if getattr(rollout, key) is not None:
                known = ", ".join(GROUP_LEARNERS)
                raise ConfigError(f"rollout.{key} is given, but {name!r} learns from no groups; {known} do")
        return
    instead = "one update plays groups_per_update x group_size episodes at once"
    if "window_steps" in rollout.model_fields_set:
        raise ConfigError(f"rollout.window_steps is {rollout.window_steps}, but {name} has none: {instead}; remove it")
    if rollout.n_envs != 1:
        raise ConfigError(f"rollout.n_envs is {rollout.n_envs}, but for {name} {instead}; remove it")
    if config.regime.boundary_source == "detector":
        raise ConfigError(f"regime.boundary_source is 'detector', which {name} does not offer; use oracle, or lm/ppo")


def _check_regime(config: "ExperimentConfig") -> None:
    known = provider_fields(config.regime.provider)
    own = ["provider", "boundary_source", "detector", "params", *known]
    extra, params = config.regime.model_extra or {}, config.regime.params or {}
    _check_provider_keys(config, "regime", extra, known, own)
    _check_provider_keys(config, "regime.params", params, known, known)
    schedule(config)


def _check_provider_keys(
    config: "ExperimentConfig", place: str, given: Mapping[str, Any], known: Sequence[str], own: Sequence[str]
) -> None:
    for key, value in given.items():
        if key in known:
            continue
        others = [name for name in registry.names("regimes") if key in provider_fields(name)]
        if others:
            provider = f"provider {config.regime.provider!r} has no such field; it belongs to: {', '.join(others)}"
            raise ConfigError(f"{place}.{key} is given, but {provider} (set regime.provider)")
        meant = nearest(key, {field for name in registry.names("regimes") for field in provider_fields(name)})
        if meant.startswith("did you mean") and not nearest(key, own).startswith("did you mean"):
            shown = mistakes.shown(value)
            raise ConfigError(f"{place}.{key} ({shown}) is not a key here; {meant} (and set regime.provider)")
        raise mistakes.unknown_key(place, key, value, type(config), own)


def _check_detector(config: "ExperimentConfig") -> None:
    source, detector = config.regime.boundary_source, config.regime.detector
    if source == "detector" and detector is None:
        names = ", ".join(sorted(registry.names("detectors")))
        raise ConfigError(f"regime.boundary_source is 'detector' but regime.detector is missing; name one of: {names}")
    if detector is not None:
        if source != "detector":
            raise ConfigError(f"regime.detector is given but regime.boundary_source is {source!r}; set it to detector")
        detector.build()


def _check_regime_names(config: "ExperimentConfig") -> None:
    if config.reward is not None:
        config.reward.build()
    found = schedule(config)
    if found is None:
        return
    known = {name for segment in found.segments for name in (segment.id, segment.origin)}
    if isinstance(config.evaluation.regimes, tuple):
        for index, name in enumerate(config.evaluation.regimes):
            if name not in known:
                raise ConfigError(_never_occurs(f"evaluation.regimes[{index}] is {name!r}", name, known))
    if config.reward is not None:
        for name in sections.mapping(config.reward.spec.get("regime_overrides")):
            if name not in known:
                raise ConfigError(_never_occurs(f"reward.spec.regime_overrides.{name} is given", name, known))


def _never_occurs(what: str, name: str, known: set[str]) -> str:
    return f"{what}, a regime that never occurs in this run; {nearest(name, known)}"
