"""The sections of an experiment document: what may stand in each, and its defaults."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    field_validator,
    model_validator,
)

from perdure.core import component, registry
from perdure.core.errors import ConfigError

FACTORY = re.compile(r"\w[\w.]*:[A-Za-z_]\w*")
"""What "package.module:factory" looks like."""


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, Strict(), BeforeValidator(_whole)]
"""A whole number; 1e6 is one, true and "7" are not."""
Count = Annotated[Whole, Field(gt=0)]
Kwargs = dict[str, Any]
"""Free keys: they belong to the component that is named beside them."""


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


class Section(BaseModel):
    """A part of a document: immutable, and closed to keys it does not declare."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EnvironmentConfig(Section):
    """The world an agent acts in."""

    id: str = Field(min_length=1)
    """A registered world (`perdure list worlds`), a Gymnasium id, or "package.module:factory"."""
    kwargs: Kwargs = {}
    """Arguments of the world's constructor or of the factory."""

    def build(self) -> Any:
        """A gymnasium.Env, imported now; a pure world comes in its Gymnasium face."""
        make = registry.load("perdure.worlds.adapters.gymnasium:make", "environment.id")
        return make(self.id, self.kwargs, "environment.id")


class ExtensionConfig(Section):
    """One idea added to an algorithm; the order in the list is the order of composition."""

    name: str
    """A registered extension (`perdure list extensions`) or "package.module:Extension"."""
    kwargs: Kwargs = {}
    """The extension's own fields."""


class ExpertConfig(Section):
    """A policy from outside, which extensions ask."""

    name: str
    """A registered expert (`perdure list experts`) or "package.module:Expert"."""
    kwargs: Kwargs = {}
    """The expert's own fields."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class PolicyConfig(Section):
    """What acts, where the algorithm does not bring its own policy (language models)."""

    factory: str = "perdure.lm.factory:language_policy"
    """The "package.module:factory" that makes the policy; by default a language model by name or folder."""
    kwargs: Kwargs = {}
    """Arguments of the factory."""

    @field_validator("factory")
    @classmethod
    def _factory_form(cls, value: str) -> str:
        if not FACTORY.fullmatch(value):
            raise ValueError("must read package.module:factory")
        return value


class AlgorithmConfig(Section):
    """What learns."""

    name: str
    """A registered agent or trainer (`perdure list agents`) or "package.module:factory"."""
    kwargs: Kwargs = {}
    """The algorithm's own fields: learning rates, network sizes and so on."""
    extensions: tuple[ExtensionConfig, ...] = ()
    """Extensions in the order of composition."""
    expert: ExpertConfig | None = None
    """The agent's own expert; an extension's `expert_policy` may be another."""
    policy: PolicyConfig | None = None
    """The policy of a language algorithm or of a third-party one."""


class RolloutConfig(Section):
    """How experience is collected. Steps count the environment steps of one seed over all its copies."""

    total_steps: Count
    """Environment steps of each seed; a multiple of n_envs."""
    n_envs: Count = 1
    """Copies of the environment that step together."""
    window_steps: Count = 128
    """Steps of each copy between two updates (on-policy) or two reports (off-policy)."""
    groups_per_update: Count | None = None
    """Starts of one update of a group learner (lm/grpo and its kin), each played by group_size episodes."""
    group_size: Count | None = None
    """Episodes from one start, whose scores are compared with one another."""
    auto_reset: bool = True
    """Whether an episode's end begins the next; false for an environment that goes on by itself."""


class DetectorConfig(Section):
    """What tells the algorithm of a shift when nobody announces it."""

    name: str
    """A registered detector (`perdure list detectors`)."""
    kwargs: Kwargs = {}
    """The detector's own fields."""

    def build(self) -> Any:
        """The detector component."""
        cls = registry.resolve("detectors", self.name, "regime.detector.name")
        return component.make(cls, self.kwargs, "regime.detector.kwargs")


