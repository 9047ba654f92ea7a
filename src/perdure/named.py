"""The parts that a document names, made and checked: agent, extensions, reward, third-party algorithm, world."""

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perdure.core import component, registry
from perdure.core.errors import ConfigError, PerdureError, Refused, told
from perdure.core.records import Params, RegimeSchedule, Spec
from perdure.harness import mistakes
from perdure.harness.config import ExperimentConfig
from perdure.harness.sections import ExpertConfig

CACHE = "PERDURE_CACHE"
"""Environment variable: where compiled programs are kept between processes; "off" keeps none."""
EXPERT = "expert_policy"
"""The field of an extension that a document fills by naming an expert."""
MOST_STEPS = 2**31 - 2**16
"""Steps that a compiled program can count, with room for what a last window adds."""


def pure_world(config: ExperimentConfig) -> Any:
    """The pure world of a document, or None where its environment is stepped on the host."""
    from perdure.worlds import catalogue

    if not catalogue.is_pure(config.environment.id):
        return None
    prepare_jax()
    return catalogue.pure(config.environment.id, config.environment.kwargs)


def prepare_jax() -> None:
    """Settle what JAX fixes when it starts: a cache of compiled programs that later processes reuse."""
    import jax

    place = os.environ.get(CACHE) or os.path.join(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "perdure")
    if place != "off" and jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(place))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def agent(config: ExperimentConfig, spec: Spec) -> Any:
    """The agent of a document, its networks tried, since a layer of no units shows in the building of them only."""
    rollout = config.rollout
    for place, steps in (("total_steps", rollout.total_steps), ("window_steps", rollout.window_steps * rollout.n_envs)):
        if steps > MOST_STEPS:
            raise ConfigError(f"rollout.{place} comes to {steps} steps; compiled programs count at most {MOST_STEPS:,}")
    made = _agent(config)
    try:
        made.networks(spec)
    except ConfigError as error:
        raise ConfigError(f"algorithm.kwargs.{error}") from None
    return made


def components(config: ExperimentConfig) -> dict[str, Any]:
    """Every field of the agent and the extensions as they run, defaults included; {} for a third-party algorithm."""
    if config.algorithm.name not in registry.names("agents"):
        return {}
    parts = zip(config.algorithm.extensions, extensions(config), strict=True)
    own = config.algorithm.expert
    told = {} if own is None else {"expert": {"name": own.name, "kwargs": plain(expert(config))}}
    return told | {
        "kwargs": plain(_agent(config)),
        "extensions": [{"name": each.name, "kwargs": plain(part)} for each, part in parts],
    }


def _agent(config: ExperimentConfig) -> Any:
    cls = registry.resolve("agents", config.algorithm.name, "algorithm.name")
    return component.make(cls, config.algorithm.kwargs, "algorithm.kwargs")


