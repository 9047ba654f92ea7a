"""The advantages, losses and aggregations by name, and `Objective`: a combination of them that was checked.

A function's keyword-only arguments are the options it reads. An option that is set and that no chosen part reads is
refused, so that no line of a document is without effect.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from perdure.core.component import component
from perdure.core.errors import ConfigError, nearest
from perdure.lm.objectives import advantages, aggregation, losses
from perdure.lm.objectives.kl import ESTIMATORS, AdaptiveKL, FixedKL, Law

ADVANTAGES: Mapping[str, Callable[..., Any]] = {
    "gae": advantages.gae,
    "grpo": advantages.grpo,
    "dr_grpo": advantages.dr_grpo,
    "rloo": advantages.rloo,
    "reinforce++": advantages.reinforce_plus_plus,
    "maxrl": advantages.maxrl,
}
"""gae: of values and rewards, token by token; the others: (returns_R, groups_R) -> RowAdvantages."""
LOSSES: Mapping[str, Callable[..., Any]] = {
    "reinforce": losses.reinforce,
    "ppo": losses.ppo,
    "dual_clip": losses.dual_clip,
    "sequence_mean": losses.sequence_mean,
    "gspo": losses.gspo,
    "cispo": losses.cispo,
    "sapo": losses.sapo,
}
"""(logprobs_BT, old_BT, advantages_BT, mask_BT, *, options) -> [B, T]."""
AGGREGATIONS: Mapping[str, Callable[..., Any]] = {
    "token_mean": aggregation.token_mean,
    "sequence_mean": aggregation.sequence_mean,
    "constant": aggregation.constant,
    "turn_mean": aggregation.turn_mean,
}
"""(mask_BT, denominators, turns_BT, *, options) -> weights [B, T]."""

CHOICES = {"advantage": ADVANTAGES, "loss": LOSSES, "aggregation": AGGREGATIONS}


def options(function: Callable[..., Any]) -> tuple[str, ...]:
    """The options that a function of these tables reads: its keyword-only arguments; `bootstrap` is data."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(each.name for each in parameters if each.kind == each.KEYWORD_ONLY and each.name != "bootstrap")


