"""From a document to a run: the composition root, the one place that knows every layer."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from perdure import language, named
from perdure.core import registry
from perdure.core.errors import ConfigError, DataError, Refused, nearest
from perdure.core.protocols import Learner
from perdure.core.records import EvaluationRow, RegimeSchedule, Segment
from perdure.harness import checkpoint, run
from perdure.harness.config import ExperimentConfig


def run_experiment(
    config: ExperimentConfig,
    *,
    trace_path: Path | None = None,
    env: Any = None,
    algorithm: Any = None,
    export_dir: Path | None = None,
    export_external: Mapping[str, Any] | None = None,
    resume: bool = False,
    progress: bool = False,
) -> run.RunResult:
    """Train what `config` describes and leave a run directory behind.

    `env` (a gymnasium.Env, closed at the end) and `algorithm` (core.protocols.Algorithm) take the
    place of what the document would build; both need one seed. With `env` nothing is evaluated,
    since that would step the environment that is trained in. Raises what `harness.run.execute` does.
    """
    learner = host_learner(config, env, algorithm) if env is not None or algorithm is not None else build(config)
    schedule = schedule_of(config)
    spec, bounds, source = named.facts(config, schedule, env)
    meta = config.meta() | {
        "seeds": list(config.run.seeds),
        "config": config.resolved(),
        "components": named.components(config),
        "boundary_source": config.regime.boundary_source,
        "score": "return" if spec.episodic else "reward",
        "bounds": bounds,
        "bounds_source": source,
    }
    job = run.Job(
        learner,
        schedule,
        meta,
        config.folder,
        config.rollout.total_steps,
        evaluation_plan(config, schedule) if env is None else run.EvaluationPlan(),
        config.run.checkpoint_every,
        resume,
        progress,
        trace_path,
        export_dir,
        export_external,
    )
    return run.execute(job)


def check(config: ExperimentConfig) -> None:
    """Build everything a document names, without training; raises what is wrong with it.

    Of a language document that is the first seed's policy too, since its own keys show only when it is made.
    """
    made = build(config)
    if language.is_language(config):
        made.init(config.run.seeds[:1])
    made.close()
    evaluation_plan(config, schedule_of(config))


def build(config: ExperimentConfig) -> Learner:
    """The learner of a document: compiled where agent and world are, a language trainer's, else on the host."""
    if language.is_grouped(config):
        return group_learner(config)
    world = named.pure_world(config)
    if config.algorithm.name in registry.names("agents") and world is not None:
        return compiled_learner(config, world)
    return host_learner(config)


def compiled_learner(config: ExperimentConfig, world: Any) -> Learner:
    """An agent and a pure world in one program."""
    named.prepare_jax()
    from perdure.rl import learner

    if config.regime.provider == "environment":
        raise ConfigError(
            f"regime.provider is 'environment', but {config.environment.id} reports no regimes; list them in a schedule"
        )
    if not config.rollout.auto_reset:
        raise ConfigError(f"rollout.auto_reset is false, but {config.environment.id} always begins the next episode")
    reward = named.reward(config)
    if reward is not None:
        named.check_reward(reward, world)
    trainer = learner.trainer(
        named.agent(config, world.spec),
        world,
        named.extensions(config),
        n_envs=config.rollout.n_envs,
        window_steps=config.rollout.window_steps,
        total_steps=config.rollout.total_steps,
        reward=reward,
        detector=config.regime.detector.build() if config.regime.detector else None,
        boundary_source=config.regime.boundary_source,
        expert=named.expert(config),
    )
    schedule = schedule_of(config)
    named.check_regimes(schedule, lambda params, _: world.task(**params))
    weights = None if reward is None else reward.weights
    return learner.JaxLearner(trainer, config.run.seeds, schedule.segments[0].params, weights)


def group_learner(config: ExperimentConfig) -> Learner:
    """A trainer whose updates are groups of episodes, on a world that speaks."""
    made = language.groups(config)
    probe = language.environments(config)(0)
    try:
        _check_regimes(config, probe)
    finally:
        probe.close()
    return made


def host_learner(config: ExperimentConfig, env: Any = None, algorithm: Any = None) -> Learner:
    """Any algorithm on a Gymnasium environment, stepped in Python; a language trainer's too, but for groups."""
    from perdure.harness.host import HostLearner
    from perdure.worlds.adapters import gymnasium as adapter

    given = [name for name, part in (("env", env), ("algorithm", algorithm)) if part is not None]
    if given and (len(config.run.seeds) > 1 or (env is not None and config.rollout.n_envs > 1)):
        raise Refused(
            f"{' and '.join(given)} given as an object serves one seed and copy; set run.seeds to one, n_envs to 1"
        )
    speaks = algorithm is None and language.is_language(config)
    if speaks and language.is_grouped(config):
        raise Refused(f"env is given, but {config.algorithm.name} plays many copies at once; name a world or a factory")
    make_env = language.environments(config, env) if speaks else named.environments(config, env)
    probe = make_env(0)
    seen = probe.observation_space
    try:
        spec = adapter.spec_of(probe) if config.algorithm.name in registry.names("agents") else None
        _check_regimes(config, probe)
    finally:
        if env is None:
            probe.close()
    encode = lambda observation, step=None: adapter.encode_observation(seen, observation, step)
    if algorithm is not None:
        make_algorithm = lambda seed, _: algorithm
    else:
        make_algorithm = language.algorithm(config) if speaks else named.algorithm(config, spec, encode)
    regime = config.regime.build() if config.regime.provider == "environment" else None
    return HostLearner(
        make_algorithm,
        make_env,
        window_steps=config.rollout.window_steps,
        n_envs=config.rollout.n_envs,
        auto_reset=config.rollout.auto_reset,
        regime=regime,
        detector=config.regime.detector.build() if config.regime.detector else None,
    )