def plain(part: Any) -> dict[str, Any]:
    """A component's fields as JSON values."""
    return {field.name: _plain(getattr(part, field.name)) for field in dataclasses.fields(part)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return plain(value)
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def check_regimes(schedule: RegimeSchedule, check: Callable[[Params, str], object]) -> None:
    """`check(params, place)` for whatever the segments set, its errors naming the segment."""
    for segment in schedule.segments:
        for params in (segment.params, segment.params_end):
            try:
                check(params or {}, "params")
            except ConfigError as error:
                raise ConfigError(f"regime {segment.id!r}: {error}") from None


def extensions(config: ExperimentConfig) -> tuple[Any, ...]:
    """The extensions of a document, in the order of composition."""
    made: list[Any] = []
    for position, each in enumerate(config.algorithm.extensions):
        place = f"algorithm.extensions[{position}]"
        cls = _resolved("extensions", each.name, f"{place}.name")
        made.append(component.make(cls, _with_expert(each.kwargs, f"{place}.kwargs"), f"{place}.kwargs"))
    return tuple(made)


def expert(config: ExperimentConfig) -> Any:
    """The agent's own expert, or None."""
    given = config.algorithm.expert
    return None if given is None else _expert(given, "algorithm.expert")


def _expert(given: ExpertConfig, place: str) -> Any:
    return component.make(_resolved("experts", given.name, f"{place}.name"), given.kwargs, f"{place}.kwargs")


def _resolved(family: str, name: str, place: str) -> Any:
    return registry.load(name, place) if ":" in name else registry.resolve(family, name, place)


def _with_expert(kwargs: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The fields of an extension, its expert built."""
    if not isinstance(kwargs.get(EXPERT), (str, Mapping)):
        return dict(kwargs)
    try:
        named = ExpertConfig.model_validate(kwargs[EXPERT])
    except ValidationError as error:
        raise mistakes.explain(error, ExpertConfig, f"{place}.{EXPERT}") from None
    return {**kwargs, EXPERT: _expert(named, f"{place}.{EXPERT}")}


def environments(config: ExperimentConfig, env: Any = None) -> Callable[[int], Any]:
    """`make(lane)`: the document's environment (or `env` itself) with its reward on top."""
    from perdure.rewards import wrapper

    spec = reward(config)

    def make(lane: int) -> Any:
        made = env if env is not None else config.environment.build()
        return made if spec is None else wrapper.RewardWrapper(made, spec)

    return make


def reward(config: ExperimentConfig) -> Any:
    """The RewardSpec of a document, or None where the world's own reward stands."""
    return None if config.reward is None else config.reward.build()


def algorithm(config: ExperimentConfig, spec: Spec | None, encode: Callable[..., Any]) -> Callable[[int, Spec], Any]:
    """`make(seed, spec)` of a JAX agent on a host environment, or of a third-party factory."""
    if spec is not None:
        prepare_jax()
        from perdure.rl import host, learner

        rollout = config.rollout
        trainer = learner.trainer(
            agent(config, spec),
            host.HostWorld(spec, config.environment.id),
            extensions(config),
            n_envs=rollout.n_envs,
            window_steps=rollout.window_steps,
            total_steps=rollout.total_steps,
            boundary_source=config.regime.boundary_source,
            expert=expert(config),
        )
        return lambda seed, _: host.HostAgent(trainer, seed, rollout.total_steps, encode)
    factory = registry.load(config.algorithm.name, "algorithm.name")
    if config.algorithm.extensions:
        raise Refused(
            f"algorithm.extensions are not for {config.algorithm.name!r}: a third-party algorithm folds no phases"
        )

    def make(seed: int, spec: Spec) -> Any:
        offered = {"seed": seed, "spec": spec}
        if config.algorithm.policy is not None:
            policy = registry.load(config.algorithm.policy.factory, "algorithm.policy.factory")
            offered["policy"] = _called(policy, config.algorithm.policy.kwargs, offered, "algorithm.policy.kwargs")
        return _called(factory, config.algorithm.kwargs, offered, "algorithm.kwargs")

    return make


def _called(factory, kwargs, offered, place):
    """`factory(**kwargs)`, with those of `offered` that it asks for by name."""
    names = inspect.signature(factory).parameters
    wanted = {name: value for name, value in offered.items() if name in names and name not in kwargs}
    name = getattr(factory, "__name__", factory)
    try:
        inspect.signature(factory).bind(**kwargs, **wanted)
    except TypeError as error:
        raise ConfigError(f"{place} does not fit {name}: {error}") from None
    try:
        return factory(**kwargs, **wanted)
    except PerdureError:
        raise
    except Exception as error:  # A stranger's code may raise anything; whatever it is, the run cannot begin.
        raise ConfigError(f"{place}: {name} raised {told(error)}; mend it or its arguments") from error


def check_reward(reward: Any, world: Any) -> None:
    """Refuse a reward that reads what a pure world does not give, or more than a number; nothing is computed."""
    import jax
    import jax.numpy as jnp

    def one(key):
        task, no = world.task(), jnp.zeros((), bool)
        state, first = world.reset(key, task)
        action = jnp.int32(0) if world.spec.discrete else jnp.zeros(world.spec.action_dim)
        _, obs, given, terminated, truncated, *info = world.step(key, state, action, task)
        began = {"obs": first, "env_reward": given, "terminated": no, "truncated": no}
        known = {"obs": obs, "env_reward": given, "terminated": terminated, "truncated": truncated}
        return began, known | (info[0] if info else {}), action

    def lane(tree):
        return jax.tree.map(lambda x: x[None], tree)

    shapes = jax.eval_shape(one, jax.random.key(0))
    reward.check(shapes[1], "reward.spec")
    jax.eval_shape(
        lambda began, known, action: (
            reward.step(jnp, reward.start(jnp, lane(began)), lane(action), lane(known), reward.weights()).reward
        ),
        *shapes,
    )


def facts(
    config: ExperimentConfig, schedule: RegimeSchedule, env: Any = None
) -> tuple[Spec, dict[str, Any], dict[str, str]]:
    """The world's spec, and its score bounds by origin with where they come from."""
    world = None if env is not None else pure_world(config)
    if world is not None:
        return world.spec, *_bounds(config, schedule, world, lambda params: world.bounds(world.task(**params)))
    from perdure.harness.host import spec_of

    built = config.environment.build() if env is None else env
    try:
        spec, core = spec_of(built), built.unwrapped
        # Only a process that has loaded the face of pure worlds can hold one; without it JAX stays out.
        face = sys.modules.get("perdure.worlds.adapters.face")
        if face is not None and isinstance(core, face.WorldEnv):
            pure = core.world
            return spec, *_bounds(config, schedule, pure, lambda params: pure.bounds(pure.task(**params)))
        return spec, *_bounds(config, schedule, core, lambda params: core.bounds(params))
    finally:
        if env is None:
            built.close()


def _bounds(config, schedule, world, bounds) -> tuple[dict[str, Any], dict[str, str]]:
    """({origin: [low, high]}, {origin: source}); both empty where the world offers none, or another reward stands."""
    if config.reward is not None or not hasattr(world, "bounds"):
        return {}, {}
    found = {each.origin: list(bounds(each.params or {})) for each in reversed(schedule.segments)}
    return found, dict.fromkeys(found, getattr(world, "bounds_source", "the world"))
