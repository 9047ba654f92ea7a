"""Sweeps: families of algorithms x tasks x seeds, laid out as runs; cells that differ only in seed share one."""

import itertools
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, cast

from pydantic import Field, ValidationError

from perdure.core.errors import ConfigError
from perdure.harness import mistakes
from perdure.harness.config import ExperimentConfig
from perdure.harness.sections import Kwargs, Section, Whole, mapping

SEED = "SEED"
"""The text that a cell replaces by its seed, anywhere in a value."""


class SweepConfig(Section):
    """A sweep document. Raises ConfigError naming the place, the value and the remedy."""

    base: Kwargs
    """The document that every cell shares; in a file also the path of one."""
    families: dict[str, Kwargs] = Field(min_length=1)
    """Name -> what it changes in `base`; the name is the cell's algorithm_id."""
    tasks: dict[str, Kwargs] | None = None
    """Name -> what it changes in `base`. A bare list of names names environments where `base` has no
    environment.id, and otherwise only labels, so that two of them would be the same experiment."""
    seeds: tuple[Annotated[Whole, Field(ge=0, lt=10**18)], ...] = Field(default=(0,), min_length=1)
    """Seeds of every family on every task; they win over base.run.seeds."""
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    """Dotted path -> values; every combination makes families of its own."""
    output_dir: str = Field(default="runs/sweep", min_length=1)
    """Folder of the sweep; it wins over base.run.output_dir."""

    def __init__(self, /, **values: Any):
        values = mistakes.plain_document(values)
        try:
            super().__init__(**_with_task_overrides(values))
        except ValidationError as error:
            raise mistakes.explain(error, type(self)) from None
        _check(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "SweepConfig":
        """The sweep of plain document values."""
        return cls(**{str(key): value for key, value in document.items()})

    def resolved(self) -> dict[str, Any]:
        """The sweep as plain values."""
        return self.model_dump(mode="json", exclude_none=True)


class CellGroup(NamedTuple):
    """Cells of a sweep that differ only in their seed: one run."""

    name: str
    """The run's directory under the sweep's."""
    family: str
    task: str
    config: ExperimentConfig

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the run."""
        return self.config.run.seeds

    @property
    def total_steps(self) -> int:
        """Environment steps over all seeds."""
        return self.config.rollout.total_steps * len(self.seeds)


def merge(overlay: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with each section's keys replaced by those of `overlay`; what lies deeper is replaced whole."""
    merged = dict(base)
    for section, value in overlay.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(section), Mapping)
        merged[section] = {**mapping(merged[section]), **mapping(value)} if both else value
    return merged


def expand_sweep(sweep: SweepConfig) -> list[ExperimentConfig]:
    """One experiment a cell, by family, then task, then seed.

    Warns where several seeds run a third-party algorithm into whose arguments no SEED was written:
    perdure cannot seed what it did not build, so their spread would measure nothing.
    """
    for message in unseeded(sweep):
        warnings.warn(message, stacklevel=2)
    return [config for _, config in _cells(sweep)]


def plan(sweep: SweepConfig) -> list[CellGroup]:
    """The runs of a sweep in the order of its cells, those that differ only in seed together."""
    groups: dict[str, tuple[tuple[str, str], ExperimentConfig, list[int]]] = {}
    for names, config in _cells(sweep):
        entry = groups.setdefault(seedless(config.resolved()), (names, config, []))
        entry[2].append(config.run.seed)
    return [_group(names, with_seeds(config, seeds)) for names, config, seeds in groups.values()]


def with_seeds(config: ExperimentConfig, seeds: Sequence[int]) -> ExperimentConfig:
    """The same experiment with other seeds."""
    document = config.model_dump(exclude_unset=True)
    return ExperimentConfig.from_document({**document, "run": {**document.get("run", {}), "seeds": list(seeds)}})


def seedless(resolved: Mapping[str, Any]) -> str:
    """What a resolved document says apart from seeds and places: equal for cells that can share a run."""
    places = ("seeds", "run_id", "output_dir")
    kept = {key: value for key, value in resolved["run"].items() if key not in places}
    return json.dumps({**resolved, "run": kept}, sort_keys=True)


def unseeded(sweep: SweepConfig) -> list[str]:
    """A message for each family whose third-party algorithm no seed reaches."""
    messages: list[str] = []
    if len(sweep.seeds) < 2:
        return messages
    for family, (base, _) in _families(sweep).items():
        algorithm = mapping(base.get("algorithm"))
        arguments = [algorithm.get("kwargs"), mapping(algorithm.get("policy")).get("kwargs")]
        if ":" in str(algorithm.get("name")) and SEED not in json.dumps(arguments):
            messages.append(
                f"families.{family} builds {algorithm['name']} without a seed: write SEED into algorithm.kwargs, "
                f"or its {len(sweep.seeds)} seeds differ in nothing but the environment"
            )
    return messages


