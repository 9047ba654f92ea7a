"""Three lines for a person who wants one agent in one world: `train`, and the policy that comes of it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perdure import build, named
from perdure.core import registry
from perdure.core.errors import PerdureError
from perdure.harness.config import ExperimentConfig
from perdure.harness.job import RunResult


@dataclasses.dataclass(frozen=True)
class Trained:
    """A finished training: where it lies and how its policy does."""

    folder: Path
    result: RunResult = dataclasses.field(repr=False)

    @property
    def scores(self) -> dict[str, np.ndarray]:
        """Regime -> greedy returns of the final policy, [seeds, episodes]."""
        found: dict[str, list[list[float]]] = {}
        for line in self.result.evaluations:
            found.setdefault(line["regime"], []).append(line["returns"])
        return {regime: np.array(returns) for regime, returns in found.items()}

    def policy(self, seed: int | None = None) -> Callable[[Any], Any]:
        """The final greedy policy of one seed (the first one, if None): observation -> action in world units."""
        return load_policy(self.folder, seed)

    def report(self, destination: Path | str | None = None) -> Path:
        """Write the HTML report, FOLDER/report.html by default."""
        from perdure.harness.runs import load_run
        from perdure.report.page import write_report

        return write_report([load_run(self.folder)], Path(destination or self.folder / "report.html"))


def train(
    agent: Any,
    world: str | Callable[..., Any],
    total_steps: int,
    *,
    extensions: Sequence[Any] = (),
    expert: Any = None,
    regime: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (0,),
    n_envs: int | None = None,
    window_steps: int = 128,
    evaluate_every: int | None = None,
    episodes: int = 8,
    output_dir: str | Path = "runs",
    run_id: str | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Trained:
    """Train `agent` for `total_steps` environment steps of each seed, and evaluate it.

    `world` is a registered world, a Gymnasium id, "package.module:factory", or such a factory or
    class itself, if it stands at the top of a module that can be imported; `expert` is the agent's
    own, which extensions may ask; `regime` is the document's regime section as a mapping. `n_envs`
    defaults to 1 for replay agents and 4 for on-policy ones. The run directory below `output_dir`
    holds the trace and the resolved document, from which `perdure run` gives the same run again.
    """
    copies = n_envs or (4 if hasattr(agent.feed, "epochs") else 1)
    document = {
        "environment": {"id": world if isinstance(world, str) else _path(world)},
        "algorithm": {
            "name": _name("agents", agent),
            "kwargs": _changed(agent),
            "extensions": [_named("extensions", each) for each in extensions],
            "expert": None if expert is None else _named("experts", expert),
        },
        "rollout": {"total_steps": total_steps, "n_envs": copies, "window_steps": window_steps},
        "regime": dict(regime or {}),
        "evaluation": {"every": evaluate_every, "episodes": episodes},
        "run": {"seeds": list(seeds), "output_dir": str(output_dir), "run_id": run_id},
    }
    config = ExperimentConfig.from_document(document)
    result = build.run_experiment(config, resume=resume, progress=progress)
    return Trained(result.folder, result)


def load_policy(folder: Path | str, seed: int | None = None) -> Callable[[Any], Any]:
    """The greedy policy of a run's newest checkpoint: observation -> action in world units."""
    return build.policy_of(Path(folder), seed)


def _path(factory: Any) -> str:
    """The import path of a class or function."""
    module, name = getattr(factory, "__module__", "__main__"), getattr(factory, "__qualname__", "<")
    if module == "__main__" or "<" in name or "." in name:
        raise PerdureError(
            f"world is {factory!r}, which no document can name; put it at the top of a module and pass it, "
            'or its name "module:factory"'
        )
    return f"{module}:{name}"


def _named(family: str, part: Any) -> dict[str, Any]:
    """A component as a document gives it."""
    return {"name": _name(family, part), "kwargs": _changed(part)}


def _name(family: str, part: Any) -> str:
    """The registered name of a component, or its import path."""
    target = f"{type(part).__module__}:{type(part).__qualname__}"
    for name, known in registry.names(family).items():
        if known == target:
            return name
    if not dataclasses.is_dataclass(part):
        raise PerdureError(f"{target} is not a component; decorate it with perdure.core.component.component")
    return target


def _changed(part: Any, default: Any = None) -> dict[str, Any]:
    """The fields that differ from `default` (None: from the class's own defaults), as plain values."""
    changed = {}
    for field in dataclasses.fields(part):
        value, usual = getattr(part, field.name), getattr(default, field.name, field.default)
        if field.name == named.EXPERT and value is not None:
            changed[field.name] = _named("experts", value)
        elif hasattr(value, "check_fits"):
            changed[field.name] = _stored(value, field.name)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            nested = _changed(value, usual) if type(usual) is type(value) else named.plain(value)
            if nested:
                changed[field.name] = nested
        elif value != usual:
            changed[field.name] = list(value) if isinstance(value, tuple) else value
    return changed


def _stored(dataset: Any, name: str) -> str:
    """The file that holds a dataset."""
    if dataset.path is None:
        raise PerdureError(f"{name} is {dataset!r}, which lies in no file; write it first: dataset.save('data.npz')")
    return str(dataset.path)
