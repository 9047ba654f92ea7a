"""The `stages` of a pipeline document: what may stand in each, and its defaults."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import Field, Strict, ValidationError, field_validator, model_validator

from perdure.core.errors import ConfigError
from perdure.harness import mistakes
from perdure.harness.sections import FACTORY, Count, Kwargs, Section, Whole
from perdure.lm import tokens

Number = Annotated[float, Strict()]
Natural = Annotated[Whole, Field(ge=0)]
Seed = Annotated[Whole, Field(ge=0, lt=10**18)]
ORDER = ("sft", "value", "lcm")
"""The stages that train, in the order of the chain."""


class ExpertConfig(Section):
    """Episodes of a scripted expert in the document's world."""

    episodes: Count = 200
    """Of each regime."""
    regimes: str | tuple[str, ...] = "all"
    """"all" regimes of the document, or a list of their ids."""
    factory: str | None = None
    """"package.module:Expert", called with an observation; the world's own `expert` if unset."""
    kwargs: Kwargs = Field(default_factory=dict)
    """Arguments of the factory."""
    turns: Count = 64
    """Answers of one episode, at most."""
    seed: Seed = 0
    """Of the questions."""

    @field_validator("regimes", mode="before")
    @classmethod
    def _known_form(cls, value: Any) -> Any:
        return _regimes(value)

    @field_validator("factory")
    @classmethod
    def _factory_form(cls, value: str | None) -> str | None:
        if value is not None and not FACTORY.fullmatch(value):
            raise ValueError("must read package.module:factory")
        return value


class DataConfig(Section):
    """Where examples come from: one of the two."""

    file: str | None = Field(default=None, min_length=1)
    """A trajectories.jsonl."""
    expert: ExpertConfig | None = None
    """Or episodes of an expert."""


class FilterConfig(Section):
    """Which examples are used; one that fails a test is counted in the data card and left out."""

    min_reward: Number | None = None
    """The least total reward of an episode."""
    verified: bool = False
    """Only episodes that the verifier passed."""
    max_tokens: Count | None = None
    """The longest example, in tokens. Without it one that is longer than the model's context is an error."""


class RolloutsConfig(Section):
    """Episodes of the frozen policy in the document's world."""

    runs: Count = 8
    """Independent streams of episodes, each through every regime."""
    episodes: Count = 16
    """Of each run and regime."""
    turns: Count = 64
    """Answers of one episode, at most; more of it are cut off."""
    seed: Seed = 0


class FitConfig(Section):
    """How a stage is trained: on batches in a shuffled order, judged on what is held out."""

    steps: Count = 250
    """Optimiser steps, at most."""
    batch: Count = 32
    """Rows of one step."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """See lm.step.Optimisation."""
    learning_rate: Annotated[Number, Field(gt=0)] = 1e-5
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """constant; linear or cosine: down to 0 at the last step."""
    warmup_steps: Natural = 0
    """Steps over which the rate rises linearly."""
    hold_steps: Natural = 0
    """Steps that it then stays there before a schedule lets it fall."""
    weight_decay: Annotated[Number, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[Number, Field(ge=0)] = 1.0
    """0 does not bound it."""
    tokens_per_micro_batch: Count = 8192
    """Tokens of one pass, padding included."""
    bf16: bool = False
    """Passes run under bfloat16 autocast."""
    holdout: Annotated[Number, Field(ge=0, lt=1)] = 0.1
    """Share of the data that judges and is not trained on; 0 trains all steps on everything."""
    evaluate_every: Count = 25
    """Steps between judgements; start and end have one besides."""
    patience: Natural = 0
    """Judgements in a row without a better one that end the stage; 0 never does. The best weights are kept."""
    checkpoint_every: Count = 50
    """Steps between checkpoints."""
    seed: Seed = 0
    """Of the order of rows and of what is held out."""

    @model_validator(mode="after")
    def _reaches_its_rate(self) -> Any:
        if self.warmup_steps + self.hold_steps >= self.steps:
            raise ConfigError(
                f"a stage's warmup_steps and hold_steps are {self.warmup_steps} and {self.hold_steps}; "
                f"together they must be below steps ({self.steps})"
            )
        if self.schedule == "constant" and self.hold_steps:
            raise ConfigError(
                f"a stage's hold_steps is {self.hold_steps} with schedule constant, which never falls; leave it out, "
                "or set schedule: linear or cosine"
            )
        return self


class SftConfig(FitConfig):
    """Supervised tuning of the document's policy, on the tokens of answers alone."""

    data: DataConfig
    filter: FilterConfig = FilterConfig()
    vocabulary: Annotated[Whole, Field(ge=tokens.LEAST)] | None = None
    """Tokens of a byte-pair vocabulary trained on the examples first, for `perdure/tiny`; bytes alone if unset."""
    opening_steps: Natural = 0
    """Steps at the start that train on the first answer of each example alone: a random model learns to attend
    sooner where there is less to attend to."""

    @model_validator(mode="after")
    def _opens_before_its_end(self) -> Any:
        if self.opening_steps > self.steps:
            raise ConfigError(f"stages.sft.opening_steps is {self.opening_steps}; it is at most steps ({self.steps})")
        return self