@component
class Objective:
    """What one update minimises. An option that is None takes the default of the part that reads it.

    ConfigError at construction for an unknown name, a number out of range, or an option that nothing chosen reads.
    """

    advantage: str = "grpo"
    """gae, grpo, dr_grpo, rloo, reinforce++ or maxrl."""
    loss: str = "ppo"
    """reinforce, ppo, dual_clip, sequence_mean, gspo, cispo or sapo."""
    aggregation: str = "token_mean"
    """token_mean, sequence_mean, constant or turn_mean."""

    gamma: float | None = None
    """gae: the discount of a turn."""
    lam: float | None = None
    """gae: the decay of a token."""
    standardise: bool = False
    """gae: shift and scale the batch's advantages to mean 0 and deviation 1."""
    scale: str | None = None
    """grpo: group, batch or none."""
    clip_low: float | None = None
    clip_high: float | None = None
    ratio_bound: float | None = None
    """dual_clip: the largest loss of a bad token in units of |A|."""
    ratio_cap: float | None = None
    """cispo: the largest weight of a token."""
    temperature_positive: float | None = None
    temperature_negative: float | None = None
    length: int | None = None
    """constant: the tokens a row is counted as."""

    old_logprobs: str = "sampler"
    """Whose log-probabilities the ratio starts from: the sampler's, or the trainer's before the update."""
    importance_cap: float | None = None
    """Weigh each token by min(trainer / sampler, this); with old_logprobs "trainer"."""

    kl: str = "none"
    """Where the divergence from the reference policy counts: none, reward or loss."""
    kl_coefficient: float = 0.0
    kl_estimator: str | None = None
    """k1 (the default in the reward), k2 or k3 (the default in the loss)."""
    kl_importance: bool = False
    """loss: multiply the estimate by the ratio, which makes its gradient unbiased."""
    kl_target: float | None = None
    """Adapt the coefficient until the divergence is this many nats a token."""
    kl_law: Law = Law()

    entropy_coefficient: float = 0.0
    value_coefficient: float = 0.5
    """gae: the weight of the critic's loss."""
    value_clip: float = 0.0
    """gae: how far from the acting critic's value a step may move; 0 does not bound it."""

    def __post_init__(self) -> None:
        for field, table in CHOICES.items():
            if getattr(self, field) not in table:
                raise ConfigError(f"{field} is {getattr(self, field)!r}; {nearest(getattr(self, field), table)}")
        for field, choices in (("old_logprobs", ("sampler", "trainer")), ("kl", ("none", "reward", "loss"))):
            if getattr(self, field) not in choices:
                raise ConfigError(f"{field} is {getattr(self, field)!r}; it is one of {', '.join(choices)}")
        self._check_options()
        self._check_ranges()
        self._check_kl()
        if self.loss == "sequence_mean" and self.aggregation != "sequence_mean":
            raise ConfigError("aggregation must be sequence_mean: the loss sequence_mean is one value a sequence")
        if self.importance_cap is not None and self.old_logprobs != "trainer":
            raise ConfigError("importance_cap has no effect with old_logprobs 'sampler'; set old_logprobs: trainer")

    def _check_options(self) -> None:
        read = {name for field in CHOICES for name in options(self._part(field))}
        every = {name for table in CHOICES.values() for function in table.values() for name in options(function)}
        ignored = [name for name in sorted(every - read) if getattr(self, name) is not None]
        if self.advantage != "gae":
            defaults = {each.name: each.default for each in dataclasses.fields(self)}
            critic = ("standardise", "value_coefficient", "value_clip")
            ignored += [name for name in critic if getattr(self, name) != defaults[name]]
        if ignored:
            chosen = ", ".join(getattr(self, field) for field in CHOICES)
            raise ConfigError(f"{ignored[0]} is set, but nothing of {chosen} reads it; leave it out")
        if self.aggregation == "constant" and self.length is None:
            raise ConfigError("length is missing; constant divides by rows times length (max_new_tokens)")

    def _check_ranges(self) -> None:
        for name in ("gamma", "lam", "clip_low"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ConfigError(f"{name} is {value}; it lies between 0 and 1")
        bounded = ("clip_high", "kl_coefficient", "entropy_coefficient", "value_coefficient", "value_clip")
        for name in (*bounded, "ratio_cap", "ratio_bound", "temperature_positive", "temperature_negative"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and (value > 0 or (value == 0 and name in bounded))):
                raise ConfigError(f"{name} is {value}; it must be {'at least 0' if name in bounded else 'positive'}")
        if self.importance_cap is not None and not 1 <= self.importance_cap < math.inf:
            raise ConfigError(f"importance_cap is {self.importance_cap}; it must be at least 1")
        if self.scale is not None and self.scale not in advantages.SCALES:
            raise ConfigError(f"scale is {self.scale!r}; it is one of {', '.join(advantages.SCALES)}")
        if self.length is not None and self.length < 1:
            raise ConfigError(f"length is {self.length}; it must be at least 1")

    def _check_kl(self) -> None:
        if self.kl_estimator not in (None, *ESTIMATORS):
            raise ConfigError(f"kl_estimator is {self.kl_estimator!r}; it is one of {', '.join(ESTIMATORS)}")
        if self.kl == "none":
            set_ones = ("kl_coefficient", "kl_estimator", "kl_importance", "kl_target")
            for name in (each for each in set_ones if getattr(self, each)):
                raise ConfigError(f"{name} has no effect with kl 'none'; set kl to reward or loss")
        elif not self.kl_coefficient:
            raise ConfigError(f"kl_coefficient is 0 with kl {self.kl!r}; give it a weight, or set kl: none")
        if self.kl == "reward" and self.kl_importance:
            raise ConfigError("kl_importance has no effect on a reward; it belongs to kl: loss")
        if self.kl == "loss" and self.kl_estimator == "k1" and not self.kl_importance:
            raise ConfigError(
                "kl_estimator k1 has no gradient on average as a loss; take k2 or k3, or set kl_importance"
            )
        if self.kl_target is None and self.kl_law != Law():
            raise ConfigError("kl_law has no effect without kl_target; give the divergence to keep to")
        self.controller()  # Refuses a target or a start that it cannot use.

    def _part(self, field: str) -> Callable[..., Any]:
        return CHOICES[field][getattr(self, field)]

    def given(self, field: str) -> dict[str, Any]:
        """The options set for the chosen advantage, loss or aggregation, as its keyword arguments."""
        names = options(self._part(field))
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def default(self, field: str, name: str) -> Any:
        """An option of the chosen part as it acts: the one set, else the part's own default; None if it reads none."""
        parameter = inspect.signature(self._part(field)).parameters.get(name)
        return self.given(field).get(name, None if parameter is None else parameter.default)

    def controller(self) -> FixedKL | AdaptiveKL:
        """A fresh controller of the KL coefficient."""
        if self.kl_target is None:
            return FixedKL(self.kl_coefficient)
        return AdaptiveKL(self.kl_coefficient, self.kl_target, law=self.kl_law)

    @property
    def estimator(self) -> str:
        """The KL estimator in use."""
        return self.kl_estimator or ("k1" if self.kl == "reward" else "k3")

    @property
    def needs_values(self) -> bool:
        """Whether a critic takes part."""
        return self.advantage == "gae"

    @property
    def needs_groups(self) -> bool:
        """Whether episodes must come in groups with one start."""
        return self.advantage not in ("gae", "reinforce++")


RECIPES: Mapping[str, Objective] = {
    "ppo": Objective("gae", "ppo", "token_mean", standardise=True),
    "grpo": Objective("grpo", "ppo", "sequence_mean"),
    "dr_grpo": Objective("dr_grpo", "ppo", "constant", length=512),
    "dapo": Objective("grpo", "ppo", "token_mean", clip_low=0.2, clip_high=0.28),
    "gspo": Objective("grpo", "gspo", "sequence_mean"),
    "cispo": Objective("grpo", "cispo", "token_mean"),
    "sapo": Objective("grpo", "sapo", "sequence_mean"),
    "rloo": Objective("rloo", "reinforce", "token_mean"),
    "reinforce": Objective("reinforce++", "reinforce", "token_mean"),
    "maxrl": Objective("maxrl", "reinforce", "token_mean"),
}
"""What published methods combine; change one by dataclasses.replace."""