class RegimeConfig(Section):
    """How the world changes. The provider's own fields stand beside these keys, or under `params`."""

    model_config = ConfigDict(extra="allow")

    provider: str = "constant"
    """A registered regime provider (`perdure list regimes`)."""
    boundary_source: Literal["none", "oracle", "detector"] = "none"
    """What the algorithm is told of a shift."""
    detector: DetectorConfig | None = None
    """Needed by, and only allowed with, boundary_source: detector."""
    params: Kwargs | None = None
    """The provider's fields, for those who keep them apart."""

    def fields(self) -> dict[str, Any]:
        """The provider's own fields, wherever the document has them."""
        own, params = dict(self.model_extra or {}), self.params or {}
        twice = sorted(set(own) & set(params))
        if twice:
            raise ConfigError(f"regime.params.{twice[0]} also stands as regime.{twice[0]}; keep one")
        return {**own, **params}

    def build(self) -> Any:
        """The provider component."""
        cls = registry.resolve("regimes", self.provider, "regime.provider")
        return component.make(cls, self.fields(), "regime")


class RewardConfig(Section):
    """A reward made of named components; without this section the environment's own reward stands."""

    spec: dict[str, Any]
    """`components` (name, weight, params), and optionally `clip` and `regime_overrides`."""

    def build(self) -> Any:
        """The RewardSpec."""
        return registry.load("perdure.rewards.spec:RewardSpec", "reward.spec").from_document(self.spec, "reward.spec")


class EvaluationConfig(Section):
    """Greedy episodes of the frozen policy; they never touch training."""

    every: Count | None = None
    """Steps between evaluations, a multiple of n_envs; the start and every segment's end come besides."""
    episodes: Count = 8
    """Episodes on each regime and seed."""
    regimes: str | tuple[str, ...] = "all"
    """"all" regimes of the run, the "current" one, or a list of regime ids."""

    @field_validator("regimes", mode="before")
    @classmethod
    def _known_form(cls, value: Any) -> Any:
        if value in ("all", "current"):
            return value
        names = tuple(cast("list[Any]", value)) if isinstance(value, list | tuple) else ()
        if names and all(isinstance(name, str) for name in names):
            return names
        raise ValueError("must be all, current or a list of regime ids")


class RunConfig(Section):
    """Seeds, names and places."""

    seeds: tuple[Annotated[Whole, Field(ge=0, lt=10**18)], ...] = Field(default=(0,), min_length=1)
    """Independent repetitions, trained in one program; `seed: n` is short for `seeds: [n]`."""
    output_dir: str = Field(default="runs", min_length=1)
    """Folder that receives the run's directory."""
    algorithm_id: str | None = None
    """The name in tables and reports; algorithm.name if unset."""
    run_id: str | None = None
    """The directory's name; made of task, algorithm and configuration if unset."""
    task: str | None = None
    """The task in tables and reports; environment.id if unset."""
    family: str | None = None
    """The family of a sweep's cell."""
    checkpoint_every: Count | None = None
    """Steps between checkpoints, a multiple of n_envs; the end always has one."""

    @model_validator(mode="before")
    @classmethod
    def _one_seed(cls, values: Any) -> Any:
        given = mapping(values)
        if "seed" not in given:
            return values
        if "seeds" in given:
            raise ConfigError("run.seed and run.seeds are both given; keep one")
        return {key: value for key, value in given.items() if key != "seed"} | {"seeds": [given["seed"]]}

    @field_validator("run_id")
    @classmethod
    def _folder_form(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"\w[\w.-]{0,199}", value, re.ASCII):
            raise ValueError("must be a folder's name of at most 200 letters, digits, '_', '-' and '.'")
        return value

    @field_validator("output_dir")
    @classmethod
    def _path_form(cls, value: str) -> str:
        if "\0" in value:
            raise ValueError("must be a path without null characters")
        return value

    @property
    def seed(self) -> int:
        """The first seed."""
        return self.seeds[0]

    def meta(self) -> dict[str, Any]:
        """What goes into every trace row, unset keys dropped; `seed` if there is only one."""
        names = {"run_id": self.run_id, "algorithm_id": self.algorithm_id, "task": self.task, "family": self.family}
        seed = {"seed": self.seed} if len(self.seeds) == 1 else {}
        return {**{key: value for key, value in names.items() if value is not None}, **seed}