class ValueConfig(FitConfig):
    """The critic of the frozen policy, trained on returns of its own episodes."""

    learning_rate: Annotated[Number, Field(gt=0)] = 3e-3
    rollouts: RolloutsConfig = RolloutsConfig()
    gamma: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Discount of a turn; the algorithm's if unset."""
    lam: Annotated[Number, Field(ge=0, le=1)] = 1.0
    """1: Monte-Carlo returns. Below: TD(lambda), lam a token, with the critic's values of the last judgement."""


class LcmConfig(FitConfig):
    """The encoder of a latent context, trained to name the regime of a window of what was seen."""

    batch: Count = 64
    learning_rate: Annotated[Number, Field(gt=0)] = 3e-3
    holdout: Annotated[Number, Field(ge=0, lt=1)] = 0.25
    """Share of the runs (streams of episodes) that judge."""
    file: str | None = Field(default=None, min_length=1)
    """A trajectories.jsonl whose episodes name their regimes; episodes of the frozen policy if unset."""
    rollouts: RolloutsConfig = RolloutsConfig()
    consistency: Annotated[Number, Field(ge=0)] = 0.1
    """Weight of the consistency of neighbouring latents."""


class ExportConfig(Section):
    """The bundle of the trained policy, written and verified at the end."""

    folder: str | None = Field(default=None, min_length=1)
    """Where it goes; OUTPUT_DIR/stages/export-... if unset."""


class StagesConfig(Section):
    """The stages of a pipeline; those left out are left out."""

    sft: SftConfig | None = None
    value: ValueConfig | None = None
    lcm: LcmConfig | None = None
    export: ExportConfig | None = None


class StagesDocument(Section):
    """What a pipeline document has beside the experiment."""

    stages: StagesConfig


def parse(values: Any) -> StagesConfig:
    """The stages of plain document values; ConfigError naming place, value and remedy."""
    plain = mistakes.plain(values, "stages")
    if isinstance(plain, Mapping):  # "export:" with nothing after it means its defaults.
        sections = cast("Mapping[str, Any]", plain)
        plain = {name: {} if section is None else section for name, section in sections.items()}
    try:
        return _one_source(StagesDocument.model_validate({"stages": plain}).stages)
    except ValidationError as error:
        raise mistakes.explain(error, StagesDocument) from None


def _one_source(stages: StagesConfig) -> StagesConfig:
    if stages.sft is not None and (stages.sft.data.file is None) == (stages.sft.data.expert is None):
        given = "both" if stages.sft.data.file else "neither"
        raise ConfigError(f"stages.sft.data has {given} of file and expert; give one of them")
    if stages.lcm is not None and stages.lcm.file is not None and "rollouts" in stages.lcm.model_fields_set:
        raise ConfigError("stages.lcm.rollouts is given beside stages.lcm.file; keep one of them")
    return stages


def _regimes(value: Any) -> Any:
    if value == "all":
        return value
    names = tuple(cast("list[Any]", value)) if isinstance(value, list | tuple) else ()
    if names and all(isinstance(name, str) for name in names):
        return names
    raise ValueError("must be all or a list of regime ids")