def schedule_of(config: ExperimentConfig) -> RegimeSchedule:
    """The segments of a run; one unnamed segment where only the environment knows them."""
    known = config.schedule()
    if known is not None:
        return known
    whole = Segment("environment", "environment", 0, config.rollout.total_steps)
    return RegimeSchedule((whole,), config.regime.boundary_source)


def evaluation_plan(config: ExperimentConfig, schedule: RegimeSchedule) -> Any:
    """Which configurations the policy is tried on: one for each origin, in order of appearance."""
    from perdure.harness.evaluation import EvaluationPlan

    known: dict[str, Any] = {}
    for segment in schedule.segments:
        known.setdefault(segment.origin, segment.params)
    wanted = config.evaluation.regimes
    if isinstance(wanted, tuple):
        for place, name in enumerate(wanted):
            if name not in known:
                raise ConfigError(
                    f"evaluation.regimes[{place}] is {name!r}, which never occurs; {nearest(name, known)}"
                )
        known = {name: known[name] for name in wanted}
    return EvaluationPlan(
        config.evaluation.every, config.evaluation.episodes, tuple(known.items()), wanted == "current"
    )


def evaluate_run(folder: Path, regimes: tuple[str, ...] | None = None, episodes: int = 8) -> list[EvaluationRow]:
    """Greedy episodes of a run's newest checkpoint on the named regimes (None: all of its own)."""
    config, learner, state = _reopened(folder)
    schedule = schedule_of(config)
    known = {segment.origin: segment.params for segment in reversed(schedule.segments)}
    known |= {segment.id: segment.params for segment in schedule.segments}
    names = regimes or tuple(dict.fromkeys(segment.origin for segment in schedule.segments))
    rows = []
    try:
        for name in names:
            if name not in known:
                raise ConfigError(f"--regimes names {name!r}, which this run does not have; {nearest(name, known)}")
            found = learner.evaluate(state, known[name], episodes)
            for position, seed in enumerate(config.run.seeds):
                returns, lengths = (tuple(values[position].tolist()) for values in (found.returns, found.lengths))
                metrics = {key: float(value[position]) for key, value in found.metrics.items()}
                rows.append(
                    EvaluationRow(
                        config.run_id,
                        config.algorithm_id,
                        config.task,
                        seed,
                        learner.step(state),
                        name,
                        returns,
                        lengths,
                        metrics,
                        {name: tuple(table[position]) for name, table in found.facts.items()},
                    )
                )
    finally:
        learner.close()
    return rows


def policy_of(folder: Path, seed: int | None = None) -> Callable[[Any], Any]:
    """The greedy policy of a run's newest checkpoint, for one seed (the first, if None): observation -> action."""
    learner, state, position = opened(folder, seed)
    return learner.policy(state, position)


def opened(folder: Path, seed: int | None = None) -> tuple[Learner, Any, int]:
    """A run's learner with the state of its newest checkpoint, and the place of one seed in it (None: the first)."""
    config, learner, state = _reopened(folder)
    wanted = config.run.seeds[0] if seed is None else seed
    if wanted not in config.run.seeds:
        raise ConfigError(f"seed is {wanted}, which {folder} does not hold; it has {list(config.run.seeds)}")
    return learner, state, config.run.seeds.index(wanted)


def trace_path_for(config: ExperimentConfig) -> Path:
    """Where a run of `config` leaves its rows: traces.jsonl of a host run, the folder steps of a compiled one."""
    compiled = config.algorithm.name in registry.names("agents") and named.pure_world(config) is not None
    return config.folder / ("steps" if compiled else "traces.jsonl")


def export_run(folder: Path, destination: Path) -> Path:
    """Write a bundle of a run's newest checkpoint."""
    from perdure.harness import export

    config, learner, state = _reopened(folder)
    try:
        spec = named.facts(config, schedule_of(config))[0]
        return export.export_run(folder, learner, destination, state=state, spec=spec)
    finally:
        learner.close()


def _check_regimes(config, probe):
    """Refuse parameters of the document's regimes that a host world cannot follow."""
    from perdure.regimes import controllers

    named.check_regimes(schedule_of(config), partial(controllers.controller_for(probe).check, probe))


def _reopened(folder):
    from perdure.harness import load

    if not (folder / "run.json").exists():
        raise DataError(f"{folder} holds no run.json; give a run's directory")
    config = load.experiment(folder, ())
    learner = build(config)
    return config, learner, learner.load(checkpoint.verify(checkpoint.newest(folder)))
