"""How a language backend trains: the keys of its documents, and the defaults of both presets."""

import dataclasses
import enum
import math

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.lm import preset
from perdure.lm.sampling import Sampling, refuse_untrainable
from perdure.lm.token_slice import ActionTokens
from perdure.metrics.advantages import GAEMode


class RatioMode(enum.StrEnum):
    """What one ratio of the clipped objective spans."""

    SEQUENCE_MEAN = "sequence_mean"
    """An answer: the exponential of its mean log-ratio."""
    PER_TOKEN = "per_token"
    """A token."""
    GSPO = "gspo"
    """An answer, as in GSPO (arXiv 2507.18071), with that paper's clip widths by default."""


class OldPolicyPass(enum.StrEnum):
    """Where the log-probabilities before the update come from."""

    TRAIN = "train"
    """Stored tokens scored with dropout live, so that not even the first ratio is 1."""
    EVAL = "eval"
    """Stored tokens scored without dropout."""
    SAMPLER = "sampler"
    """The sampler's own."""


CHOICES = {
    "gae": tuple(GAEMode),
    "ratio": tuple(RatioMode),
    "action_tokens": tuple(ActionTokens),
    "old_policy_pass": tuple(OldPolicyPass),
    "value_position": ("token", "final"),
    "bootstrap": ("value", "zero"),
    "kl_penalty": ("k1", "k2", "k3", "l2_anchor"),
}


@component
class Settings:
    """Proximal policy optimisation of answers. A key that is None is the preset's (see lm.preset).

    Raises ConfigError for a value out of range, naming the key.
    """

    preset: str = "corrected"
    gae: str | None = None
    """degenerate: every turn an episode of its own; episodic: the window's."""
    ratio: str | None = None
    """sequence_mean, per_token or gspo."""
    action_tokens: str | None = None
    """Which tokens of an answer are trained: all, qwen_think, first_json or outermost_json."""
    old_policy_pass: str | None = None
    """train, eval or sampler."""
    update_dropout: bool | None = None
    """Whether dropout is live in the passes of the update."""
    value_position: str | None = None
    """token: a value before each trained token; final: one after an answer."""
    bootstrap: str | None = None
    """value: what follows a truncation or a window's end counts; zero: nothing follows."""
    kl_penalty: str | None = None
    """What kl_coeff weights: l2_anchor, the squared distance of the model's trained weights from the first
    ones; or an estimate (k1, k2, k3) of the divergence from the policy of the first weights."""
    kl_under_adapters: bool | None = None
    """Whether the metric kl is measured where an adapter is trained; else it is 0 there."""
    kl_coeff: float = 0.0
    clip_range: float | None = None
    """Of the ratio, on both sides; 0.2, or GSPO's 3e-4 and 4e-4."""
    gamma: float = 0.99
    """Discount of a turn."""
    lam: float = 0.95
    """Decay of a token (value_position token) or a turn (final)."""
    epochs: int = 4
    minibatch: int = 8
    """Rows of one optimiser step: conversations, or answers where every answer is a row of its own."""
    value_coef: float = 0.5
    value_clip: float = 0.0
    entropy_coef: float = 0.0
    replay_seed: int = 0
    seed: int = 0
    """Of the order of minibatches and of dropout."""

    def __post_init__(self) -> None:
        if self.preset not in preset.PRESETS:
            raise ConfigError(f"preset is {self.preset!r}; it must be one of {', '.join(preset.PRESETS)}")
        for key, choices in CHOICES.items():
            if getattr(self, key) is not None and getattr(self, key) not in choices:
                raise ConfigError(f"{key} is {getattr(self, key)!r}; it must be one of {', '.join(choices)}")
        for key in ("gamma", "lam"):
            if not 0 <= getattr(self, key) <= 1:
                raise ConfigError(f"{key} is {getattr(self, key)}; it lies between 0 and 1")
        for key in ("kl_coeff", "value_coef", "value_clip", "entropy_coef"):
            if not 0 <= getattr(self, key) < math.inf:
                raise ConfigError(f"{key} is {getattr(self, key)}; it must be at least 0")
        for key in ("epochs", "minibatch"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} is {getattr(self, key)}; it must be at least 1")
        if self.clip_range is not None and not 0 < self.clip_range < 1:
            raise ConfigError(f"clip_range is {self.clip_range}; it lies between 0 and 1")

    def resolved(self) -> "Settings":
        """The same with every None of the preset's keys filled in."""
        return dataclasses.replace(self, **preset.resolve(self.preset, preset.TRAINING, vars(self)))

    @property
    def clips(self) -> dict[str, float]:
        """The clip widths that are set, as the losses' options."""
        return {} if self.clip_range is None else {"clip_low": self.clip_range, "clip_high": self.clip_range}

    @property
    def answer_a_row(self) -> bool:
        """Whether something looks at whole answers, so that each must be a row of its own."""
        return self.ratio != RatioMode.PER_TOKEN or self.value_position == "final"

    def refuse_sampling(self, sampling: Sampling) -> None:
        """Refused where answers are drawn from a distribution whose probabilities the ratios could not use."""
        own = self.old_policy_pass == OldPolicyPass.SAMPLER
        refuse_untrainable(sampling, own=own, key="old_policy_pass", remedy="eval")
