"""From a document that names a language trainer (`lm/...`) to its learner: policies, extensions, text worlds."""

import importlib.util
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from perdure.core import component, registry, seeds
from perdure.core.errors import ConfigError, MissingExtra, Refused, nearest
from perdure.core.protocols import Learner
from perdure.harness import consistency
from perdure.harness.config import ExperimentConfig
from perdure.harness.sections import PolicyConfig

GROUPS, GROUP_SIZE = 8, 8
"""Groups of an update, and episodes of a group, where a document does not say."""


def is_language(config: ExperimentConfig) -> bool:
    """Whether the document's algorithm trains a language policy."""
    return config.algorithm.name in registry.names("trainers")


def learner(config: ExperimentConfig, env: Any = None) -> Learner:
    """The learner of a language document; nothing of torch is imported before.

    Raises MissingExtra without torch or transformers, and Refused where the world does not speak.
    """
    for library in ("torch", "transformers"):
        if importlib.util.find_spec(library) is None:
            raise MissingExtra(library, "language")
    _refuse_untold(config, _trainer(config), f"algorithm.name is {config.algorithm.name!r}")
    _hooks(config, 0)  # Refuses what a document says wrongly before anything is loaded.
    return _groups(config, env) if config.algorithm.name in consistency.GROUP_LEARNERS else _windows(config, env)


def _groups(config, env):
    from perdure.lm.learner import GroupLearner

    if env is not None:
        raise Refused(f"env is given, but {config.algorithm.name} plays many copies at once; name a world or a factory")
    trainer = component.make(_trainer(config), config.algorithm.kwargs, "algorithm.kwargs")
    rollout = config.rollout
    return GroupLearner(
        trainer,
        _policies(config),
        make_env=_env_maker(config, None),
        hooks=partial(_hooks, config),
        groups=rollout.groups_per_update or GROUPS,
        group_size=rollout.group_size or trainer.default_group_size,
    )


def _windows(config, env):
    """PPO and its kin: the host collector drives the policy, the trainer gets its windows."""
    from perdure.harness.host import HostLearner

    trainer, policies = _trainer(config), _policies(config)
    kwargs = dict(config.algorithm.kwargs)
    _check_keywords(trainer, kwargs)

    def make_algorithm(seed: int, _: Any) -> Any:
        return trainer(policies(seed), **kwargs, hooks=_hooks(config, seed), seed=seeds.stream(seed, "replay"))

    return HostLearner(
        make_algorithm,
        _env_maker(config, env),
        window_steps=config.rollout.window_steps,
        n_envs=config.rollout.n_envs,
        auto_reset=config.rollout.auto_reset,
        detector=config.regime.detector.build() if config.regime.detector else None,
    )


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


def _env_maker(config, env):
    from gymnasium import spaces

    from perdure.rewards import wrapper

    reward = None if config.reward is None else config.reward.build()

    def make(lane: int) -> Any:
        made = env if env is not None else config.environment.build()
        if not isinstance(made.observation_space, spaces.Text | spaces.Dict):
            raise Refused(
                f"environment.id is {config.environment.id!r}, whose observations are {made.observation_space}; "
                f"{config.algorithm.name} needs a world that speaks (spaces.Text): `perdure list text_worlds`"
            )
        return made if reward is None else wrapper.RewardWrapper(made, reward)

    return make


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