def table(groups: Sequence[CellGroup]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of what a sweep will cost; the share is of all environment steps."""
    total = sum(group.total_steps for group in groups)
    headers = ["run", "family", "task", "seeds", "steps a seed", "steps", "share"]
    rows = [
        [
            group.name,
            group.family,
            group.task,
            " ".join(map(str, group.seeds)),
            f"{group.config.rollout.total_steps:,}",
            f"{group.total_steps:,}",
            f"{group.total_steps / total:.1%}",
        ]
        for group in groups
    ]
    return headers, rows


def _with_task_overrides(values: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(values.get("tasks"), list):
        return values
    names: list[Any] = values["tasks"]
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise ConfigError(f"tasks[{index}] is {mistakes.shown(name)}; a task is a name, or `name: what it changes`")
        if name in names[:index]:
            raise ConfigError(f"tasks[{index}] is {name!r}, which is there twice; keep one")
    named = "id" in mapping(mapping(values.get("base")).get("environment"))
    return {**values, "tasks": {name: {} if named else {"environment": {"id": name}} for name in names}}


def _check(sweep: SweepConfig) -> None:
    for seed in sweep.seeds:
        if sweep.seeds.count(seed) > 1:
            raise ConfigError(f"seeds holds {seed} more than once, which would repeat a cell; keep one")
    if sweep.tasks is not None and not sweep.tasks:
        raise ConfigError("tasks is empty; name a task or leave the key out")
    for path, values in sweep.grid.items():
        if not values:
            raise ConfigError(f"grid.{path} is empty; list the values to try")
    if "run_id" in mapping(sweep.base.get("run")):
        raise ConfigError("base.run.run_id would name every cell alike; leave it out")
    tasks: list[tuple[str, Kwargs]] = list((sweep.tasks or {}).items())
    for (one, changes), (other, same) in itertools.combinations(tasks, 2):
        if changes == same:
            raise ConfigError(f"tasks.{one} and tasks.{other} change the same, so they are one experiment; keep one")


def _cells(sweep: SweepConfig) -> list[tuple[tuple[str, str], ExperimentConfig]]:
    tasks: dict[str | None, Kwargs] = {**sweep.tasks} if sweep.tasks is not None else {None: {}}
    product = itertools.product(_families(sweep).items(), tasks.items(), sweep.seeds)
    return [_cell(sweep, family, task, seed) for family, task, seed in product]


def _families(sweep: SweepConfig) -> dict[str, tuple[dict[str, Any], str]]:
    """Family, grid point included -> (the document before its task and seed, the place errors name)."""
    families: dict[str, tuple[dict[str, Any], str]] = {}
    for family, changes in sweep.families.items():
        document = merge(changes, sweep.base)
        for point in itertools.product(*sweep.grid.values()):
            changed, label = document, family
            for path, value in zip(sweep.grid, point, strict=True):
                changed = _at(changed, path.split("."), value)
                label += f",{path.split('.')[-1]}={value}"
            families[label] = (changed, f"families.{family}")
    return families


def _at(section: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    return {**section, path[0]: value if len(path) == 1 else _at(mapping(section.get(path[0])), path[1:], value)}


def _cell(
    sweep: SweepConfig, family: tuple[str, tuple[dict[str, Any], str]], task: tuple[str | None, Kwargs], seed: int
) -> tuple[tuple[str, str], ExperimentConfig]:
    (label, (document, place)), (name, changes) = family, task
    names = {"algorithm_id": label, "family": label} | ({} if name is None else {"task": name})
    document = merge(changes, document)
    run = {key: value for key, value in mapping(document.get("run")).items() if key != "seed"}
    run |= {**names, "seeds": [seed], "output_dir": sweep.output_dir}
    try:
        config = ExperimentConfig.from_document(_seeded({**document, "run": run}, seed))
    except ConfigError as error:
        where = place if name is None else f"{place} with tasks.{name}"
        raise type(error)(f"{where}: {error}") from None
    return (label, config.task), config


def _seeded(value: Any, seed: int) -> Any:
    if value == SEED:
        return seed
    if isinstance(value, str):
        return value.replace(SEED, str(seed))
    if isinstance(value, Mapping):
        return {key: _seeded(entry, seed) for key, entry in mapping(value).items()}
    return [_seeded(entry, seed) for entry in cast("list[Any]", value)] if isinstance(value, list) else value


def _group(names: tuple[str, str], config: ExperimentConfig) -> CellGroup:
    return CellGroup(config.run_id, *names, config)
