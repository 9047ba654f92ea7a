"""From one document to a trained policy: sft, value and lcm, then the experiment itself, export and verify.

A stage's folder is named by what goes into it (OUTPUT_DIR/stages/NAME-<12 digits>), so that one that is finished is
not run again, and one whose settings change, or whose upstream does, gets a folder of its own. The stage before is
the policy of the next one (`algorithm.policy.kwargs.name_or_path`).
"""

# Policies, environments and document values are of any type.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from perdure import build, language
from perdure.core import registry, seeds
from perdure.core.errors import ConfigError, DataError, Refused, nearest
from perdure.harness import checkpoint, consistency, directory, export, load
from perdure.harness.config import ExperimentConfig
from perdure.harness.sections import PolicyConfig
from perdure.lm.stages import folder as places
from perdure.lm.stages import sections
from perdure.lm.stages.consumer import Consumer

NAMES = (*sections.ORDER, "rl", "export")
"""The links of the chain, in their order."""
BUILT = ("tiny", "lora", "name_or_path")
"""What a policy that is read from a stage's folder no longer needs to be told."""
UNADDRESSED = {"checkpoint_every"}
"""Settings that change nothing of a stage's result."""
GAMMA = 0.99
"""The discount of the language trainers, where a document gives none."""

Say = Callable[[str], None]


class Step(NamedTuple):
    """A link of the chain and where its result lies."""

    name: str
    folder: Path
    status: str
    """finished, begun or new."""


