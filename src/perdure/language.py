"""From a document that names a language trainer (`lm/...`) to its learner: policies, extensions, text worlds."""

import importlib.util
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from perdure import named
from perdure.core import capabilities, component, registry, seeds
from perdure.core.errors import ConfigError, MissingExtra, Refused, nearest
from perdure.core.protocols import Learner
from perdure.harness import consistency
from perdure.harness.config import ExperimentConfig
from perdure.harness.sections import PolicyConfig

GROUPS = 8
"""Groups of an update, where a document does not say."""


def is_language(config: ExperimentConfig) -> bool:
    """Whether the document's algorithm trains a language policy."""
    return config.algorithm.name in registry.names("trainers")


def is_grouped(config: ExperimentConfig) -> bool:
    """Whether its updates are whole groups of episodes, which the host collector does not play."""
    return config.algorithm.name in consistency.GROUP_LEARNERS


def groups(config: ExperimentConfig) -> Learner:
    """The learner of a group trainer (`lm/grpo` and its kin); raises as `algorithm` does."""
    _check(config)
    from perdure.lm.learner import GroupLearner

    trainer = component.make(_trainer(config), config.algorithm.kwargs, "algorithm.kwargs")
    rollout = config.rollout
    return GroupLearner(
        trainer,
        _policies(config),
        make_env=environments(config),
        hooks=partial(_hooks, config),
        groups=rollout.groups_per_update or GROUPS,
        group_size=rollout.group_size or trainer.default_group_size,
    )


def algorithm(config: ExperimentConfig) -> Callable[[int, Any], Any]:
    """`make(seed, spec)` of the other trainers (`lm/ppo` and its kin), which the host collector drives.

    Nothing of torch is imported before. Raises MissingExtra without torch or transformers, ConfigError for a key
    that is wrong, and Refused for what acts at shifts where nobody is told of them.
    """
    _check(config)
    trainer, policies = _trainer(config), _policies(config)
    kwargs = dict(config.algorithm.kwargs)
    _check_keywords(trainer, kwargs)

    def make(seed: int, _: Any) -> Any:
        hooks = _hooks(config, seed)
        return trainer(policies(seed), **kwargs, hooks=hooks, seed=seeds.stream(seed, "replay"))

    return make


def environments(config: ExperimentConfig, env: Any = None) -> Callable[[int], Any]:
    """`make(lane)` as named.environments; Refused where the world does not speak."""
    from gymnasium import spaces

    environment = named.environments(config, env)

    def make(lane: int) -> Any:
        made = environment(lane)
        if not isinstance(made.observation_space, spaces.Text | spaces.Dict):
            raise Refused(
                f"environment.id is {config.environment.id!r}, whose observations are {made.observation_space}; "
                f"{config.algorithm.name} needs a world that speaks (spaces.Text): `perdure list text_worlds`"
            )
        return made

    return make


def data(config: ExperimentConfig) -> dict[str, Any]:
    """`capabilities.DATA` and the hash of the world's data files, where the document names some."""
    if not config.environment.kwargs.get("data"):
        return {}
    world = environments(config)(0)
    try:
        said = capabilities.describe_run(world)
        return {name: value for name, value in said.items() if name == capabilities.DATA}
    finally:
        world.close()


def _check(config):
    """What can be refused before anything is loaded."""
    for library in ("torch", "transformers"):
        if importlib.util.find_spec(library) is None:
            raise MissingExtra(library, "language")
    _refuse_untold(config, _trainer(config), f"algorithm.name is {config.algorithm.name!r}")
    _hooks(config, 0)


def _trainer(config):
    return registry.resolve("trainers", config.algorithm.name, "algorithm.name")


def _policies(config) -> Callable[[int], Any]:
    """`make(seed)`: a policy of its own for each seed."""
    given = config.algorithm.policy or PolicyConfig()
    place = "algorithm.policy"
    factory = registry.load(given.factory, f"{place}.factory")
    _refuse_unknown(factory, given.kwargs, f"{place}.kwargs")

    def make(seed: int) -> Any:
        return factory(**{"seed": seeds.stream(seed, "init"), **given.kwargs})

    return make


def _hooks(config, seed):
    """The language extensions of a document, fresh, in the order of composition; their draws differ by run seed."""
    made = []
    for position, each in enumerate(config.algorithm.extensions):
        place = f"algorithm.extensions[{position}]"
        family = "language_extensions"
        cls = registry.load(each.name, place) if ":" in each.name else registry.resolve(family, each.name, place)
        _refuse_untold(config, cls, f"{place}.name is {each.name!r}")
        seeded = "seed" in getattr(cls, "__match_args__", ())
        own = {"seed": seeds.stream(seed, "extensions", position)} if seeded else {}
        made.append(component.make(cls, own | each.kwargs, f"{place}.kwargs").build())
    return tuple(made)


def _refuse_untold(config, part, what):
    """Refuse what acts at shifts where nobody is told of them: it would do nothing, in silence."""
    if getattr(part, "needs_boundary", False) and config.regime.boundary_source == "none":
        raise Refused(f"{what}, which acts at shifts, but regime.boundary_source is none; set it to oracle or detector")


def _check_keywords(trainer, kwargs):
    own = {"policy", "hooks", "seed"}
    for name in own & kwargs.keys():
        raise ConfigError(f"algorithm.kwargs.{name} is not set here; the document has a place of its own for it")
    _refuse_unknown(trainer, kwargs, "algorithm.kwargs")


def _refuse_unknown(factory, kwargs, place):
    """ConfigError for a key that a factory does not take, with the nearest one."""
    parameters = inspect.signature(factory).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    for name in kwargs:
        if name not in parameters:
            raise ConfigError(f"{place}.{name} is not a key here; {nearest(name, parameters)}")
