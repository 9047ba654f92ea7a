"""Distance from a reference policy: estimates a token, controllers of its weight, and correction for another sampler.

With log p of the policy in training and log q of the reference, at tokens drawn from the policy; in nats.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from perdure.core.component import component
from perdure.core.errors import ConfigError, DataError

Tensor = torch.Tensor


def k1(logprobs_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """log p - log q: unbiased, may be negative. As a loss it needs the ratio (its own gradient is 0 on average)."""
    return logprobs_BT - reference_BT


def k2(logprobs_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """(log p - log q)^2 / 2: biased, never negative; its gradient is that of the reverse KL."""
    return 0.5 * (logprobs_BT - reference_BT).square()


def k3(logprobs_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """q / p - 1 - log (q / p): unbiased, never negative (Schulman, "Approximating KL divergence", 2020)."""
    difference_BT = reference_BT - logprobs_BT
    return difference_BT.exp() - difference_BT - 1


def estimate(name: str, logprobs_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The estimator `name` at trainable tokens, 0 elsewhere (they may hold NaN); no gradient reaches `reference_BT`."""
    zero = torch.zeros((), dtype=logprobs_BT.dtype, device=logprobs_BT.device)
    reference_BT = torch.where(mask_BT, reference_BT.detach(), zero)
    return ESTIMATORS[name](torch.where(mask_BT, logprobs_BT, zero), reference_BT)


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def importance_weights(trainer_BT: Tensor, sampler_BT: Tensor, mask_BT: Tensor, cap: float) -> Tensor:
    """min(p / s, cap) a token: of a sampler s that computes the same policy with other rounding (bf16). No gradient.

    Truncated importance sampling; Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
    training". `trainer_BT` are log-probabilities of the trainer before the update. 1 outside the mask.
    """
    if cap < 1:
        raise ConfigError(f"importance_cap is {cap}; it must be at least 1, else it scales down what agrees exactly")
    difference_BT = torch.where(mask_BT, trainer_BT - sampler_BT, 0.0).detach()
    return difference_BT.exp().clamp(max=cap)


def mismatch_metrics(trainer_BT: Tensor, sampler_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """How far sampler and trainer disagree at trainable tokens, in nats: the mean and the largest |difference|.

    sampler/mean_difference, sampler/largest_difference. With both in fp32 they lie below 1e-4.
    """
    difference_N = (trainer_BT - sampler_BT)[mask_BT].detach().abs().double()
    if not difference_N.numel():
        return {"sampler/mean_difference": 0.0, "sampler/largest_difference": 0.0}
    return {
        "sampler/mean_difference": float(difference_N.mean()),
        "sampler/largest_difference": float(difference_N.max()),
    }


class FixedKL:
    """A weight that stays as it is."""

    def __init__(self, coefficient: float):
        if not (math.isfinite(coefficient) and coefficient >= 0):
            raise ConfigError(f"kl_coefficient is {coefficient}; it is a finite number, at least 0")
        self.coefficient = coefficient

    def update(self, kl: float, samples: int = 1) -> None:
        """Nothing follows from what was measured."""

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.coefficient = float(state["coefficient"])


@component
class Law:
    """How an adaptive weight answers the measured divergence.

    ziegler: times 1 + clip(kl / target - 1, -0.2, 0.2) samples / horizon (Ziegler et al. 2019, arXiv 1909.08593).
    log: times exp(rate clip(ln(m / target), -1, 1)), m a running mean of the divergence; nothing while m is within
    `deadband` of the target (in ln) or during the first `warmup` updates. driftcall: times exp(gain (kl / target - 1)),
    asymmetric, kept for the reference that has it. All keep the weight within [low, high].
    """

    kind: str = "ziegler"
    horizon: int = 10_000
    """ziegler: samples over which an error of 20 % changes the weight by about 20 %."""
    rate: float = 0.1
    smoothing: float = 0.7
    """log: the share of the running mean that stays at each update."""
    deadband: float = 0.1
    warmup: int = 10
    gain: float = 2.0
    low: float = 1e-6
    high: float = 1e3

    def __post_init__(self) -> None:
        if self.kind not in ("ziegler", "log", "driftcall"):
            raise ConfigError(f"kind is {self.kind!r}; it is ziegler, log or driftcall")
        if not 0 < self.low <= self.high < math.inf:
            raise ConfigError(f"low is {self.low} and high {self.high}; they satisfy 0 < low <= high")
        if self.horizon < 1:
            raise ConfigError(f"horizon is {self.horizon}; it is a number of samples, at least 1")
        if not 0 <= self.smoothing < 1:
            raise ConfigError(f"smoothing is {self.smoothing}; it lies from 0 up to 1, which is excluded")
        for name in ("rate", "deadband", "warmup", "gain"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must not be negative")


class AdaptiveKL:
    """A weight that moves until the measured divergence is `target` (nats a token).

    A measurement that is negative or not finite says nothing and changes nothing (it is counted as `skipped`).
    `clamped` counts the updates at which a bound of the law cut the weight.
    """

    def __init__(self, initial: float, target: float, horizon: int = 10_000, law: Law | None = None):
        self.law = Law(horizon=horizon) if law is None else law
        if not self.law.low <= initial <= self.law.high:
            raise ConfigError(f"kl_coefficient is {initial}; it lies within [{self.law.low:g}, {self.law.high:g}]")
        if not 0 < target < math.inf:
            raise ConfigError(f"kl_target is {target}; it is a positive number of nats a token")
        self.coefficient, self.target = initial, target
        self.mean, self.updates, self.skipped, self.clamped = 0.0, 0, 0, 0

    def update(self, kl: float, samples: int = 1) -> None:
        """Answer a measurement made on `samples` samples."""
        if not math.isfinite(kl) or kl < 0:
            self.skipped += 1
            return
        kept = self.law.smoothing if self.updates else 0.0
        self.mean = kept * self.mean + (1 - kept) * kl
        self.updates += 1
        wanted = self.coefficient * self._factor(kl, samples)
        self.coefficient = min(max(wanted, self.law.low), self.law.high)
        self.clamped += self.coefficient != wanted

    def _factor(self, kl: float, samples: int) -> float:
        law = self.law
        if law.kind == "ziegler":
            return 1 + min(max(kl / self.target - 1, -0.2), 0.2) * min(samples / law.horizon, 1.0)
        if law.kind == "driftcall":
            return math.exp(min(max(law.gain * (kl / self.target - 1), -50.0), 50.0))
        error = math.log(max(self.mean / self.target, 1e-30))
        if self.updates <= law.warmup or abs(error) < law.deadband:
            return 1.0
        return math.exp(law.rate * min(max(error, -1.0), 1.0))

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes, as JSON values."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave; DataError for another controller's, and for a weight that is no number."""
        if not isinstance(state, Mapping):
            raise DataError(f"the state of a KL controller is {state!r}; expected {sorted(_STATE)}")
        if set(state) != set(_STATE):
            raise DataError(f"the state of a KL controller holds {sorted(state)}; expected {sorted(_STATE)}")
        if not isinstance(state["coefficient"], int | float):
            raise DataError(f"the state of a KL controller is none: its weight is {state['coefficient']!r}")
        for name in _STATE:
            setattr(self, name, state[name])


_STATE = ("coefficient", "mean", "updates", "skipped", "clamped")