class Pipeline:
    """A pipeline document: an experiment, and the stages before and after it.

    `values` are the document's plain values with `stages` among them. Raises ConfigError naming place, value and
    remedy, Refused where the algorithm trains no language policy.
    """

    def __init__(self, values: Mapping[str, Any]):
        if "stages" not in values:
            raise ConfigError("stages is missing; add stages: {sft: {data: {expert: {}}}}, or use: perdure run")
        self.stages = sections.parse(values["stages"])
        self.values = {name: section for name, section in values.items() if name != "stages"}
        self.config = ExperimentConfig.from_document(self.values)
        if not language.is_language(self.config):
            raise Refused(
                f"algorithm.name is {self.config.algorithm.name!r}; stages are for language policies (lm/...)"
            )
        self._given = self.config.algorithm.policy or PolicyConfig()
        self._factory = registry.load(self._given.factory, "algorithm.policy.factory")
        self.names = tuple(name for name in NAMES if name == "rl" or getattr(self.stages, name) is not None)
        self.consumer = Consumer(self.values["algorithm"]) if self.stages.lcm is not None else None
        self._check()
        self._data = language.data(self.config)

    @classmethod
    def read(cls, path: str | Path, overrides: Iterable[str] = ()) -> "Pipeline":
        """The pipeline of a document file; every ConfigError opens with its file and line."""
        document = load.read(path, overrides)
        with load.located(document):
            return cls(document.values)

    def plan(self) -> list[Step]:
        """The links of the chain and how far each has come."""
        return [Step(name, self.folder(name), self.status(name)) for name in self.names]

    def check(self, *, policy: bool = False) -> None:
        """Build what the experiment names; raises what is wrong. With `policy` also as if no stage came before."""
        made = build.build(self.config)
        if policy and self.stages.value is None and self.consumer is None:  # Else it lacks what those make.
            made.init(self.config.run.seeds[:1])
        made.close()
        build.evaluation_plan(self.config, build.schedule_of(self.config))

    def run(self, *, say: Say = lambda text: None, progress: bool = False) -> list[Step]:
        """Run what is not finished, link by link, and go on with what was begun; returns the finished chain.

        Raises what the stages and `build.run_experiment` raise; DataError for a bundle that is not whole.
        """
        self.check()
        for name in self.names:
            self._run(name, say, progress)
        return self.plan()

    def run_stage(self, name: str, *, say: Say = lambda text: None) -> Step:
        """Run one training stage alone; ConfigError where the document has none, or an earlier one is not finished."""
        if getattr(self.stages, name) is None:
            raise ConfigError(f"stages.{name} is missing; add it to the document")
        self.check()
        before = self.before(name)
        if before is not None and self.status(before) != "finished":
            raise ConfigError(
                f"stages.{name} goes on from stages.{before}, which is not finished; run that first, or use: "
                "perdure pipeline"
            )
        self._run(name, say, False)
        return Step(name, self.folder(name), "finished")

    def before(self, name: str) -> str | None:
        """The stage whose policy link `name` begins with."""
        earlier = NAMES[: NAMES.index(name)]
        return next((each for each in ("value", "sft") if each in earlier and each in self.names), None)

    def status(self, name: str) -> str:
        """How far a link has come: finished, begun or new."""
        folder = self.folder(name)
        if name == "rl":
            known = directory.read_meta(folder)["status"] if (folder / "run.json").is_file() else "new"
            return known if known in ("finished", "new") else "begun"
        if name == "export":
            return "finished" if (folder / "bundle.json").is_file() else "new"
        return "finished" if places.is_finished(folder) else "begun" if places.is_begun(folder) else "new"

    def folder(self, name: str) -> Path:
        """Where the result of a link lies."""
        if name == "rl":
            return self.experiment.folder
        if name == "export" and self.stages.export is not None and self.stages.export.folder is not None:
            return Path(self.stages.export.folder)
        return Path(self.config.run.output_dir) / "stages" / places.address(name, self._contents(name))

    @functools.cached_property
    def experiment(self) -> ExperimentConfig:
        """The experiment as it is run: its policy is the last stage's, its encoder the trained one."""
        algorithm = dict(self.values["algorithm"])
        if self.before("rl") is not None:
            algorithm["policy"] = {"factory": self._given.factory, "kwargs": self.policy_kwargs("rl")}
        if self.consumer is not None:
            warmed = self.consumer.warmed(str(self.folder("lcm")), self.labels)
            algorithm |= {key: warmed[key] for key in ("kwargs", "extensions") if key in warmed}
        return ExperimentConfig.from_document({**self.values, "algorithm": algorithm})

    def policy_kwargs(self, name: str) -> dict[str, Any]:
        """The policy's arguments as link `name` builds it: the document's, or those of the stage before."""
        kwargs, before = dict(self._given.kwargs), self.before(name)
        if before is None:
            return kwargs
        kept = {key: value for key, value in kwargs.items() if key not in BUILT}
        critic = {"value_head": "required"} if before == "value" else {}
        return {**kept, "name_or_path": str(self.folder(before)), **critic}

    @property
    def labels(self) -> list[str]:
        """The regimes that a context encoder tells apart: as the document says, else those of its schedule."""
        assert self.consumer is not None
        told = self.consumer.kwargs.get("labels")
        names = [each.origin if self.consumer.origins else each.id for each in self._segments()]
        return list(told) if told else list(dict.fromkeys(names))

    def _check(self) -> None:
        """What would go wrong late, said early."""
        if "name_or_path" not in inspect.signature(self._factory).parameters:
            raise Refused(
                f"algorithm.policy.factory is {self._given.factory!r}, which takes no name_or_path; a stage hands its "
                "policy on as a folder"
            )
        if self.before("rl") == "sft" and self._trains_critic and self._given.kwargs.get("value_head") != "fresh":
            raise ConfigError(
                f"stages.value is missing: {self.config.algorithm.name} trains a critic, and sft leaves none; add "
                "stages.value: {}, or set algorithm.policy.kwargs.value_head: fresh"
            )
        kwargs = self._given.kwargs
        if self.stages.sft is not None and self.stages.sft.vocabulary is not None:
            taken = [key for key in ("name_or_path", "lora") if kwargs.get(key) not in (None, "perdure/tiny")]
            taken += ["tiny.tokenizer"] if (kwargs.get("tiny") or {}).get("tokenizer") else []
            if taken:
                raise ConfigError(
                    f"stages.sft.vocabulary is set, but algorithm.policy.kwargs has {taken[0]}; a new vocabulary is "
                    "for all weights of a new perdure/tiny: leave one of them out"
                )
        if self.stages.sft is not None and self.stages.sft.data.expert is not None:
            self.regimes(self.stages.sft.data.expert.regimes, "stages.sft.data.expert.regimes")

    @property
    def _trains_critic(self) -> bool:
        groups = self.config.algorithm.name in consistency.GROUP_LEARNERS
        return not groups and self.config.algorithm.kwargs.get("preset") != "reference"

    def _contents(self, name: str) -> dict[str, Any]:
        """All that a link's result depends on, as plain values."""
        if name == "export":
            return {"run": self.experiment.run_id, "document": self.experiment.config_hash()}
        settings = getattr(self.stages, name)
        resolved = self.config.resolved()
        before = self.before(name)
        contents = {
            "settings": settings.model_dump(mode="json", exclude=UNADDRESSED),
            "world": {**{key: resolved.get(key) for key in ("environment", "reward")}, **self._data},
            "regimes": [[each.id, each.origin, each.params] for each in self.regimes()],
            "policy": {"factory": self._given.factory, "kwargs": dict(self._given.kwargs)},
            "before": self.folder(before).name if before is not None else places.base(self._given.kwargs),
        }
        file = settings.data.file if name == "sft" else getattr(settings, "file", None)
        if file is not None:
            contents["data"] = places.digest(Path(file), f"stages.{name}.{'data.' if name == 'sft' else ''}file")
        if name == "value":
            contents["gamma"] = self._gamma
        if self.consumer is not None and name == "lcm":
            contents["encoder"] = {**self.consumer.shaping, "labels": self.labels, "origins": self.consumer.origins}
        return contents

    def _run(self, name: str, say: Say, progress: bool) -> None:
        folder = self.folder(name)
        if self.status(name) == "finished" and name != "export":
            say(f"{name}: finished before, in {folder}")
        elif name == "rl":
            build.run_experiment(self.experiment, resume=True, progress=progress)
        elif name == "export":
            self._export(folder, say)
        else:
            contents = {"name": name, **self._contents(name)}
            with places.opened(folder, contents):
                fitted = self._train(name, folder, lambda text: say(f"{name}: {text}"))
                places.finish(folder, {**contents, "result": fitted._asdict()})
            say(f"{name}: finished, in {folder}")

    def _train(self, name: str, folder: Path, say: Say) -> Any:
        from perdure.lm.stages import lcm, sft, sources, value

        settings = getattr(self.stages, name)
        make_env = language.environments(self.config)
        play = functools.partial(sources.rollouts, make_env, self.regimes(), say=say)
        if name == "sft":
            policy = self._policy(name, settings.seed)
            regimes = self.regimes(settings.data.expert.regimes if settings.data.expert is not None else "all")
            found = functools.partial(sources.examples, settings.data, make_env, regimes=regimes, say=say)
            if settings.vocabulary is not None:
                policy = self._policy(
                    name, settings.seed, sources.vocabulary(found(policy=policy)[0], settings, folder)
                )
            records, source = found(policy=policy)
            return sft.run(policy, records, source, settings, folder, say)
        if name == "value":
            policy = self._policy(name, settings.seed)
            return value.run(policy, functools.partial(play, policy), settings, self._gamma, folder, say)
        assert self.consumer is not None
        encoder = self.consumer.encoder(self.labels, settings.seed)
        labelled = lambda: sources.labelled(settings, folder, lambda: self._policy(name, settings.seed), play)
        return lcm.run(encoder, labelled, settings, folder, say, origins=self.consumer.origins)

    def _export(self, folder: Path, say: Say) -> None:
        """Write the bundle unless it is there, and verify it in any case."""
        if (folder / "bundle.json").is_file():
            held = checkpoint.read_json(folder / "bundle.json").get("config_hash")
            if held != self.experiment.config_hash():
                raise DataError(f"{folder} holds a bundle of another document; set stages.export.folder to another one")
        else:
            with directory.disk(folder):
                folder.parent.mkdir(parents=True, exist_ok=True)
            build.export_run(self.experiment.folder, folder)
        problems = export.verify(folder)
        if problems:
            raise DataError(f"{folder} is not whole: {problems[0]}; remove it and start again")
        say(f"export: whole and unchanged, in {folder}")

    def _policy(self, name: str, seed: int, tokenizer: Path | None = None) -> Any:
        kwargs = self.policy_kwargs(name)
        if tokenizer is not None:
            kwargs["tiny"] = {**(kwargs.get("tiny") or {}), "tokenizer": str(tokenizer)}
        if name == "sft" or (name == "value" and self.before(name) == "sft"):
            kwargs.pop("value_head", None)  # None is there yet, and none is asked for.
        return self._factory(**{"seed": seeds.stream(seed, "init"), **kwargs})

    @property
    def _gamma(self) -> float:
        told = self.stages.value.gamma if self.stages.value is not None else None
        return float(self.config.algorithm.kwargs.get("gamma", GAMMA) if told is None else told)

    def _segments(self) -> tuple[Any, ...]:
        return build.schedule_of(self.config).segments

    def regimes(self, wanted: Any = "all", place: str = "regimes") -> list[Any]:
        """The configurations of the document's regimes, each once; ConfigError for the name of none."""
        known: dict[str, Any] = {}
        for segment in self._segments():
            known.setdefault(segment.origin, segment)
        if wanted == "all":
            return list(known.values())
        every = {segment.id: segment for segment in self._segments()} | known
        for number, name in enumerate(wanted):
            if name not in every:
                raise ConfigError(f"{place}[{number}] is {name!r}, which never occurs; {nearest(name, every)}")
        return [every[name] for name in wanted]
