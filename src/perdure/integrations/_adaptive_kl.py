"""A KL weight that moves until the measured divergence is its target, acting on the trainer's own `beta`."""

import math
from collections.abc import Mapping
from typing import Any, Self

from transformers import TrainerCallback

from perdure.core.errors import ConfigError, DataError, told
from perdure.integrations._episodes import BETA_KL
from perdure.lm.objectives.kl import AdaptiveKL, Law

DEFAULT_KP = 2.0
"""Gain of the law "driftcall"."""
DEFAULT_BETA_MIN = 0.001
DEFAULT_BETA_MAX = 1.0
LAWS = ("log", "driftcall")
PREFIX = "train/"
FIELDS = ("beta_adaptive", "kl_measured", "kl_target", "beta_clamped_to_min", "beta_clamped_to_max")
"""What is logged, under PREFIX. The flags say 1 where the bound cut the weight just now."""


class AdaptiveKLCallback(TrainerCallback):
    """Keeps the KL divergence near `target_kl` (nats a token) by lm.objectives.kl.AdaptiveKL.

    law="log": a bounded step by the logarithm of a running mean over its target. law="driftcall": times
    exp(kp (kl / target - 1)), the exponent within 50 of 0, as the published recipe has it; `kp` belongs to it alone.
    The weight stays within [beta_min, beta_max].

    A callback is not told of its trainer. DriftCallGRPOTrainer binds it and has it act at each optimizer step; to any
    other GRPOTrainer `bind` it, and it acts at each log. Unbound it refuses to begin a training. The trainer's beta
    must be above 0 from the start, since TRL builds a reference model only then.
    """

    def __init__(
        self,
        target_kl: float = BETA_KL,
        *,
        kp: float | None = None,
        beta_min: float = DEFAULT_BETA_MIN,
        beta_max: float = DEFAULT_BETA_MAX,
        law: str = "log",
    ):
        if law not in LAWS:
            raise ConfigError(f"law is {law!r}; it is one of {', '.join(LAWS)}")
        if law == "log" and kp is not None:
            raise ConfigError(f'kp is {kp}; the law "log" has no gain: leave kp out, or give law="driftcall"')
        self.target_kl, self.beta_min, self.beta_max, self.law = target_kl, beta_min, beta_max, law
        self.kp = DEFAULT_KP if law == "driftcall" and kp is None else kp
        gain = DEFAULT_KP if self.kp is None else self.kp
        self._law = Law(kind=law, low=beta_min, high=beta_max, gain=gain)
        AdaptiveKL(beta_min, target_kl, law=self._law)  # Refuses a target that is none.
        self.controller: AdaptiveKL | None = None
        self.trainer: Any = None
        self.each_step = False
        """Whether the trainer has it act at each optimizer step."""

    def bind(self, trainer: Any, *, each_step: bool = False) -> Self:
        """Act on `trainer.beta` from now on, as the first of the trainer's callbacks; returns the callback itself."""
        self.controller = self._begun(trainer.beta)
        self.trainer, self.each_step = trainer, each_step
        others = [each for each in trainer.callback_handler.callbacks if each is not self]
        trainer.callback_handler.callbacks = [self, *others]
        return self

    def measured(self, kl: Any) -> dict[str, float]:
        """Answer a divergence; returns the fields to log, none for a value that is no divergence."""
        controller = self.controller
        assert controller is not None, "bound"
        if isinstance(kl, bool) or not isinstance(kl, (int, float)) or not math.isfinite(kl) or kl < 0:
            return {}
        clamped = controller.clamped
        controller.update(float(kl))
        cut = controller.clamped > clamped
        if self.trainer is not None:
            self.trainer.beta = controller.coefficient
        low = cut and controller.coefficient == self.beta_min
        values = (controller.coefficient, float(kl), self.target_kl, float(low), float(cut and not low))
        return dict(zip(FIELDS, values, strict=True))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Refuse to begin where nothing would come of the control."""
        if self.trainer is None:
            raise ConfigError(
                "AdaptiveKLCallback has no trainer, so no beta to act on; use DriftCallGRPOTrainer, or call "
                "callback.bind(trainer) before train()"
            )
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        """Answer the logged `kl`, and add the fields to `logs` and to the history."""
        if self.each_step or not logs or "kl" not in logs:
            return control
        if self.controller is None:
            self.controller = self._begun(args.beta)
        fields = prefixed(self.measured(logs["kl"]))
        logs.update(fields)
        if state is not None and getattr(state, "log_history", None):
            state.log_history[-1].update(fields)
        return control

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold, as JSON values: the settings, and the controller where it stands."""
        assert self.controller is not None, "bound"
        return {"settings": self._settings(), "controller": self.controller.state_dict()}

    def load(self, state: Mapping[str, Any], place: str) -> None:
        """Take up what `state` gave; the trainer's beta follows.

        DataError, naming `place`, for what is no state; ConfigError where the settings are not those it was written
        with.
        """
        restored = self._begun(self.beta_min)
        try:
            before, within = state["settings"], state["controller"]
            changed = [name for name, value in self._settings().items() if before[name] != value]
            restored.load_state_dict(within)
        except (DataError, KeyError, TypeError) as error:
            raise DataError(f"{place} is damaged ({told(error)}); resume from an earlier checkpoint") from None
        if changed:
            had = ", ".join(f"{name} {before[name]} (now {getattr(self, name)})" for name in changed)
            raise ConfigError(f"{place} was written with {had}; set it as it was, or begin a new run from the weights")
        if not self.beta_min <= restored.coefficient <= self.beta_max:
            raise DataError(
                f"{place} is damaged (a weight of {restored.coefficient:g}, outside [{self.beta_min:g}, "
                f"{self.beta_max:g}]); resume from an earlier checkpoint"
            )
        self.controller, self.trainer.beta = restored, restored.coefficient

    def _settings(self) -> dict[str, Any]:
        """What a resume must not change."""
        return {name: getattr(self, name) for name in ("law", "target_kl", "kp", "beta_min", "beta_max")}

    def refuse_start(self, beta: float) -> None:
        """ConfigError for a beta that control cannot begin with."""
        if not self.beta_min <= beta <= self.beta_max:
            raise ConfigError(
                f"beta is {beta}; an adaptive weight begins within [{self.beta_min:g}, {self.beta_max:g}], and above "
                f"0, or TRL builds no reference model: set beta={BETA_KL} in GRPOConfig, or move the bounds"
            )

    def _begun(self, beta: float) -> AdaptiveKL:
        self.refuse_start(beta)
        return AdaptiveKL(beta, self.target_kl, law=self._law)


def prefixed(fields: Mapping[str, float]) -> dict[str, float]:
    """The fields under the names that logs and history have."""
    return {f"{PREFIX}{name}": value for name, value in fields.items()}
